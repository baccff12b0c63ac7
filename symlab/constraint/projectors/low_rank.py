"""Weights of low rank: a product of two matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from symlab.constraint.factored import Factored, Projector, Split, divide


class LowRank(Projector):
    """theta = U V^T, with theta [n, ...] as a matrix [n, m] (a kernel: [out, in k k]), U [n, r], V [m, r].

    With decay a on both, the least of (a / 2)(||U||^2 + ||V||^2) at one theta is a times its nuclear norm, the sum of
    the singular values s. `rank` r is at most min(n, m), which is what None means; with a smaller one the start is the
    best approximation of rank r. The split is that of s: U = left vectors * s / split(s), V = right vectors * split(s).
    """

    def __init__(self, rank: int | None = None) -> None:
        if rank is not None and not (rank >= 1 and rank % 1 == 0):
            raise ValueError(f"rank must be at least 1, a whole number, or None for all, got {rank}")
        self.rank = rank

    def factored(self, weight: Tensor, split: Split) -> Factored:
        if weight.ndim < 2:
            raise ValueError(f"low rank is for weights with two or more axes, got shape {list(weight.shape)}")
        full = min(len(weight), weight[0].numel())
        if self.rank is not None and self.rank > full:
            raise ValueError(f"rank {self.rank} is above {full}, the rank that shape {list(weight.shape)} can have")
        return MatrixProduct(split, weight.shape, self.rank or full)


class MatrixProduct(Factored):
    """theta = (U V^T) in the shape of the weight."""

    def __init__(self, split: Split, shape: torch.Size, rank: int) -> None:
        super().__init__()
        self.split, self.shape, self.rank = split, shape, rank

    def forward(self, *parts: Tensor) -> Tensor:
        U, V = parts  # [n, r], [m, r]
        return (U @ V.mT).view(self.shape)

    def right_inverse(self, theta: Tensor) -> tuple[Tensor, ...]:
        left, s, right = _singular(theta)
        left, s, right = left[:, : self.rank], s[: self.rank], right[:, : self.rank]
        w = self.split(s)
        return left * divide(s, w), right * w

    def collapsed(self, threshold: float, *parts: Tensor) -> Tensor:
        """Singular values <= threshold are cut; those above stay, so the rank is their number."""
        left, s, right = _singular(self(*parts))
        kept = s > threshold
        if bool(kept.all()):
            return self(*parts)
        return ((left[:, kept] * s[kept]) @ right[:, kept].mT).view(self.shape)


def _singular(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Left vectors [n, k], values [k] and right vectors [m, k] of theta as a matrix, k = min(n, m)."""
    left, s, right = torch.linalg.svd(theta.flatten(1).double(), full_matrices=False)
    return left.to(theta.dtype), s.to(theta.dtype), right.mT.to(theta.dtype)
