"""Summary numbers of an estimate, the jackknife, and expected bands."""

import math

import numpy as np
import pytest
import torch

from symlab.curvature.statistics import (
    STATISTICS,
    Estimate,
    jackknife_error,
    jackknife_errors,
    statistics_of,
    symmetric_root,
)
from symlab.rundir.bands import check_bands, judge, over_data
from symlab.symmetry import Group, WeightSymmetry

SYMMETRY = WeightSymmetry(
    {"w1": ("h", "in"), "w2": ("out", "h")}, {"w1": (4, 3), "w2": (2, 4)}, {"h": Group.SIGNED_PERMUTATION}
)


def positive(seed):
    """A covariance [20, 20] of 40 vectors, and its projection."""
    vectors = torch.randn(40, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    matrix = vectors.mT @ vectors / 40
    return Estimate(matrix, SYMMETRY.project_dense(matrix))


def pearson(x, y):
    return np.corrcoef(x.numpy().ravel(), y.numpy().ravel())[0, 1]


def test_statistics_are_those_of_the_dense_matrices():
    mine, other = positive(0), positive(1)
    found = statistics_of(mine, other)
    assert tuple(found) == STATISTICS
    fitted = mine.operator.dense()
    assert found["fit_correlation"] == pytest.approx(pearson(mine.matrix, fitted))
    assert found["correlation_covariance"] == pytest.approx(pearson(mine.matrix, other.matrix))
    values, vectors = torch.linalg.eigh(other.matrix)
    root = vectors @ torch.diag(values.sqrt()) @ vectors.mT
    assert found["correlation_covariance_root"] == pytest.approx(pearson(mine.matrix, root))
    assert found["fitted_correlation_covariance"] == pytest.approx(pearson(fitted, other.operator.dense()))
    values, vectors = torch.linalg.eigh(other.operator.dense())
    root = vectors @ torch.diag(values.sqrt()) @ vectors.mT
    assert found["fitted_correlation_covariance_root"] == pytest.approx(pearson(fitted, root))
    assert found["condition_number"] == pytest.approx(float(torch.linalg.cond(fitted)))
    assert found["trace"] == pytest.approx(float(mine.matrix.trace()))
    assert found["norm"] == pytest.approx(float(torch.linalg.matrix_norm(fitted)))


def test_without_a_dense_matrix_or_a_covariance_the_numbers_are_missing():
    mine = positive(0)
    found = statistics_of(Estimate(None, mine.operator), None)
    assert {name for name, value in found.items() if value is not None} == {"condition_number", "trace", "norm"}


def test_root_squares_to_the_positive_part():
    mine = positive(2)
    torch.testing.assert_close(symmetric_root(mine.matrix) @ symmetric_root(mine.matrix), mine.matrix)
    slightly_negative = mine.matrix - 1e-12 * torch.eye(20) - mine.matrix
    assert not symmetric_root(slightly_negative).any()


def test_jackknife_of_a_mean_is_its_standard_error():
    x = np.random.default_rng(0).normal(size=12)
    without = [(x.sum() - value) / 11 for value in x]
    assert jackknife_error(without) == pytest.approx(x.std(ddof=1) / math.sqrt(12))
    assert math.isnan(jackknife_error(without[:1]))


def test_jackknife_errors_skip_what_is_missing():
    errors = jackknife_errors([{"a": 1.0, "b": None}, {"a": 3.0, "b": 2.0}])
    assert errors == {"a": pytest.approx(1.0), "b": None}
    assert jackknife_errors([]) == {}


def test_bands():
    known = ["slope_hessian_step0", "slope_hessian_step20"]
    check_bands({"slope_hessian_step0": [-0.6, -0.4]}, known)
    with pytest.raises(ValueError, match=r"expected\.slope_hesian_step0: .* near it: slope_hessian_step0"):
        check_bands({"slope_hesian_step0": [-0.6, -0.4]}, known)
    with pytest.raises(ValueError, match=r"a band is \[low, high\]"):
        check_bands({"slope_hessian_step0": [-0.4, -0.6]}, known)
    with pytest.raises(ValueError, match=r"a band is \[low, high\]"):
        check_bands({"slope_hessian_step0": [0.4]}, known)


def test_verdicts():
    bands = {"a": [0.0, 1.0], "b": [0.0, 1.0], "c": [0.0, 1.0], "d": [0.0, 1.0]}
    numbers = {
        key: {"value": value, "error": 0.1} for key, value in zip("abcd", (1.0, 1.01, None, math.nan), strict=True)
    }
    found = judge(bands, numbers)
    assert [found[key]["verdict"] for key in "abcd"] == ["within", "outside", "unknown", "unknown"]
    assert found["a"] == {"value": 1.0, "error": 0.1, "low": 0.0, "high": 1.0, "verdict": "within"}


def test_mean_over_data_sets():
    assert over_data([1.0, 3.0], [0.1, 0.2]) == {"value": 2.0, "error": pytest.approx(1.0), "spread": 2**0.5}
    assert over_data([1.5], [0.1]) == {"value": 1.5, "error": 0.1, "spread": None}
    assert over_data([1.5, None], [0.1, None])["value"] is None
