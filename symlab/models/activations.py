"""Elementwise activations as modules, so that a trace of a model sees each of them by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Sin(nn.Module):
    """sin(x), elementwise; odd."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.sin(inputs)


class Erf(nn.Module):
    """erf(x) = 2 / sqrt(pi) * integral of exp(-t^2) from 0 to x, elementwise; odd."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.erf(inputs)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "sin": Sin,
    "erf": Erf,
    "identity": nn.Identity,
}


def activation_module(name: str) -> nn.Module:
    """The activation called `name`; ValueError that lists the names if there is none."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]()
