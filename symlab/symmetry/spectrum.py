"""Eigendecompositions of many small symmetric matrices, batched over equal sizes.

Legend: M [m, m]  symmetric matrix;  its eigenvalues [m], ascending;  its eigenvectors [m, m], in columns.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor


def batched_eigh(matrices: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Eigenvalues [m] (ascending) and eigenvectors [m, m] of each M, one call of `torch.linalg.eigh` per distinct m.

    Each M is symmetrised first, because eigh reads one triangle only. Half precision is computed in float32 (there is
    no half-precision kernel). If the solver fails in float32 the group is solved again in float64, with a warning.

    Raises:
        FloatingPointError: a matrix holds NaN or inf.
    """
    results: list[tuple[Tensor, Tensor] | None] = [None] * len(matrices)
    by_size: dict[int, list[int]] = {}
    for i, matrix in enumerate(matrices):
        by_size.setdefault(matrix.shape[-1], []).append(i)
    for size, indices in by_size.items():
        stack = torch.stack([matrices[i] for i in indices])  # [b, m, m]
        values, vectors = (stack[..., 0], torch.ones_like(stack)) if size == 1 else _eigh(stack)
        for i, w, q in zip(indices, values, vectors, strict=True):
            results[i] = (w, q)
    return [result for result in results if result is not None]


def _eigh(stack: Tensor) -> tuple[Tensor, Tensor]:
    if not bool(stack.isfinite().all()):
        raise FloatingPointError(f"a {stack.shape[-1]} x {stack.shape[-1]} block holds NaN or inf: no spectrum")
    dtype = stack.dtype
    work = stack if dtype in (torch.float32, torch.float64) else stack.float()
    work = (work + work.mT) / 2
    try:
        values, vectors = torch.linalg.eigh(work)
    except torch.linalg.LinAlgError:
        if work.dtype is torch.float64:
            raise
        size = stack.shape[-1]
        warnings.warn(f"eigh of a {size} x {size} block failed in {work.dtype}: retried in float64", stacklevel=2)
        values, vectors = torch.linalg.eigh(work.double())
    return values.to(dtype), vectors.to(dtype)
