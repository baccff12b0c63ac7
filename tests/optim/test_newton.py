"""Damped saddle-free Newton: a quadratic in one step, the step by hand, away from a saddle."""

import pytest
import torch
from torch import nn

from symlab.optim.newton import newton
from symlab.training.losses import half_mean_squared_error
from symlab.training.update import update
from tests import reference_curvature as reference
from tests.optim.test_gauss_newton import F64, functional, net, randn


def test_a_quadratic_is_solved_in_one_step():
    model, x, y = nn.Linear(5, 2, bias=False).double(), randn(20, 5, seed=1), randn(20, 2, seed=2)
    update(model, newton(model, x, lr=1.0, damping=1e-13), half_mean_squared_error, x, y, 0)
    torch.testing.assert_close(model.weight.detach(), torch.linalg.lstsq(x, y).solution.T, rtol=1e-9, atol=1e-10)


def test_a_step_is_that_of_the_hessian_of_loops():
    model, x, y = net(), randn(6, 4, seed=1), randn(6, 3, seed=2)
    parameters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    H = reference.hessian(functional(parameters), parameters, x, y, "mse").detach()
    g = reference.gradient(functional(parameters), parameters, x, y, "mse").detach()
    values, vectors = torch.linalg.eigh((H + H.T) / 2)
    assert float(values[0]) < -1e-3  # a direction of negative curvature
    step = sum(v * (v @ g) / (abs(float(value)) + 0.01) for value, v in zip(values, vectors.T, strict=True))
    expected = reference.flat(parameters).detach() - 0.7 * step
    update(model, newton(model, x, lr=0.7, damping=0.01), half_mean_squared_error, x, y, 0)
    torch.testing.assert_close(reference.flat(model.parameters()).detach(), expected, rtol=1e-9, atol=1e-11)


class Product(nn.Module):
    """f = u w x: with the target 1 it has a saddle at u = w = 0."""

    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.tensor(0.01, dtype=F64))
        self.w = nn.Parameter(torch.tensor(0.02, dtype=F64))

    def forward(self, x):
        return self.u * self.w * x


def test_it_leaves_a_saddle_where_newtons_method_would_go_to_it():
    model, x, y = Product(), torch.ones(3, 1, dtype=F64), torch.ones(3, 1, dtype=F64)
    optimizer = newton(model, x, lr=1.0, damping=0.1)
    losses = [update(model, optimizer, half_mean_squared_error, x, y, step) for step in range(15)]
    assert losses[0] == pytest.approx(0.5, rel=1e-3)
    assert losses[-1] < 1e-6
