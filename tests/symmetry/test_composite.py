"""Dimensions indexed by several axes: concatenations, flattened products, gates, packed projections."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from symlab.symmetry import Composite, Group, InvariantOperator, WeightSymmetry
from tests import reference_two_index as two

KIND = {"S": Group.PERMUTATION, "B": Group.SIGNED_PERMUTATION}

GATES = (("h",), ("h",), ("h",), ("h",))
QKV = (("n", "d"), ("n", "d"), ("n", "v"))


def dim(*segments):
    return tuple(tuple(segment) for segment in segments)


LSTM = {"Wi": (GATES, dim("i")), "Wh": (GATES, dim("h")), "b": (GATES,), "Wo": (dim("o"), dim("h"))}
ATTENTION = {"in_proj": (QKV, dim("e")), "bias": (QKV,), "out_proj": (dim("e"), dim(("n", "v")))}
CONCATENATION = {
    "A": (dim("a"), dim("i")),
    "B": (dim("b"), dim("i")),
    "C": (dim("o"), dim("a", "b", "z")),
    "c": (dim("a", "b", "z"),),
}
FLATTEN = {"conv": (dim("c"), dim("i"), dim("x")), "bias": (dim("c"),), "fc": (dim("o"), dim(("c", "x")))}
TWO_POPULATIONS = {"W": (dim("h", "k"), dim("h", "k")), "b": (dim("h", "k"),), "Wi": (dim("h", "k"), dim("i"))}
GATED = {"up": (dim("h", "h"), dim("i")), "down": (dim("o"), dim("h")), "bias": (dim("h", "h"),)}
SQUARE = {"flat": (dim(("h", "h")),), "b": (dim("h"),), "mixed": (dim(("h", "k"), "h"),)}

SYSTEMS = {
    "lstm": (LSTM, {"h": 3, "i": 2, "o": 2}, {"h": "S"}),
    "lstm, two units": (LSTM, {"h": 2, "i": 2, "o": 1}, {"h": "S"}),
    "attention": (ATTENTION, {"n": 2, "d": 2, "v": 3, "e": 3}, {"n": "S", "d": "B", "e": "S"}),
    "attention, signs of the stream": (ATTENTION, {"n": 3, "d": 1, "v": 2, "e": 2}, {"n": "S", "v": "S", "e": "B"}),
    "concatenation": (CONCATENATION, {"a": 3, "b": 2, "z": 1, "i": 2, "o": 2}, {"a": "S", "b": "S"}),
    "concatenation with signs": (CONCATENATION, {"a": 2, "b": 3, "z": 1, "i": 2, "o": 1}, {"a": "B", "b": "S"}),
    "flattened channels": (FLATTEN, {"c": 3, "x": 4, "i": 2, "o": 2}, {"c": "S"}),
    "flattened, both under groups": (FLATTEN, {"c": 3, "x": 2, "i": 1, "o": 2}, {"c": "S", "x": "S"}),
    "two populations": (TWO_POPULATIONS, {"h": 3, "k": 2, "i": 2}, {"h": "S", "k": "S"}),
    "two populations, signs": (TWO_POPULATIONS, {"h": 2, "k": 3, "i": 1}, {"h": "B", "k": "S"}),
    "gated unit": (GATED, {"h": 4, "i": 2, "o": 2}, {"h": "S"}),
    "one axis twice in a product": (SQUARE, {"h": 3, "k": 2}, {"h": "S", "k": "S"}),
}


def symmetry_of(tensors, sizes, groups):
    axes = {name: tuple(Composite(segments) for segments in dims) for name, dims in tensors.items()}
    shapes = {name: two.shape_of(dims, sizes) for name, dims in tensors.items()}
    return WeightSymmetry(axes, shapes, {a: KIND[kind] for a, kind in groups.items()}, sizes)


def normal(symmetry, samples, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return symmetry.unflatten(torch.randn(samples, symmetry.num_parameters, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("system", SYSTEMS)
def test_equals_average_over_all_elements(system):
    tensors, sizes, groups = SYSTEMS[system]
    symmetry = symmetry_of(tensors, sizes, groups)
    P = symmetry.num_parameters
    x = normal(symmetry, 2)
    flat = symmetry.flatten(x).numpy()
    C = np.random.default_rng(0).normal(size=(P, P))
    expected, expected_mean = two.averages(C, flat.mean(0), two.all_representations(tensors, sizes, groups))
    np.testing.assert_allclose(symmetry.project_dense(torch.from_numpy(C)).dense(), expected, atol=1e-12)
    mean = symmetry.flatten({n: y[None] for n, y in symmetry.project_mean(x).items()})[0]
    np.testing.assert_allclose(mean, expected_mean, atol=1e-12)
    expected, _ = two.averages(flat.T @ flat / 2, flat[0], two.all_representations(tensors, sizes, groups))
    np.testing.assert_allclose(symmetry.project(x).dense(), expected, atol=1e-12)
    counts = two.numbers(two.all_representations(tensors, sizes, groups))
    np.testing.assert_allclose((symmetry.num_factors, symmetry.num_mean_factors), counts, atol=1e-9)


@pytest.mark.parametrize("system", SYSTEMS)
def test_split_act_and_matvec(system):
    tensors, sizes, groups = SYSTEMS[system]
    symmetry = symmetry_of(tensors, sizes, groups)
    x = normal(symmetry, 3)
    flat = symmetry.flatten(x)
    pieces = symmetry.split(x)
    torch.testing.assert_close(symmetry.flatten(symmetry.merge(pieces)), flat)
    torch.testing.assert_close(sum(rows.square().sum((1, 2)) for rows in pieces), flat.square().sum(1))
    element = symmetry.random_element(torch.Generator().manual_seed(1))
    R = torch.from_numpy(two.representation({a: g.numpy() for a, g in element.items()}, tensors, sizes))
    torch.testing.assert_close(symmetry.flatten(symmetry.act(element, x)), flat @ R.mT)
    single = symmetry.act(element, {name: tensor[0] for name, tensor in x.items()})
    assert {name: tuple(tensor.shape) for name, tensor in single.items()} == symmetry.shapes
    torch.testing.assert_close(symmetry.flatten({n: t[None] for n, t in single.items()})[0], R @ flat[0])
    operator = symmetry.project(x)
    torch.testing.assert_close(symmetry.flatten(operator.matvec(x)), flat @ operator.dense())
    torch.testing.assert_close(symmetry.project_dense(operator.dense()).dense(), operator.dense())
    assert sum(b.copies * b.dimension for b in symmetry.blocks) == symmetry.num_parameters


@st.composite
def systems(draw):
    """Up to three tensors of random segments and products over three axes, of at most 40 weights in all."""
    sizes = {label: draw(st.integers(1, 3)) for label in "abc"}
    groups = {label: draw(st.sampled_from("SB")) for label in draw(st.sampled_from(["a", "b", "ab", "abc"]))}
    segment = st.lists(st.sampled_from("abc"), min_size=1, max_size=2).map(tuple)
    dimension = st.lists(segment, min_size=1, max_size=3).map(tuple)
    tensors = {f"t{i}": draw(st.lists(dimension, max_size=2).map(tuple)) for i in range(draw(st.integers(1, 3)))}
    parts = [sum(chosen, ()) for dims in tensors.values() for chosen in itertools.product(*dims)]
    assume(all(part.count(label) <= 2 for part in parts for label in "abc"))
    assume(sum(int(np.prod(two.shape_of(dims, sizes))) for dims in tensors.values()) <= 40)
    used = {label for part in parts for label in part}
    return tensors, sizes, {label: kind for label, kind in groups.items() if label in used}


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(systems())
def test_random_systems_equal_the_average_over_all_elements(system):
    tensors, sizes, groups = system
    symmetry = symmetry_of(tensors, sizes, groups)
    x = normal(symmetry, 2)
    flat = symmetry.flatten(x).numpy()
    expected, _ = two.averages(flat.T @ flat / 2, flat[0], two.all_representations(tensors, sizes, groups))
    np.testing.assert_allclose(symmetry.project(x).dense(), expected, atol=1e-12)
    counts = two.numbers(two.all_representations(tensors, sizes, groups))
    np.testing.assert_allclose((symmetry.num_factors, symmetry.num_mean_factors), counts, atol=1e-9)


def test_gradients_of_transformed_lstms():
    """torch's LSTM: the second moment over all transformed copies is the projection of one copy's gradient."""
    h, i = 3, 2
    model = nn.LSTM(i, h).double()
    gates = Composite(GATES)
    axes = {
        "weight_ih_l0": (gates, "i"),
        "weight_hh_l0": (gates, "h"),
        "bias_ih_l0": (gates,),
        "bias_hh_l0": (gates,),
        "readout": ("o", "h"),
    }
    shapes = {**{n: tuple(p.shape) for n, p in model.named_parameters()}, "readout": (2, h)}
    symmetry = WeightSymmetry(axes, shapes, {"h": Group.PERMUTATION})
    x = normal(symmetry, 1)
    generator = torch.Generator().manual_seed(5)
    data = torch.randn(4, 5, i, generator=generator, dtype=torch.float64)

    def gradient(weights):
        leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
        states, _ = torch.func.functional_call(model, {n: w for n, w in leaves.items() if n != "readout"}, (data,))
        loss = ((states @ leaves["readout"].mT - 1) ** 2).mean()
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    theta = {name: tensor[0] for name, tensor in x.items()}
    moved = []
    for order in itertools.permutations(range(h)):
        element = {"h": torch.eye(h, dtype=torch.float64)[list(order)]}
        moved.append(symmetry.flatten({n: g[None] for n, g in gradient(symmetry.act(element, theta)).items()})[0])
    average = sum(torch.outer(g, g) for g in moved) / len(moved)
    torch.testing.assert_close(symmetry.project(gradient(theta)).dense(), average)


def test_a_gate_of_the_wrong_kind_is_the_wrong_structure():
    """The four gates as axes of their own: the average over the true group lies outside of that structure."""
    tensors, sizes, groups = SYSTEMS["lstm"]
    exact = symmetry_of(tensors, sizes, groups)
    loose = Composite((("g1",), ("g2",), ("g3",), ("g4",)))
    axes = {"Wi": (loose, "i"), "Wh": (loose, "h"), "b": (loose,), "Wo": ("o", "h")}
    every = {**exact.sizes, **dict.fromkeys(("g1", "g2", "g3", "g4"), 3)}
    wrong = WeightSymmetry(axes, exact.shapes, dict.fromkeys(("g1", "g2", "g3", "g4", "h"), Group.PERMUTATION), every)
    C = torch.randn(exact.num_parameters, exact.num_parameters, dtype=torch.float64)
    average = exact.project_dense(C).dense()
    assert torch.linalg.norm(wrong.project_dense(average).dense() - average) > 0.1 * torch.linalg.norm(average)


def test_restrict_coarsen_with_groups():
    tensors, sizes, groups = SYSTEMS["attention"]
    symmetry = symmetry_of(tensors, sizes, groups)
    assert symmetry.sizes == sizes
    bias = symmetry.restrict(["bias"])
    assert bias.axes == {"bias": (Composite(QKV),)}
    assert bias.sizes == {"n": 2, "d": 2, "v": 3}
    assert [(b.axes, b.copies) for b in bias.blocks] == [((), 3), (("n",), 3), (("d",), 2), (("n", "d"), 2)]
    coarse = symmetry.coarsen(2)
    assert coarse.groups == {**symmetry.groups, "v": Group.ORTHOGONAL}
    x = normal(symmetry, 2)
    torch.testing.assert_close(coarse.project_dense(symmetry.project(x).dense()).dense(), coarse.project(x).dense())
    free = symmetry.with_groups(dict.fromkeys("nde", Group.TRIVIAL))
    flat = symmetry.flatten(x)
    torch.testing.assert_close(free.project(x).dense(), flat.mT @ flat / 2)


def test_plain_dimensions_fix_sizes_and_a_composite_of_one_label_is_that_label():
    symmetry = WeightSymmetry({"W": (Composite(GATES), Composite((("h",),)))}, {"W": (12, 3)}, {"h": Group.PERMUTATION})
    assert symmetry.axes["W"][1] == "h"
    assert symmetry.sizes == {"h": 3}
    assert str(symmetry.axes["W"][0]) == "[h | h | h | h]"
    assert str(Composite(QKV)) == "[n x d | n x d | n x v]"


def test_axis_three_times_in_one_part_is_free_with_a_warning():
    with pytest.warns(UserWarning, match=r"axis 'h' occurs more than twice in W.*free"):
        symmetry = WeightSymmetry({"W": (dim_of(("h", "h"), "i"), "h")}, {"W": (5, 2)}, {"h": KIND["S"]}, {"i": 1})
    assert symmetry.groups == {}


def dim_of(*segments):
    return Composite(dim(*segments))


def test_operators_of_other_factors_do_not_mix():
    shape, groups = {"b": (6,)}, {"c": Group.PERMUTATION}
    axes = {"b": (dim_of(("c", "x")),)}
    first, second = (WeightSymmetry(axes, shape, groups, {"c": c, "x": 6 // c}) for c in (2, 3))
    one = InvariantOperator(first, [torch.eye(b.copies) for b in first.blocks])
    with pytest.raises(ValueError, match="different symmetries"):
        one + InvariantOperator(second, [torch.eye(b.copies) for b in second.blocks])


@pytest.mark.parametrize(
    ("axes", "shape", "sizes", "message"),
    [
        (
            (dim_of("a", "b"),),
            (5,),
            {"a": 2, "b": 2},
            r"W, dimension 0 \[a \| b\]: the segments have 2 \+ 2 = 4 units, .*\[5\] has 5",
        ),
        (
            ("a", dim_of(("a", "b"), "a")),
            (2, 9),
            {"b": 3},
            r"W, dimension 1 \[a x b \| a\]: the segments have 6 \+ 2 = 8 units, .* has 9",
        ),
        (
            (dim_of("a", "b"),),
            (5,),
            {"a": 2},
            r"W, dimension 0 \[a \| b\]: no dimension has the axis 'b' alone.*give it in sizes",
        ),
        (("a",), (5,), {"a": 2}, r"axis 'a' has size 2 elsewhere but 5 in W \[5\]"),
        ((dim_of("a", "b"),), (5,), {"a": 5, "b": 0}, r"sizes\['b'\] must be at least 1, got 0"),
    ],
)
def test_wrong_composites(axes, shape, sizes, message):
    with pytest.raises(ValueError, match=message):
        WeightSymmetry({"W": axes}, {"W": shape}, {}, sizes)


@pytest.mark.parametrize("segments", [(), ((),), (("a",), ())])
def test_empty_composite(segments):
    with pytest.raises(ValueError, match="segments of at least one label each"):
        Composite(segments)


@pytest.mark.parametrize("segments", [("ab", "c"), (["a"],)])
def test_a_segment_is_a_tuple(segments):
    with pytest.raises(ValueError, match="each segment is a tuple of labels"):
        Composite(segments)


def test_vectorised_over_models_and_differentiable():
    """split and merge under torch.func.vmap and autograd, with gates and an axis that occurs twice."""
    symmetry = symmetry_of(*SYSTEMS["lstm"])
    x = normal(symmetry, 4)
    batches = {name: tensor[:, None] for name, tensor in x.items()}  # [models, 1, *shape]
    pieces = torch.func.vmap(symmetry.split)(batches)
    for found, expected in zip(pieces, symmetry.split(x), strict=True):
        torch.testing.assert_close(found[:, 0], expected)
    merged = torch.func.vmap(symmetry.merge)(pieces)
    torch.testing.assert_close(merged, batches)
    leaf = x["Wh"].clone().requires_grad_()
    (2 * symmetry.flatten(symmetry.merge(symmetry.split({**x, "Wh": leaf}))).sum()).backward()
    torch.testing.assert_close(leaf.grad, torch.full_like(leaf, 2))
