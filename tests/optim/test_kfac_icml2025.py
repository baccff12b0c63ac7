"""The released KFAC: its update written out, the size of its fault, and its behaviour as an optimizer."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn

from symlab.optim.kfac_icml2025 import kfac_icml2025
from symlab.training.losses import auto, half_mean_squared_error
from symlab.training.update import update

F64 = torch.float64


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def net(dtype=F64):
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2, bias=False)).to(dtype)
    for i, p in enumerate(model.parameters()):
        p.data = randn(*p.shape, seed=i).to(dtype)
    return model


X, Y = randn(30, 4, seed=5), randn(30, 2, seed=6)


def test_its_update_written_out():
    """Two layers with tanh by hand, gradients of the mean loss, running means that start at the first batch."""
    model = net()
    optimizer = kfac_icml2025(model, X, lr=0.01, damping=0.05, beta=0.7)
    weights = [p.detach().clone() for p in model.parameters()]
    factors = None
    for step in range(4):
        x, y = X[step : step + 20], Y[step : step + 20]
        hidden = torch.tanh(x @ weights[0].T)
        d_outer = (hidden @ weights[1].T - y) / 20
        d_inner = (d_outer @ weights[1]) * (1 - hidden**2)
        new = [(a.T @ a / 20, d.T @ d / 20) for a, d in ((x, d_inner), (hidden, d_outer))]
        factors = new if factors is None else [
            tuple(0.7 * old + 0.3 * now for old, now in zip(before, after, strict=True))
            for before, after in zip(factors, new, strict=True)
        ]  # fmt: skip
        gradients = (d_inner.T @ x, d_outer.T @ hidden)
        for weight, gradient, (A, G) in zip(weights, gradients, factors, strict=True):
            damped = [M + 0.05 * torch.eye(len(M), dtype=F64) for M in (G, A)]
            weight -= 0.01 * torch.linalg.inv(damped[0]) @ gradient @ torch.linalg.inv(damped[1])
        update(model, optimizer, half_mean_squared_error, x, y, step)
        for p, weight in zip(model.parameters(), weights, strict=True):
            torch.testing.assert_close(p.detach(), weight, rtol=1e-12, atol=1e-14)


def test_the_output_factor_is_the_square_of_the_number_of_rows_too_small():
    sizes = []
    for repeats in (1, 4):
        model = net()
        optimizer = kfac_icml2025(model, X, lr=1e-9, damping=1.0)
        update(model, optimizer, half_mean_squared_error, X.repeat(repeats, 1), Y.repeat(repeats, 1), 0)
        sizes.append(optimizer.state[model[2].weight]["output_factor"])
    residual = (net()(X) - Y).detach()
    torch.testing.assert_close(sizes[0] * 30**2, residual.T @ residual / 30, rtol=1e-12, atol=0)
    torch.testing.assert_close(sizes[1] * 4**2, sizes[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_goes_on_bit_for_bit(dtype):
    x, y = X.to(dtype), Y.to(dtype)
    model = net(dtype)
    optimizer = kfac_icml2025(model, x, lr=0.01, damping=0.1)
    for step in range(3):
        update(model, optimizer, auto, x, y, step)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twin = copy.deepcopy(model)
    fresh = kfac_icml2025(twin, x, lr=0.5, damping=0.1)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert fresh.state[twin[0].weight]["input_factor"].dtype is torch.float32
    pairs = [
        (model, optimizer),
        (twin, fresh),
        copy.deepcopy((model, optimizer)),
        pickle.loads(pickle.dumps((model, optimizer))),
    ]
    losses = [[update(*pair, auto, x, y, step) for step in range(3, 7)] for pair in pairs]
    assert losses[1:] == 3 * losses[:1]
    assert losses[0][-1] < losses[0][0]


def test_other_tensors_are_refused_by_name():
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    with pytest.raises(
        ValueError, match=r"not 1\.weight \(not of a linear or convolution layer\): take optimizer kfac"
    ):
        kfac_icml2025(model, torch.zeros(2, 4), lr=0.1)


def test_one_bad_number_raises_and_changes_nothing():
    model = net()
    optimizer = kfac_icml2025(model, X, lr=0.01)
    with pytest.raises(RuntimeError, match=r"call observe\(loss, inputs, targets\) before each step"):
        optimizer.step()
    update(model, optimizer, auto, X, Y, 0)
    before = copy.deepcopy((list(model.parameters()), optimizer.state_dict()["state"]))
    optimizer.observe(auto, X * math.nan, Y)
    with pytest.raises(FloatingPointError, match=r"the Kronecker factors of 0\.weight hold NaN or inf"):
        optimizer.step()
    model[0].weight.grad[0, 0] = math.inf
    with pytest.raises(FloatingPointError, match=r"the gradient of 0\.weight holds NaN or inf"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before[0], strict=True))
    for index, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, before[1][index][key]) for key, value in state.items())


@pytest.mark.parametrize(
    ("key", "values"), [("lr", [0, -1, math.nan, 1e3]), ("damping", [0, -1]), ("beta", [1.0, True])]
)
def test_numbers_out_of_range_are_refused_by_name(key, values):
    for value in values:
        with pytest.raises((ValueError, TypeError), match=rf"^{key} must be"):
            kfac_icml2025(net(), X, **({"lr": 0.1} | {key: value}))
