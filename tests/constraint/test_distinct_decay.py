"""Decay with a strength of its own per weight: its minimum, its path, and which symmetries it removes."""

import numpy as np
import pytest
import torch
from torch import nn

from symlab.constraint.distinct_decay import distinct_decay
from symlab.constraint.remove_symmetry import remove_symmetry


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def linear(spread=0.3, shift=False):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 2, bias=False).double()
    if shift:
        remove_symmetry(model, 0.5, generator=generator(1))
    return distinct_decay(model, spread, generator=generator())


def test_divisors_are_distinct_and_within_the_spread():
    model = distinct_decay(nn.Linear(30, 20), 0.05, generator=generator())
    d = model.parametrizations.weight[0].divisor
    assert float(d.min()) > 0.95
    assert float(d.max()) < 1.05
    assert float(d.std()) == pytest.approx(0.1 / 12**0.5, rel=0.1)
    assert len(d.unique()) == d.numel()


@pytest.mark.parametrize("shift", [False, True])
def test_plain_decay_ends_at_the_minimum_of_the_weighted_one(shift):
    """min (1/2) ||X W^T - Y||^2 + (a/2) sum d^2 (W - s)^2, row by row by numpy's solver."""
    model = linear(shift=shift)
    X, Y = torch.randn(9, 4, generator=generator(2)).double(), torch.randn(9, 2, generator=generator(3)).double()
    buffers = {name.rpartition(".")[2]: b.numpy() for name, b in model.named_buffers()}
    d, s = buffers["divisor"], buffers.get("shift", np.zeros((2, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, weight_decay=2.0)
    for _ in range(800):
        optimizer.zero_grad()
        (0.5 * (model(X) - Y).square().sum()).backward()
        optimizer.step()
    for row in range(2):
        D = np.diag(2.0 * d[row] ** 2)
        x, y = X.numpy(), Y.numpy()
        wanted = np.linalg.solve(x.T @ x + D, x.T @ y[:, row] + D @ s[row])
        np.testing.assert_allclose(model.weight[row].detach().numpy(), wanted, rtol=1e-9)


def test_one_step_has_its_own_rate_per_weight():
    """theta <- theta - lr (g / d^2 + a theta)."""
    model = linear()
    d, theta = model.parametrizations.weight[0].divisor.clone(), model.weight.detach().clone()
    x = torch.randn(4, generator=generator(2)).double()
    model(x).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(model.weight.detach(), theta - 0.1 * (x / d**2 + 0.5 * theta), rtol=1e-12, atol=1e-14)


def penalty(model, theta):
    """||phi||^2 of the phi that makes theta."""
    return float(model.parametrizations.weight[0].right_inverse(theta).square().sum())


def test_exchanges_and_rotations_change_the_decay_but_signs_do_not():
    model = linear()
    theta = model.weight.detach()
    before = penalty(model, theta)
    rotation = torch.linalg.qr(torch.randn(2, 2, generator=generator(4)).double()).Q
    for moved in (theta.flip(0), rotation @ theta, theta[:, [1, 0, 2, 3]]):
        assert float(moved.square().sum()) == pytest.approx(float(theta.square().sum()), rel=1e-12)
        assert abs(penalty(model, moved) / before - 1) > 1e-3
    assert penalty(model, -theta) == before
