"""Sparse weights: every entry is a product of two."""

from __future__ import annotations

import torch
from torch import Tensor

from symlab.constraint.factored import Factored, Projector, Split, divide


class Elementwise(Projector):
    """theta = u * w (P = I, so v is not there): twice the parameters.

    With decay a on both, min over u w = theta of (a / 2)(u^2 + w^2) = a |theta|: the lasso's penalty (spred, ICML
    2023). Weights of any shape.
    """

    def factored(self, weight: Tensor, split: Split) -> Factored:
        return Product(split)


class Product(Factored):
    """theta = u * w."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.split = split

    def forward(self, *parts: Tensor) -> Tensor:
        u, w = parts
        return u * w

    def right_inverse(self, theta: Tensor) -> tuple[Tensor, ...]:
        w = self.split(theta.abs())
        return divide(theta, w), w

    def collapsed(self, threshold: float, *parts: Tensor) -> Tensor:
        """Entries |u w| <= threshold are 0."""
        theta = self(*parts)
        return torch.where(theta.abs() > threshold, theta, 0.0)
