"""Shampoo against the update written out in numpy, and against pytorch-optimizer's."""

import numpy as np
import pytest
import torch
from torch import nn

from symlab.optim.shampoo import shampoo


def inverse_root(C, exponent):
    values, vectors = np.linalg.eigh(C)
    return vectors @ np.diag(values**exponent) @ vectors.T


def linear(rows, columns):
    torch.manual_seed(0)
    return nn.Linear(columns, rows, bias=False).double()


@pytest.mark.parametrize(("momentum", "every", "decay"), [(0.0, 1, 0.0), (0.9, 1, 0.5), (0.0, 3, 0.0), (0.5, 2, 0.0)])
def test_update_of_the_paper(momentum, every, decay):
    model = linear(3, 4)
    options = {"momentum": momentum, "update_every": every, "weight_decay": decay}
    optimizer = shampoo(model, torch.zeros(1, 4), lr=0.1, eps=1e-3, **options)
    rng = np.random.default_rng(0)
    W, L, R, B = model.weight.detach().numpy().copy(), 1e-3 * np.eye(3), 1e-3 * np.eye(4), np.zeros((3, 4))
    for t in range(7):
        G = rng.normal(size=(3, 4))
        model.weight.grad = torch.from_numpy(G.copy())
        optimizer.step()
        L, R = L + G @ G.T, R + G.T @ G
        if t % every == 0:
            left, right = inverse_root(L, -0.25), inverse_root(R, -0.25)
        B = momentum * B + left @ G @ right
        W = (1 - 0.1 * decay) * W - 0.1 * B
        np.testing.assert_allclose(model.weight.detach().numpy(), W, rtol=1e-9)
        np.testing.assert_array_equal(model.weight.grad.numpy(), G)


def test_a_tensor_of_three_dimensions_has_three_statistics_and_exponent_one_sixth():
    torch.manual_seed(0)
    model = nn.Conv1d(3, 2, 4, bias=False).double()
    optimizer = shampoo(model, torch.zeros(1), lr=0.1, eps=1e-3)
    W, statistics = model.weight.detach().numpy().copy(), [1e-3 * np.eye(n) for n in (2, 3, 4)]
    for _ in range(3):
        G = np.random.default_rng(1).normal(size=(2, 3, 4))
        model.weight.grad = torch.from_numpy(G.copy())
        optimizer.step()
        statistics[0] += np.einsum("abc,xbc->ax", G, G)
        statistics[1] += np.einsum("abc,axc->bx", G, G)
        statistics[2] += np.einsum("abc,abx->cx", G, G)
        W -= 0.1 * np.einsum("abc,ax,by,cz->xyz", G, *[inverse_root(L, -1 / 6) for L in statistics])
        np.testing.assert_allclose(model.weight.detach().numpy(), W, rtol=1e-9)


def test_it_is_the_library_s_without_momentum():
    library = pytest.importorskip("pytorch_optimizer").Shampoo
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 4)).double()
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 4)).double()
    one = shampoo(mine, torch.zeros(1), lr=0.1, eps=1e-4)
    other = library(theirs.parameters(), lr=0.1, matrix_eps=1e-4)
    for _ in range(4):
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn(p.shape, dtype=p.dtype)
            q.grad = p.grad.clone()
        one.step()
        other.step()
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-12)


def test_statistics_are_float64_and_the_table_names_them():
    model = nn.Sequential(nn.Linear(4, 3), nn.Conv2d(2, 3, 2)).to(torch.bfloat16)
    optimizer = shampoo(model, torch.zeros(1), lr=0.1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    state = optimizer.state[model[0].weight]
    assert {s.dtype for s in state["statistics"]} == {torch.float64}
    assert {r.dtype for r in state["roots"]} == {torch.float32}
    assert optimizer.coverage()[2] == ("1.weight", "statistics of 3 x 3, 2 x 2, 2 x 2, 2 x 2", 24)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.0}, "lr must be"),
        ({"eps": 0.0}, "eps must be"),
        ({"update_every": 0}, "update_every must be"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"weight_decay": -1}, "weight_decay must be"),
    ],
)
def test_values_out_of_range(changes, message):
    with pytest.raises(ValueError, match=message):
        shampoo(nn.Linear(2, 2), torch.zeros(1, 2), **({"lr": 0.1} | changes))
