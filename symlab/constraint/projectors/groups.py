"""Weights that vanish in groups: all of a filter, of a neuron, of an input feature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from symlab.constraint.factored import Factored, Projector, Split, divide, entries_per_group, norms


class Groups(Projector):
    """theta[g] = scale[g] * w[g]: one extra number per group g of entries, those that share their index along `axes`.

    axes=0: filters, output neurons, tokens of an embedding; axes=1: input channels, input features (of a transposed
    convolution, whose tensor has inputs first, the other way round); axes=(0, 1): kernels.

    With decay a on both, the least of (a / 2)(scale^2 + ||w||^2) at one theta is a ||theta[g]||_2: the group lasso with
    the same weight for every group, whatever its size. The usual weights are sqrt(entries of the group):
    `parameter_groups(..., by_size=True)` has them; without, layers of small groups are shrunk less.
    """

    def __init__(self, axes: int | Sequence[int] = 0) -> None:
        self.axes = (axes,) if isinstance(axes, int) else tuple(axes)
        if not self.axes or min(self.axes) < 0 or len(set(self.axes)) < len(self.axes):
            raise ValueError(f"axes: one or more axes of the weight, from 0 on, each once; got {axes}")

    def factored(self, weight: Tensor, split: Split) -> Factored:
        if max(self.axes) >= weight.ndim:
            raise ValueError(f"axes {list(self.axes)} do not fit a weight of shape {list(weight.shape)}")
        return ScaledGroups(split, self.axes, entries_per_group(weight.shape, self.axes))


class ScaledGroups(Factored):
    """theta = scale * w; scale has the size of theta along `axes` and 1 elsewhere."""

    def __init__(self, split: Split, axes: tuple[int, ...], group_size: int) -> None:
        super().__init__()
        self.split, self.axes, self.group_size = split, axes, group_size

    def forward(self, *parts: Tensor) -> Tensor:
        w, scale = parts
        return w * scale

    def right_inverse(self, theta: Tensor) -> tuple[Tensor, ...]:
        scale = self.split(norms(theta, self.axes))
        return divide(theta, scale), scale

    def collapsed(self, threshold: float, *parts: Tensor) -> Tensor:
        """Groups with ||theta[g]||_2 = |scale| ||w||_2 <= threshold are 0, all of them; no other entry is changed."""
        theta = self(*parts)
        return torch.where(norms(theta, self.axes) > threshold, theta, 0.0)
