"""Cholesky roots of damped positive semi-definite matrices, also of those that rounding has made indefinite."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor


def damped_roots(matrices: Sequence[Tensor], dampings: Sequence[Tensor]) -> list[Tensor]:
    """Lower triangular L with L L^T = M + d I for each M [n, n] and its d > 0 (0-d). Equal sizes go in one batch.

    A matrix that is not positive definite in its own precision is taken again in float64, with a warning, its negative
    eigenvalues (which only rounding can make) set to 0.

    Raises:
        FloatingPointError: a matrix or damping holds NaN or inf.
    """
    roots: list[Tensor] = list(matrices)
    kinds: dict[tuple[int, torch.dtype, torch.device], list[int]] = {}
    for i, matrix in enumerate(matrices):
        kinds.setdefault((len(matrix), matrix.dtype, matrix.device), []).append(i)
    for members in kinds.values():
        stacked = torch.stack([matrices[i] for i in members])  # [S, n, n]
        stacked.diagonal(dim1=1, dim2=2).add_(torch.stack([dampings[i] for i in members]).to(stacked).unsqueeze(-1))
        found, info = torch.linalg.cholesky_ex(stacked)  # [S, n, n]
        failed = [False] * len(members) if not bool(info.any()) else (info != 0).tolist()
        for i, root, bad in zip(members, found, failed, strict=True):
            roots[i] = _root_in_float64(matrices[i], dampings[i]) if bad else root
    return roots


def _root_in_float64(matrix: Tensor, damping: Tensor) -> Tensor:
    if not bool(torch.isfinite(matrix).all() & torch.isfinite(damping)):
        raise FloatingPointError("a matrix to be inverted holds NaN or inf")
    n = len(matrix)
    warnings.warn(
        f"a {n} x {n} matrix with damping {float(damping):.3g} is not positive definite in {matrix.dtype}: "
        "its root is taken in float64",
        stacklevel=3,
    )
    values, vectors = torch.linalg.eigh(matrix.double())
    eps = torch.finfo(torch.float64).eps
    values = values.clamp(min=0) + damping.double().clamp(min=n * eps * float(values[-1].clamp(min=eps)))
    # a QR of (D^1/2 Q^T) gives a triangular root without squaring the condition number
    upper = torch.linalg.qr(values.sqrt().unsqueeze(-1) * vectors.mT).R
    return (upper.mT * upper.diagonal().sign()).to(matrix.dtype)


def solve(root: Tensor, right: Tensor) -> Tensor:
    """(L L^T)^-1 right, for a lower root L [n, n] and `right` [n, m], by the cheaper way for these sizes."""
    if 4 * right.shape[1] < 3 * len(root):
        return torch.cholesky_solve(right, root)
    return torch.cholesky_inverse(root) @ right


def factored_damping(inputs: Tensor, outputs: Tensor, damping: float, pi: bool) -> tuple[Tensor, Tensor]:
    """pi sqrt(damping) and sqrt(damping) / pi for the factors A [D, D] and G [O, O] of one layer.

    pi^2 = (tr A / D) / (tr G / O), and 1 where a factor is zero, or where `pi` is False.
    """
    root = inputs.new_tensor(damping**0.5)
    if not pi:
        return root, root
    ratio = (inputs.trace() / len(inputs) / (outputs.trace() / len(outputs))).sqrt()
    ratio = torch.where((ratio > 0) & ratio.isfinite(), ratio, 1.0)
    return root * ratio, root / ratio
