"""A symmetry as rows."""

import itertools

import pytest

from symlab.symmetry import Composite, Group, WeightSymmetry
from symlab.symmetry.tables import block_rows, share_on_axes


def test_share_counts_each_entry_of_a_concatenated_dimension_by_its_own_axes():
    sizes = {"a": 3, "b": 2, "in": 4, "out": 5}
    axes = {"W": (Composite((("a",), ("b",))), "in"), "V": ("out", Composite((("b", "a"),))), "c": ("out",)}
    shapes = {"W": (5, 4), "V": (5, 6), "c": (5,)}
    symmetry = WeightSymmetry(axes, shapes, {"a": Group.PERMUTATION}, sizes)
    on = sum(1 for i, _ in itertools.product(range(5), range(4)) if i < 3)  # rows of W that a indexes
    on += sum(1 for _ in itertools.product(range(5), range(6)))  # all of V: every column has an index in a
    assert share_on_axes(symmetry) == pytest.approx(on / (20 + 30 + 5))


def test_weights_of_the_blocks_sum_to_all():
    axes, shapes = {"W": ("h", "in"), "b": ("h",), "V": ("out", "h")}, {"W": (4, 3), "b": (4,), "V": (2, 4)}
    rows = block_rows(WeightSymmetry(axes, shapes, {"h": Group.PERMUTATION}))
    assert [(row["axes"], row["copies"], row["dimension"]) for row in rows] == [("", 6, 1), ("h", 6, 3)]
    assert sum(row["weights"] for row in rows) == 24
    assert rows[1]["tensors"] == "W b V"
