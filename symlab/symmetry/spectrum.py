"""Eigendecompositions of many small symmetric matrices, batched over equal sizes.

Legend: M [m, m]  symmetric matrix;  its eigenvalues [m], ascending;  its eigenvectors [m, m], in columns.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor


def batched_eigh(matrices: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Eigenvalues [m] (ascending) and eigenvectors [m, m] of each M, one call of `torch.linalg.eigh` per distinct m.

    eigh reads one triangle: the caller sees to it that M is symmetric. Half precision is computed in float32 (there is
    no half-precision kernel). If the solver fails in float32 the group is solved again in float64, with a warning.

    Raises:
        FloatingPointError: a matrix holds NaN or inf.
    """
    results: dict[int, tuple[Tensor, Tensor]] = {}
    by_size: dict[int, list[int]] = {}
    for i, matrix in enumerate(matrices):
        by_size.setdefault(matrix.shape[-1], []).append(i)
    for size, indices in by_size.items():
        if size == 1:
            results.update((i, (matrices[i][0], torch.ones_like(matrices[i]))) for i in indices)
        elif len(indices) == 1:
            results[indices[0]] = _eigh(matrices[indices[0]])
        else:
            values, vectors = _eigh(torch.stack([matrices[i] for i in indices]))  # [b, m], [b, m, m]
            results.update((i, (values[j], vectors[j])) for j, i in enumerate(indices))
    return [results[i] for i in range(len(matrices))]


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    dtype = matrix.dtype
    work = matrix if dtype in (torch.float32, torch.float64) else matrix.float()
    try:
        values, vectors = torch.linalg.eigh(work)
    except torch.linalg.LinAlgError:
        size = matrix.shape[-1]
        if not bool(matrix.isfinite().all()):
            raise FloatingPointError(f"a {size} x {size} block holds NaN or inf: it has no spectrum") from None
        if work.dtype is torch.float64:
            raise
        warnings.warn(f"eigh of a {size} x {size} block failed in {work.dtype}: retried in float64", stacklevel=3)
        values, vectors = torch.linalg.eigh(work.double())
    return values.to(dtype), vectors.to(dtype)
