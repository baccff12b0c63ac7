"""A weight as theta = P(u * w) + (I - P) v: what every such parametrization has, and how a weight is split into u, w.

Source: Ziyin, "Symmetry induces structure and constraint of learning" (ICML 2024), algorithm DCS; spred (ICML 2023).

Legend: theta  the weight, of any shape;  u, w  the factors;  v  the part that no constraint touches;  P  projector.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

Split = Callable[[Tensor], Tensor]
"""Sizes |x| >= 0 of what is split -> sizes of the second factor w, >= 0; the first is then u = x / w."""


def unit_split(size: Tensor) -> Tensor:
    """u = x, w = 1. Any start can change its sign, until decay has made |u| and |w| equal."""
    return torch.ones_like(size)


def balanced_split(size: Tensor) -> Tensor:
    """|u| = |w| = sqrt|x|, the split of least u^2 + w^2; the sign is u's.

    Gradient flow on a function of u w conserves u^2 - w^2, with decay a it is that times exp(-2 a t): from a balanced
    start it is 0 for ever, so an entry that reaches 0 stays there and none can change its sign. A large step can.
    An entry that starts at 0 has u = w = 0, where both gradients are 0: it never moves.
    """
    return size.sqrt()


def divide(x: Tensor, w: Tensor) -> Tensor:
    """x / w, and 0 where w = 0."""
    return torch.where(w == 0, torch.zeros_like(x), x / w)


class Factored(nn.Module, ABC):
    """theta = P(u * w) + (I - P) v, the parametrization of one weight, with torch.nn.utils.parametrize.

    What is trained, `parts`, is (u, w) or (u, w, v). `group_size` entries of theta share one entry of the smaller
    factor (1: elementwise). `place` is the weight's position among its module's parameters before it was constrained.
    """

    group_size: int = 1
    place: int = 0

    @abstractmethod
    def forward(self, *parts: Tensor) -> Tensor:
        """theta."""

    @abstractmethod
    def right_inverse(self, theta: Tensor) -> tuple[Tensor, ...]:
        """The parts that `forward` takes to theta."""

    @abstractmethod
    def collapsed(self, threshold: float, *parts: Tensor) -> Tensor:
        """theta with exact zeros: what is not above `threshold` is cut, in the way of this kind."""


class Projector(ABC):
    """Makes the parametrization of a weight. What it holds is checked when it is made."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"

    @abstractmethod
    def factored(self, weight: Tensor, split: Split) -> Factored:
        """The parametrization for a weight of this shape, dtype and device. Raises ValueError if there is none."""


def norms(theta: Tensor, axes: tuple[int, ...]) -> Tensor:
    """2-norms over all axes but `axes`, which keep their sizes; the others have size 1."""
    over = tuple(axis for axis in range(theta.ndim) if axis not in axes)
    return theta.square().sum(over, keepdim=True).sqrt() if over else theta.abs()


def entries_per_group(shape: torch.Size, axes: tuple[int, ...]) -> int:
    """Number of entries that share one index along `axes`."""
    return math.prod(size for axis, size in enumerate(shape) if axis not in axes)
