"""Numbers that compare curvature matrices, against numpy on dense matrices."""

import itertools

import numpy as np
import pytest
import torch

from symlab.curvature import measures
from symlab.symmetry import Group, InvariantOperator, WeightSymmetry

SHAPES = {"w1": (4, 3), "b1": (4,), "w2": (2, 4)}
AXES = {"w1": ("h", "in"), "b1": ("h",), "w2": ("out", "h")}


def operators(group, seed=0, count=2):
    symmetry = WeightSymmetry(AXES, SHAPES, {"h": group})
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        matrices = []
        for block in symmetry.blocks:
            m = torch.randn(block.copies, block.copies, generator=generator, dtype=torch.float64)
            matrices.append(m + m.mT)
        found.append(InvariantOperator(symmetry, matrices))
    return found


def test_correlation_is_pearsons():
    x, y = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    expected = np.corrcoef(x.numpy().ravel(), y.numpy().ravel())[0, 1]
    assert measures.correlation(x, y) == pytest.approx(expected, abs=1e-14)
    assert np.isnan(measures.correlation(x, torch.ones(5, 7)))
    with pytest.raises(ValueError, match="equal shapes"):
        measures.correlation(x, y[:2])


@pytest.mark.parametrize("group", [Group.PERMUTATION, Group.SIGNED_PERMUTATION, Group.TRIVIAL])
def test_correlation_of_operators_is_that_of_their_dense_matrices(group):
    a, b = operators(group)
    expected = np.corrcoef(a.dense().numpy().ravel(), b.dense().numpy().ravel())[0, 1]
    assert measures.operator_correlation(a, b) == pytest.approx(expected, abs=1e-12)
    assert measures.operator_correlation(a, 3.0 * a) == pytest.approx(1.0)
    assert np.isnan(measures.operator_correlation(a, 0.0 * b))


@pytest.mark.parametrize("group", [Group.PERMUTATION, Group.SIGNED_PERMUTATION])
def test_norm_of_a_pair_is_that_of_the_part_of_the_dense_matrix(group):
    (operator,) = operators(group, count=1)
    rows = measures.tensor_rows(operator.symmetry)
    dense = operator.dense()
    sizes = {name: int(np.prod(shape)) for name, shape in SHAPES.items()}
    places = measures.pair_slices(list(SHAPES), sizes)
    pairs = measures.tensor_pairs(list(SHAPES))
    assert pairs == list(itertools.combinations_with_replacement(SHAPES, 2))
    total = 0.0
    for a, b in pairs:
        norm = measures.pair_norm(operator, rows, (a, b))
        assert norm == pytest.approx(float(torch.linalg.matrix_norm(dense[places[a], places[b]])), abs=1e-12)
        total += norm**2 * (1 if a == b else 2)
    assert total == pytest.approx(float(operator.frobenius_norm()) ** 2)


def test_factors_of_a_pair_are_the_sub_blocks():
    (operator,) = operators(Group.SIGNED_PERMUTATION, count=1)
    rows = measures.tensor_rows(operator.symmetry)
    (index,) = [i for i, block in enumerate(operator.symmetry.blocks) if block.axes == ("h",)]
    matrix = operator.matrices[index]  # copies: 3 of w1, 1 of b1, 2 of w2
    (part,) = measures.pair_factors(operator, rows, ("w1", "w2"))
    torch.testing.assert_close(part, matrix[:3, 4:])


def test_condition_number():
    assert measures.condition_number(torch.tensor([4.0, -0.5, 2.0])) == 8.0
    assert measures.condition_number(torch.tensor([4.0, 0.0])) == float("inf")
