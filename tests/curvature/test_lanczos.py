"""Lanczos against dense eigenvalues, in float64; degenerate, low-rank and tiny operators."""

import pytest
import torch

from symlab.curvature.lanczos import extreme_eigenvalues, spectral_density


def symmetric(values, seed=0):
    """A dense matrix with these eigenvalues."""
    n = len(values)
    Q = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).Q
    return (Q * torch.as_tensor(values, dtype=torch.float64)) @ Q.mT


def extremes(A, **keys):
    return extreme_eigenvalues(lambda x: A @ x, len(A), generator=torch.Generator().manual_seed(1), **keys)


@pytest.mark.parametrize("size", [1, 2, 7, 120])
def test_extremes_of_a_random_matrix(size):
    A = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    A = A + A.mT
    truth = torch.linalg.eigvalsh(A)
    found = extremes(A, tolerance=1e-10, steps=size)
    assert found.largest == pytest.approx(float(truth[-1]), rel=1e-10)
    assert found.smallest == pytest.approx(float(truth[0]), rel=1e-10)
    assert found.steps <= size
    assert abs(found.largest - float(truth[-1])) <= found.largest_error
    assert abs(found.smallest - float(truth[0])) <= found.smallest_error


@pytest.mark.parametrize("steps", [3, 8, 15, 30])
def test_an_eigenvalue_lies_within_the_error(steps):
    """Also long before convergence, and never outside of the extremes."""
    truth = torch.logspace(0, -4, 200, dtype=torch.float64)
    found = extremes(symmetric(truth), steps=steps, tolerance=1e-14)
    assert found.steps == steps
    for value, error in ((found.smallest, found.smallest_error), (found.largest, found.largest_error)):
        assert float((truth - value).abs().min()) <= error
        assert float(truth.min()) - 1e-14 <= value <= float(truth.max()) + 1e-14
    assert found.smallest_error < 0.3
    if steps >= 30:
        assert found.largest_error < 1e-4
        assert abs(found.largest - 1) < 1e-8


def test_it_stops_once_the_tolerance_is_met():
    truth = torch.cat([torch.linspace(0, 1, 300, dtype=torch.float64), torch.tensor([-3.0, 4.0])])
    found = extremes(symmetric(truth), steps=300, tolerance=1e-6)
    assert found.steps <= 30
    assert (found.smallest, found.largest) == pytest.approx((-3.0, 4.0), abs=4e-6)


@pytest.mark.parametrize(
    ("values", "steps"),
    [([2.0] * 9, 1), ([0.0] * 6, 1), ([-1.0] * 4 + [3.0] * 5, 2), ([0.0] * 40 + [5.0, 1.0, 2.0], 4), ([-7.0], 1)],
    ids=["one value", "zero", "two values", "rank 3", "size 1"],
)
def test_few_distinct_eigenvalues_are_exact(values, steps):
    found = extremes(symmetric(values), steps=100, tolerance=1e-15)
    assert found.steps == steps
    assert found.smallest == pytest.approx(min(values), abs=1e-13)
    assert found.largest == pytest.approx(max(values), abs=1e-13)
    assert max(found.smallest_error, found.largest_error) < 1e-12


def test_a_float32_operator():
    truth = torch.linspace(1, 2, 50, dtype=torch.float64)
    A = symmetric(truth).float()
    found = extremes(A, dtype=torch.float32, steps=50)
    assert (found.smallest, found.largest) == pytest.approx((1.0, 2.0), abs=1e-5)
    assert found.largest_error >= torch.finfo(torch.float32).eps


def test_the_same_seed_gives_the_same_numbers():
    A = symmetric(torch.linspace(1, 2, 50))
    assert extremes(A, steps=7) == extremes(A, steps=7)


def test_the_density_of_a_full_run_has_the_right_moments_within_its_error():
    truth = torch.linspace(0.1, 2, 100, dtype=torch.float64) ** 2
    A = symmetric(truth)
    found = spectral_density(lambda x: A @ x, 100, probes=40, steps=100, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(found.weights.sum(1), torch.ones(40, dtype=torch.float64))
    for function in (lambda x: x, torch.sqrt, lambda x: x.square()):
        value, error = found.mean(function)
        assert abs(value - float(function(truth).mean())) < 3 * error
        assert 0 < error < 0.1 * value
    levels = torch.tensor([0.005, 0.5, 1.0, 2.0, 4.5], dtype=torch.float64)
    shares, errors = found.below(levels)
    wanted = (truth[:, None] <= levels).double().mean(0)
    assert bool(((shares - wanted).abs() <= 3 * errors + 1e-12).all())
    assert (float(shares[0]), float(shares[-1])) == (0.0, pytest.approx(1.0))


def test_quadrature_is_exact_for_polynomials_of_the_krylov_degree():
    """z^T A^5 z of each probe from 3 steps (degree below 6)."""
    A = symmetric(torch.linspace(-1, 2, 60))
    generator = torch.Generator().manual_seed(3)
    found = spectral_density(lambda x: A @ x, 60, probes=4, steps=3, generator=generator)
    again = torch.Generator().manual_seed(3)
    for r in range(4):
        z = torch.randn(60, generator=again, dtype=torch.float64)
        z = z / z.norm()
        truth = z @ torch.linalg.matrix_power(A, 5) @ z
        torch.testing.assert_close((found.weights[r] * found.nodes[r] ** 5).sum(), truth)


def test_the_density_of_an_operator_with_few_values():
    A = symmetric([0.0] * 30 + [1.0] * 10)
    found = spectral_density(lambda x: A @ x, 40, probes=300, steps=20, generator=torch.Generator().manual_seed(4))
    shares, errors = found.below(torch.tensor([-1e-9, 1e-9, 1.1], dtype=torch.float64))
    assert float(shares[0]) == 0
    assert abs(float(shares[1]) - 0.75) < 3 * float(errors[1]) < 0.03
    assert float(shares[2]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"tolerance": float("nan")}, "tolerance must be positive, got nan"),
        ({"matvec": lambda x: x[:2]}, r"turns shape \[5\] into \[2\]"),
        ({"matvec": lambda x: x.cumsum(0)}, "not symmetric"),
    ],
)
def test_what_cannot_be(keys, message):
    keys = {"matvec": lambda x: x, "size": 5, "generator": torch.Generator()} | keys
    with pytest.raises(ValueError, match=message):
        extreme_eigenvalues(**keys)


def test_a_product_that_is_not_finite():
    with pytest.raises(FloatingPointError, match="product 1 with the operator is not finite"):
        extreme_eigenvalues(lambda x: x / 0, 5, generator=torch.Generator())


def test_a_density_of_one_probe_has_no_error():
    with pytest.raises(ValueError, match="probes must be at least 2, to have an error, got 1"):
        spectral_density(lambda x: x, 5, probes=1, generator=torch.Generator())
