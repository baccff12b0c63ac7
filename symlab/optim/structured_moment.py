"""Running second moments with the structure of a symmetry, and their roots: pure functions on tensors.

Legend: k  isotypic block;  G_k [1, m_k, N_k]  the pieces of a gradient in it;  D_k  dimension of its irreducible piece;
M_k [m_k, m_k]  running second moment.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from symlab.symmetry.blocks import Block
from symlab.symmetry.spectrum import batched_eigh


def zero_moments(blocks: Sequence[Block], pieces: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """M_k = 0 [m_k, m_k] for each block, on the device of its pieces."""
    return [g.new_zeros(b.copies, b.copies, dtype=dtype) for b, g in zip(blocks, pieces, strict=True)]


def update_moments(moments: Sequence[Tensor], blocks: Sequence[Block], pieces: Sequence[Tensor], beta: float) -> None:
    """M_k <- beta M_k + (1 - beta) G_k G_k^T / D_k, in place, in the precision of M_k."""
    for block, moment, g in zip(blocks, moments, pieces, strict=True):
        if block.copies == 1:
            norm = torch.linalg.vector_norm(g, dtype=moment.dtype)
            moment.mul_(beta).add_(norm.square() * ((1 - beta) / block.dimension))
        else:
            rows = g[0].to(moment.dtype)  # [m, N]
            moment.addmm_(rows, rows.mT, beta=beta, alpha=(1 - beta) / block.dimension)


def power_roots(
    moments: Sequence[Tensor], correction: float, damping: float, exponent: float
) -> list[tuple[Tensor, Tensor]]:
    """Q [m, m] and f [m] of each block: (M / correction + eps I)^exponent = Q diag(f) Q^T, eps = damping x largest.

    Eigenvalues are clamped at zero, then floored at m x machine epsilon of the largest one; f = 0 for a zero matrix.
    """
    roots = []
    for values, vectors in batched_eigh(moments):
        values = values.clamp(min=0) / correction
        largest = values[-1]
        floor = values.numel() * torch.finfo(values.dtype).eps * largest
        powers = (values + damping * largest).clamp(min=floor) ** exponent
        roots.append((vectors, torch.where(largest > 0, powers, 0.0)))
    return roots


def apply_root(vectors: Tensor, powers: Tensor, rows: Tensor) -> Tensor:
    """Q diag(f) Q^T G for G [1, m, N], in the dtype of G.

    The coordinates Q^T G are taken in the precision of Q, because they span the square root of its range of
    eigenvalues; once scaled they are of one size, and the precision of G is enough to turn them back.
    """
    if powers.numel() == 1:
        return rows * powers.to(rows.dtype)
    coordinates = powers[:, None] * (vectors.mT @ rows[0].to(vectors.dtype))  # [m, N]
    return (vectors.to(rows.dtype) @ coordinates.to(rows.dtype))[None]
