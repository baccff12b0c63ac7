"""The adapter to pytorch-optimizer's Shampoo, against the update written out."""

import builtins

import numpy as np
import pytest
import torch
from torch import nn

from symlab.optim.shampoo import shampoo


def inverse_root(C, exponent):
    values, vectors = np.linalg.eigh(C)
    return vectors @ np.diag(values**exponent) @ vectors.T


def test_update_of_the_paper():
    pytest.importorskip("pytorch_optimizer")
    model = nn.Linear(4, 3, bias=False).double()
    optimizer = shampoo(model, torch.zeros(1, 4), lr=0.1, eps=1e-3)
    rng = np.random.default_rng(0)
    W, L, R = model.weight.detach().numpy().copy(), 1e-3 * np.eye(3), 1e-3 * np.eye(4)
    for _ in range(5):
        G = rng.normal(size=(3, 4))
        model.weight.grad = torch.from_numpy(G.copy())
        optimizer.step()
        L, R = L + G @ G.T, R + G.T @ G
        W = W - 0.1 * inverse_root(L, -0.25) @ G @ inverse_root(R, -0.25)
        np.testing.assert_allclose(model.weight.detach().numpy(), W, rtol=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"lr": 0.0}, "lr must be"), ({"eps": 0.0}, "eps must be"), ({"update_every": 0}, "update_every must be")],
)
def test_values_out_of_range(changes, message):
    with pytest.raises(ValueError, match=message):
        shampoo(nn.Linear(2, 2), torch.zeros(1, 2), **({"lr": 0.1} | changes))


def test_missing_package_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pytorch_optimizer":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'symlab\[baselines\]'"):
        shampoo(nn.Linear(2, 2), torch.zeros(1, 2), lr=0.1)
