"""Running second moments with the structure of a symmetry, and their roots: pure functions on tensors.

Legend: k  isotypic block;  G_k [S, m_k, N_k]  the pieces in it, first those of a gradient;
D_k  dimension of its irreducible piece;  M_k [m_k, m_k]  running second moment.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from symlab.symmetry.blocks import Block


def in_precision(blocks: Sequence[Block], pieces: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The pieces G_k [S, m_k, N_k], those with m_k > 1 in the precision of the statistics."""
    return [g.to(dtype) if block.copies > 1 else g for block, g in zip(blocks, pieces, strict=True)]


def second_moments(blocks: Sequence[Block], pieces: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """G_k G_k^T / D_k [m_k, m_k] of each block, G_k [m_k, N_k] the first of the pieces of `in_precision`."""
    moments = []
    for block, g in zip(blocks, pieces, strict=True):
        if block.copies == 1:
            moments.append(torch.linalg.vector_norm(g[0], dtype=dtype).square().div(block.dimension).reshape(1, 1))
        else:
            moments.append((g[0] @ g[0].mT).div_(block.dimension))
    return moments


def update_moments(moments: Sequence[Tensor], increments: Sequence[Tensor], beta: float) -> None:
    """M_k <- beta M_k + (1 - beta) G_k G_k^T / D_k, in place."""
    torch._foreach_lerp_(list(moments), list(increments), 1 - beta)


def refreshed(moments: Sequence[Tensor], bases: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """diag(Q^T M_k Q) [m] in earlier eigenvectors Q [m, m]: the eigenvalues' successors when the basis is kept.

    Every direction is still scaled by its own present second moment, so that a gradient outside the range of the
    statistics which gave Q is not blown up.
    """
    return [((q * (moment @ q)).sum(0), q) for moment, q in zip(moments, bases, strict=True)]


def power_of(values: Tensor, correction: float, damping: float, exponent: float) -> Tensor:
    """((lambda + eps) / correction)^exponent for the eigenvalues [m] of one M_k, eps = damping x the largest.

    Eigenvalues are floored at m x machine epsilon of the largest one, and at the smallest normal number: the power of a
    zero matrix is large but finite, and the pieces that it meets are zero.
    """
    precision = torch.finfo(values.dtype)
    largest = values.amax(dim=0, keepdim=True)  # [1]
    powers = torch.maximum(values, largest * (values.numel() * precision.eps))  # [m]
    if damping:
        powers += damping * largest
    return powers.clamp_(min=precision.tiny).div_(correction).pow_(exponent)


def apply_root(vectors: Tensor, powers: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Q diag(f) Q^T G for G [1, m, N], in `dtype`.

    All that meets the largest f is taken in the precision of Q, because G spans the square root of its range of
    eigenvalues: for wide G the matrix Q diag(f) Q^T, else the coordinates Q^T G. Once scaled those are of one size, and
    the precision of the weights is enough to turn them back.
    """
    m, n = rows.shape[-2:]
    if m == 1:
        return rows * powers.clamp(max=torch.finfo(dtype).max).to(dtype)  # finite, so that zero rows stay zero
    if n > 2 * m:
        return (((vectors * powers) @ vectors.mT) @ rows[0]).to(dtype)[None]
    coordinates = (vectors.mT @ rows[0]).mul_(powers[:, None])  # [m, N]
    return (vectors.to(dtype) @ coordinates.to(dtype))[None]


def matrix_of(vectors: Tensor, powers: Tensor, dtype: torch.dtype) -> Tensor:
    """Q diag(f) Q^T [m, m] in `dtype`, finite."""
    largest = torch.finfo(dtype).max
    if powers.numel() == 1:
        return powers.clamp(max=largest).to(dtype).reshape(1, 1)
    return ((vectors * powers) @ vectors.mT).clamp_(-largest, largest).to(dtype)


def apply_kept(roots: Sequence[Tensor], bounds: Sequence[Tensor], pieces: Sequence[Tensor]) -> list[Tensor]:
    """R_k G_k [1, m, N] for roots R_k [m, m] of earlier statistics, each at most of norm `bounds` [K].

    A gradient outside the range of the earlier statistics would be blown up without a bound.
    """
    turned = [g * root if root.numel() == 1 else (root @ g[0])[None] for root, g in zip(roots, pieces, strict=True)]
    for x, norm, bound in zip(turned, torch._foreach_norm(turned), bounds, strict=True):
        x.mul_((bound / norm.clamp_min(torch.finfo(x.dtype).tiny)).clamp_max_(1.0))
    return turned
