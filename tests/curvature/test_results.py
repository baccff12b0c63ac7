"""The part outside of the structure against the number of models, and its slope."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from symlab.curvature.estimate import DenseEstimate
from symlab.curvature.results import Outside, fitted_slope, outside_curve
from symlab.symmetry import Group, WeightSymmetry


def symmetry(group):
    return WeightSymmetry({"w": ("h", "i")}, {"w": (3, 2)}, {"h": group})


def heavy_tailed(models, seed):
    """Vectors [S, 3, 2] whose law has the sign symmetry of the units; a few are much larger than the others."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(models, 3, 2, generator=generator, dtype=torch.float64)
    return {"w": x * torch.rand(models, 1, 1, generator=generator, dtype=torch.float64).pow(-0.3)}


def test_curve_is_the_root_mean_square_over_the_groups():
    estimate = DenseEstimate(symmetry(Group.SIGNED_PERMUTATION), "second_moment", 4, 2)
    samples = heavy_tailed(13, 0)
    estimate.update(samples)
    x = samples["w"].reshape(13, 6)
    norm = float(torch.linalg.matrix_norm(x.mT @ x / 13))
    expected = {}
    for models in (4, 8, 13):
        outside = []
        for start in range(0, 13 - models + 1, models):
            c = x[start : start + models].mT @ x[start : start + models] / models
            inner = sum(c.reshape(3, 2, 3, 2)[h, :, h, :] for h in range(3)) / 3  # no cross terms
            outside.append(float(torch.linalg.matrix_norm(c - torch.kron(torch.eye(3, dtype=c.dtype), inner))) / norm)
        expected[models] = outside
    curve = outside_curve(estimate, "right")
    assert {point.models: point.groups for point in curve} == {4: 3, 8: 1, 13: 1}
    for point in curve:
        values = np.array(expected[point.models])
        assert point.outside == pytest.approx(math.sqrt((values**2).mean()), rel=1e-10)
    assert curve[0].noise / curve[-1].noise == pytest.approx(math.sqrt(13 / 4))


def test_slope_is_minus_one_half_also_under_heavy_tails():
    wrong = WeightSymmetry({"w": ("h", "i")}, {"w": (3, 2)}, {"h": Group.SIGNED_PERMUTATION, "i": Group.PERMUTATION})
    slopes = []
    for seed in range(5):
        estimate = DenseEstimate(symmetry(Group.SIGNED_PERMUTATION), "covariance", 20, 3, {"wrong": wrong})
        samples = heavy_tailed(6000, seed)
        estimate.update({"w": samples["w"] * torch.tensor([1.0, 3.0], dtype=torch.float64)})
        slope, error = fitted_slope(outside_curve(estimate, "right"))
        slopes.append(slope)
        assert 0 < error < 0.1
        assert fitted_slope(outside_curve(estimate, "wrong"))[0] > -0.2
    assert np.mean(slopes) == pytest.approx(-0.5, abs=0.05)


def test_the_error_of_the_slope_is_its_spread_over_repetitions():
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(200):
        estimate = DenseEstimate(symmetry(Group.SIGNED_PERMUTATION), "mean_gradient", 4, 3)
        estimate.update({"w": torch.randn(324, 3, 2, generator=generator, dtype=torch.float64)})
        found.append(fitted_slope(outside_curve(estimate, "right")))
    slopes, errors = np.array(found).T
    assert np.sqrt((errors**2).mean()) == pytest.approx(slopes.std(), rel=0.25)


def test_slope_and_its_error_by_hand():
    curve = [Outside(10**k, 10, 2 * 10 ** (-0.5 * k), 0.2 * 10 ** (-0.5 * k), math.nan) for k in (1, 2, 3)]
    slope, error = fitted_slope(curve)
    assert slope == pytest.approx(-0.5)
    # slope = (y_3 - y_1) / (2 log 10), all three of variance (.1^2) / 10, so fully correlated: no spread of the slope
    assert error == pytest.approx(0.0, abs=1e-9)
    wider = [dataclasses.replace(curve[0], groups=90), dataclasses.replace(curve[1], groups=30), curve[2]]
    variance = 0.1**2 / 10 - 0.1**2 / 90  # of y_3 - y_1, whose covariance is the variance of y_1
    assert fitted_slope(wider)[1] == pytest.approx(math.sqrt(variance) / (2 * math.log(10)))
    assert fitted_slope(curve[:1]) == (None, None)
    lonely = [Outside(point.models, 1, point.outside, math.nan, math.nan) for point in curve]
    assert fitted_slope(lonely) == (pytest.approx(-0.5), None)
