"""Refinement of axes: what two structures have in common, and that the order of the rules does not matter."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symlab.symmetry.arrangement import arrange
from symlab.symmetry.axis_table import AxisTable, NoCommonRefinement, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.radix import blocks, common_product
from symlab.symmetry.waiting_cuts import WaitingCuts

WHY = Reason("test")


def sizes(axes, dim):
    """Sizes of the leaves of each segment."""
    (segments,) = arrange(axes, {"w": Value((dim,))})["w"]
    return [tuple(axes.size(leaf) for leaf in segment) for segment in segments]


def test_a_product_and_a_product_get_the_common_one():
    axes = AxisTable()
    x, y, z = axes.new(24), tuple(map(axes.new, (4, 6))), tuple(map(axes.new, (8, 3)))
    axes.unify((x,), y)
    axes.unify((x,), z)
    assert sizes(axes, (x,)) == sizes(axes, y) == sizes(axes, z) == [(4, 2, 3)]


def test_a_concatenation_and_a_concatenation_get_the_common_one():
    axes = AxisTable()
    x, parts, other = axes.new(10), tuple(map(axes.new, (4, 6))), tuple(map(axes.new, (7, 3)))
    axes.unify((x,), axes.join([(part,) for part in parts]))
    axes.unify((x,), axes.join([(part,) for part in other]))
    assert sizes(axes, (x,)) == [(4,), (3,), (3,)]
    assert sizes(axes, (parts[1],)) == [(3,), (3,)]
    assert sizes(axes, (other[0],)) == [(4,), (3,)]


def test_a_concatenation_and_a_product_share_what_fits():
    axes = AxisTable()
    x, parts, factors = axes.new(12), tuple(map(axes.new, (4, 8))), tuple(map(axes.new, (3, 4)))
    axes.unify((x,), axes.join([(part,) for part in parts]))
    axes.unify((x,), factors)
    # 12 = [4 | 8] = 3 x 4: the factor of 3 is [1 | 2]
    assert sizes(axes, (x,)) == [(4,), (2, 4)]
    assert axes.find(parts[0]) == axes.find(factors[1])


@pytest.mark.parametrize(("first", "second"), [((6, 4), (4, 6)), ((2, 3), (3, 2))])
def test_structures_that_do_not_fit_are_free(first, second):
    axes = AxisTable()
    x, y, z = axes.new(first[0] * first[1]), tuple(map(axes.new, first)), tuple(map(axes.new, second))
    axes.unify((x,), y)
    axes.unify((x,), z)
    assert axes.is_free((x, *y, *z))


def test_a_part_that_is_cut_is_cut_wherever_it_is():
    axes = AxisTable()
    h = axes.new(6)
    gates = axes.join([(h,)] * 3)
    axes.cut((h,), [2])
    assert sizes(axes, gates) == [(2,), (4,)] * 3


def test_a_cut_across_a_product_does_not_exist():
    axes = AxisTable()
    with pytest.raises(NoCommonRefinement):
        axes.cut((axes.new(3), axes.new(4)), [5])


def test_groups_and_reasons_go_to_the_parts():
    axes = AxisTable()
    x = axes.new(6)
    axes.restrict((x,), Group.PERMUTATION)
    first, second = axes.cut((x,), [2])
    axes.pin(second, WHY)
    assert axes.group(first[0]) is Group.PERMUTATION
    assert axes.reasons(second[0]) == (WHY,)
    assert axes.group(x) is Group.TRIVIAL
    assert not axes.is_free((x,))


def test_an_axis_around_a_concatenation_is_free():
    axes = AxisTable()
    outer, inner = axes.new(3), axes.join([(axes.new(2),), (axes.new(4),)])
    x = axes.new(18)
    axes.unify((x,), (outer, *inner))
    assert sizes(axes, (x,)) == [(2,), (4,)] * 3
    assert axes.is_free((outer,))


def test_three_uses_in_one_tensor_are_free():
    axes = AxisTable()
    h = axes.new(4)
    (row,) = arrange(axes, {"w": Value(((h,), (h,), (h,)))}).values()
    assert row == (((h,),),) * 3
    assert axes.is_free((h,))


@pytest.mark.parametrize("settled_first", [True, False])
def test_a_cut_that_is_taken_apart_and_used_whole_has_equal_layers(settled_first):
    axes = AxisTable()
    cuts = WaitingCuts(axes)
    x = axes.new(12)
    k, e = cuts.add(x, [3, 4])[x]
    if settled_first:
        cuts.settle([Value(((k,), (e,)))])
        assert cuts.layer((k,), 1) is None
        axes.cut((k,), [1, 2])
    else:
        layers = [cuts.layer((k,), index) for index in range(3)]
        assert len({axes.find(layer[e][0]) for layer in layers if layer}) == 3
        cuts.settle([Value(((k,), (e,)))])
    assert sizes(axes, (x,)) == [(3, 4)]
    assert axes.is_free((k,))
    assert not axes.is_free((e,))


def product_of(sizes):
    result = 1
    for size in sizes:
        result *= size
    return result


@given(st.lists(st.integers(2, 4), min_size=1, max_size=4), st.data())
def test_common_products_have_the_pieces_of_both(first, data):
    second = data.draw(st.permutations(first))
    assert [product_of(first[a]) for a, _ in blocks(first, second)] == [
        product_of(second[b]) for _, b in blocks(first, second)
    ]
    found = common_product(first, second)
    if found is not None:
        for own, pieces in zip((first, second), found, strict=True):
            assert [product_of(piece) for piece in pieces] == own
        assert list(itertools.chain(*found[0])) == list(itertools.chain(*found[1]))


# Rules about axes x0 ... x3 of 12 units; products and concatenations have axes of their own.
RULES = st.one_of(
    st.tuples(st.just("same"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("product"), st.integers(0, 3), st.sampled_from([(2, 6), (6, 2), (3, 4), (2, 2, 3), (4, 3)])),
    st.tuples(st.just("join"), st.integers(0, 3), st.sampled_from([(4, 8), (6, 6), (2, 10), (4, 4, 4), (1, 11)])),
    st.tuples(st.just("twice"), st.integers(0, 3), st.just(6)),
    st.tuples(st.just("restrict"), st.integers(0, 3), st.just(Group.PERMUTATION)),
    st.tuples(st.just("part"), st.integers(0, 3), st.sampled_from([4, 6, 8])),
    st.tuples(st.just("pin"), st.integers(0, 3), st.just(WHY)),
)


def outcome(rules, order):
    """For each unit of each axis the leaves that are not free, with the coordinate on each, after rules in an order."""
    axes = AxisTable()
    base = [axes.new(12) for _ in range(4)]
    own = {
        i: rule[2] if rule[0] in ("product", "join") else (rule[2],) if rule[0] == "twice" else ()
        for i, rule in enumerate(rules)
    }
    own = {i: tuple(map(axes.new, chosen)) for i, chosen in own.items()}
    for i in order:
        kind, which, argument = rules[i]
        dim = (base[which],)
        if kind == "same":
            axes.unify(dim, (base[argument],))
        elif kind == "product":
            axes.unify(dim, own[i])
        elif kind == "join":
            axes.unify(dim, axes.join([(axis,) for axis in own[i]]))
        elif kind == "twice":
            axes.unify(dim, axes.join([own[i], own[i]]))
        elif kind == "restrict":
            axes.restrict(dim, argument)
        elif kind == "part":
            part = own[i] or dim
            try:
                axes.restrict(axes.cut(part, [argument])[1], Group.PERMUTATION)
            except NoCommonRefinement:
                axes.pin(part, WHY)
        else:
            axes.pin(dim, argument)
    every = {f"x{n}": Value(((axis,),)) for n, axis in enumerate(base)}
    every |= {f"own{i}": Value(tuple((axis,) for axis in chosen)) for i, chosen in own.items()}
    return described(axes, arrange(axes, every))


def described(axes, rows):
    names: dict[int, int] = {}
    result = []
    for row in rows.values():
        for segments in row:
            for segment in segments:
                for unit in itertools.product(*(range(axes.size(leaf)) for leaf in segment)):
                    moving = [(leaf, at) for leaf, at in zip(segment, unit, strict=True) if not axes.is_free((leaf,))]
                    result.append([(names.setdefault(leaf, len(names)), axes.group(leaf), at) for leaf, at in moving])
    return result


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(RULES, min_size=2, max_size=7), st.integers(0, 1000))
def test_the_order_of_the_rules_does_not_matter(rules, seed):
    order = list(range(len(rules)))
    expected = outcome(rules, order)
    random.Random(seed).shuffle(order)
    assert outcome(rules, order) == expected
