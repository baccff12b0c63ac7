"""Neurons that become equal: decay on their differences."""

from __future__ import annotations

import torch
from torch import Tensor

from symlab.constraint.factored import Factored, Projector, Split, divide, norms


class EqualNeurons(Projector):
    """theta[i] = x[i] - mean_j x[j] + v with x = u * w, for rows i: P takes differences from the mean of the rows (axis
    0: filters, output neurons), I - P keeps the mean v [1, ...].

    With decay a on u and w the penalty at one theta is a min_c sum |theta[i] - c|: input by input, weights gather at
    the median of all neurons. `whole`: w is one number per neuron, the penalty a min_c sum_i ||theta[i] - c||_2: whole
    neurons become equal. Parameters: 2 times those of theta and a row; `whole`: one per neuron and a row. Neurons act
    alike when their biases are equal too: constrain these as well (`where`), also of shape [n].
    """

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole

    def factored(self, weight: Tensor, split: Split) -> Factored:
        if len(weight) < 2:
            raise ValueError(f"equal neurons need two rows or more, got shape {list(weight.shape)}")
        return Differences(split, self.whole, weight[0].numel() if self.whole else 1)


class Differences(Factored):
    """theta = x - mean x + v, x = u * w, means over axis 0."""

    def __init__(self, split: Split, whole: bool, group_size: int) -> None:
        super().__init__()
        self.split, self.whole, self.group_size = split, whole, group_size

    def forward(self, *parts: Tensor) -> Tensor:
        u, w, v = parts
        x = u * w
        return x - x.mean(0, keepdim=True) + v

    def right_inverse(self, theta: Tensor) -> tuple[Tensor, ...]:
        """x = P theta, so that decay is on differences from the start."""
        v = theta.mean(0, keepdim=True)  # [1, ...]
        x = theta - v
        w = self.split(norms(x, self._axes(x)))
        return divide(x, w), w, v

    def collapsed(self, threshold: float, *parts: Tensor) -> Tensor:
        """Entries |x| <= threshold are 0 (`whole`: rows of x with a 2-norm <= threshold): equal exactly in theta."""
        u, w, v = parts
        x = u * w
        common = v - x.mean(0, keepdim=True)
        return torch.where(norms(x, self._axes(x)) > threshold, x, 0.0) + common

    def _axes(self, x: Tensor) -> tuple[int, ...]:
        return (0,) if self.whole else tuple(range(x.ndim))
