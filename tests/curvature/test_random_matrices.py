"""The limit laws against drawn matrices and against what is known in closed form."""

import math

import numpy as np
import pytest
import torch

from symlab.curvature.random_matrices import LAWS, UNIFORM_SIGMA, quarter_circle_density, shifted_density

N = 500


def cumulative(law, sigma, levels):
    """Integral of the density up to each level, by the trapezoid rule."""
    grid = torch.linspace(0, 4, 20_001, dtype=torch.float64)
    density = LAWS[law](grid, sigma)
    total = torch.cat([torch.zeros(1), torch.cumulative_trapezoid(density, grid)])
    return torch.stack([total[int(level * 5_000)] for level in levels])


def drawn(shift, sigma, seed):
    A = np.random.default_rng(seed).uniform(-1, 1, (N, N)) * math.sqrt(3) * sigma / math.sqrt(N)
    return torch.from_numpy(np.linalg.svd(A + shift * np.eye(N), compute_uv=False))


@pytest.mark.parametrize("law", ["a", "i_plus_a"])
@pytest.mark.parametrize("sigma", [UNIFORM_SIGMA, 1.3])
def test_against_drawn_matrices(law, sigma):
    """Largest difference of the cumulative distributions: of n eigenvalues that repel each other it is O(1 / n)."""
    values = torch.cat([drawn(law == "i_plus_a", sigma, seed) for seed in range(2)])
    levels = torch.linspace(0, 4, 81, dtype=torch.float64)
    measured = (values[:, None] <= levels).double().mean(0)
    assert float((cumulative(law, sigma, levels) - measured).abs().max()) < 0.006


@pytest.mark.parametrize("law", ["a", "i_plus_a"])
@pytest.mark.parametrize("sigma", [0.3, UNIFORM_SIGMA, 1.0, 1.3])
def test_total_and_mean_square(law, sigma):
    """The law is a density, and the mean of s^2 is sigma^2, plus 1 for the identity."""
    grid = torch.linspace(0, 4, 20_001, dtype=torch.float64)
    density = LAWS[law](grid, sigma)
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=2e-4)
    assert float(torch.trapezoid(density * grid**2, grid)) == pytest.approx(sigma**2 + (law == "i_plus_a"), rel=5e-4)


def test_edges_of_figure_1():
    """A: [0, 2 sigma]. I + A with sigma < 1 has a gap at zero."""
    s = torch.tensor([0.0, 1.1546, 1.1548, 2.0], dtype=torch.float64)
    assert (quarter_circle_density(s, UNIFORM_SIGMA) > 0).tolist() == [True, True, False, False]
    inside = shifted_density(torch.linspace(0, 2.5, 2501, dtype=torch.float64), UNIFORM_SIGMA) > 0
    low, high = (float(torch.linspace(0, 2.5, 2501)[i]) for i in inside.nonzero().flatten()[[0, -1]])
    assert 0.25 < low < 0.34
    assert 1.86 < high < 1.90
    assert bool(inside[inside.nonzero()[0, 0] : inside.nonzero()[-1, 0]].all())


def test_no_identity_is_felt_by_a_large_a():
    """sigma -> infinity: the law of I + A becomes that of A."""
    grid = torch.linspace(1, 190, 50, dtype=torch.float64)
    torch.testing.assert_close(shifted_density(grid, 100.0), quarter_circle_density(grid, 100.0), rtol=2e-3, atol=0)


@pytest.mark.parametrize("sigma", [0.0, math.nan, math.inf])
@pytest.mark.parametrize("law", ["a", "i_plus_a"])
def test_sigma_must_be_positive(law, sigma):
    with pytest.raises(ValueError, match="sigma must be positive and finite"):
        LAWS[law](torch.ones(1), sigma)
