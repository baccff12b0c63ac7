"""Damped Gauss-Newton: least squares in one step, the dense solve, and the dense optimizers as optimizers."""

import copy
import io
import math

import pytest
import torch
from torch import nn

from symlab.optim import dense_curvature
from symlab.optim.gauss_newton import gauss_newton
from symlab.optim.newton import newton
from symlab.training.losses import auto, cross_entropy, half_mean_squared_error
from symlab.training.update import update
from tests import reference_curvature as reference

F64 = torch.float64
BOTH = pytest.mark.parametrize("factory", [gauss_newton, newton])


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def net(seed=0, bias=True):
    model = nn.Sequential(nn.Linear(4, 3, bias=bias), nn.Tanh(), nn.Linear(3, 3, bias=bias)).double()
    for i, p in enumerate(model.parameters()):
        p.data = 0.6 * randn(*p.shape, seed=10 * seed + i)
    return model


def test_one_full_step_solves_linear_least_squares():
    model, x, y = nn.Linear(5, 3).double(), randn(20, 5, seed=1), randn(20, 3, seed=2)
    update(model, gauss_newton(model, x, lr=1.0, damping=1e-13), half_mean_squared_error, x, y, 0)
    solution = torch.linalg.lstsq(torch.cat((x, torch.ones(20, 1, dtype=F64)), 1), y).solution.T  # [3, 6]
    torch.testing.assert_close(model.weight.detach(), solution[:, :5], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(model.bias.detach(), solution[:, 5], rtol=1e-9, atol=1e-10)


def functional(shapes):
    """The net of `net` as a function of a list of parameters, for the reference."""

    def call(parameters, x):
        first, first_bias, second, second_bias = parameters
        return torch.tanh(x @ first.T + first_bias) @ second.T + second_bias

    return call


def test_a_step_is_the_dense_damped_solve_with_the_matrix_of_loops():
    model, x, y = net(), randn(6, 4, seed=1), torch.arange(6) % 3
    parameters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    G = reference.ggn(functional(parameters), parameters, x, "nll")
    g = reference.gradient(functional(parameters), parameters, x, y, "nll")
    expected = reference.flat(parameters).detach() - 0.7 * torch.linalg.solve(
        G + 0.01 * torch.eye(len(G), dtype=F64), g
    )
    update(model, gauss_newton(model, x, lr=0.7, damping=0.01), cross_entropy, x, y, 0)
    torch.testing.assert_close(reference.flat(model.parameters()).detach(), expected, rtol=1e-10, atol=1e-12)


@BOTH
def test_a_step_does_not_depend_on_how_many_rows_are_in_memory(factory, monkeypatch):
    moved = []
    for numbers in (2**25, 200):
        monkeypatch.setattr(dense_curvature, "JACOBIAN", numbers)
        model, x, y = net(), randn(7, 4, seed=1), torch.arange(7) % 3
        update(model, factory(model, x, lr=1.0, damping=0.01), cross_entropy, x, y, 0)
        moved.append(reference.flat(model.parameters()).detach())
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-11, atol=1e-13)


@BOTH
def test_a_larger_model_is_refused_with_its_memory(factory):
    with pytest.raises(
        ValueError, match=r"max_weights=26, but the model has 27: .* about 2\.17e-05 GiB .*take .* kfac"
    ):
        factory(net(), torch.zeros(2, 4), lr=1.0, max_weights=26)
    factory(net(), torch.zeros(2, 4), lr=1.0, max_weights=27)


@BOTH
def test_frozen_and_tied_weights(factory):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight
            self.two.bias.requires_grad_(False)

        def forward(self, x):
            return self.two(self.one(x).tanh())

    torch.manual_seed(0)
    model = Tied().double()
    frozen = model.two.bias.detach().clone()
    optimizer = factory(model, torch.zeros(2, 4), lr=0.5, damping=0.1)
    assert [row.tensor for row in optimizer.coverage()] == ["one.weight", "one.bias"]
    x, y = randn(9, 4, seed=1), randn(9, 4, seed=2)
    losses = [update(model, optimizer, auto, x, y, step) for step in range(15)]
    assert losses[-1] < 0.9 * losses[0]
    assert losses == sorted(losses, reverse=True)
    assert torch.equal(model.two.bias, frozen)


@BOTH
@pytest.mark.parametrize("extra", [nn.Identity(), nn.BatchNorm1d(3), nn.Dropout(0.2)])
def test_goes_on_bit_for_bit_with_batch_norm_and_dropout(factory, extra):
    x, y = randn(12, 4, seed=1).float(), torch.arange(12) % 3

    def start():
        model = net()
        return nn.Sequential(model[0], copy.deepcopy(extra), model[1], model[2]).float()

    def run(model, optimizer, first, last):
        return [update(model, optimizer, auto, x, y, step) for step in range(first, last)]

    torch.manual_seed(3)
    model = start()
    optimizer = factory(model, x, lr=0.3, damping=0.05)
    losses = run(model, optimizer, 0, 6)
    torch.manual_seed(3)
    twin = start()
    other = factory(twin, x, lr=0.3, damping=0.05)
    again = run(twin, other, 0, 3)
    file = io.BytesIO()
    torch.save(other.state_dict(), file)
    file.seek(0)
    fresh = factory(twin, x, lr=0.3, damping=0.05)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    twin, fresh = copy.deepcopy((twin, fresh))
    assert again + run(twin, fresh, 3, 6) == losses
    assert losses[-1] < losses[0]


@BOTH
def test_bfloat16_weights_are_solved_in_float64(factory):
    model = net().to(torch.bfloat16)
    x, y = randn(12, 4, seed=1).to(torch.bfloat16), torch.arange(12) % 3
    optimizer = factory(model, x, lr=0.5, damping=0.05)
    losses = [update(model, optimizer, auto, x, y, step) for step in range(8)]
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.dtype is torch.bfloat16 for p in model.parameters())


@BOTH
def test_a_bad_gradient_or_curvature_changes_nothing(factory):
    model, x, y = net(), randn(6, 4, seed=1), torch.arange(6) % 3
    optimizer = factory(model, x, lr=1.0)
    cross_entropy(model(x), y).backward()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=r"call observe\(loss, inputs, targets\) before each step"):
        optimizer.step()
    optimizer.observe(cross_entropy, x * math.nan, y)
    with pytest.raises(FloatingPointError, match="the curvature of the batch holds NaN or inf"):
        optimizer.step()
    model[0].weight.grad[0, 0] = math.nan
    with pytest.raises(FloatingPointError, match=r"the gradient of 0\.weight holds NaN or inf"):
        optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@BOTH
@pytest.mark.parametrize("key", ["lr", "damping", "max_weights"])
def test_numbers_out_of_range_are_refused_by_name(factory, key):
    for value in (0, -1, math.nan, math.inf, True, "1"):
        with pytest.raises((ValueError, TypeError), match=rf"^{key} must be"):
            factory(net(), torch.zeros(2, 4), **({"lr": 1.0} | {key: value}))
