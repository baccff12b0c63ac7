"""Weight decay without the product: ridge regression, the control of spred.

Legend: n  rows;  p  columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from symlab.protocols.lasso_arms import ZERO
from symlab.protocols.study import Row

RIDGE = "no product (ridge)"


def ridge(X: Tensor, y: Tensor, alpha: float) -> Tensor:
    """argmin_w (1/2n) ||X w - y||^2 + (alpha/2) ||w||^2 = X^T (X X^T + n alpha I)^-1 y, [p]: where gradient
    descent on w with the decay of u and v ends.
    """
    gram = (X @ X.T).double()  # [n, n]
    gram.diagonal().add_(len(y) * alpha)
    return X.T @ torch.linalg.solve(gram, y.double()).to(X.dtype)


def ridge_rows(X: Tensor, y: Tensor, alphas: Sequence[float], relative: Sequence[float]) -> list[Row]:
    """One row per alpha, and `relative`, its share of the largest: the zeros of `ridge`."""
    rows: list[Row] = []
    for alpha, place in zip(alphas, relative, strict=True):
        w = ridge(X, y, alpha)
        row: Row = {"arm": RIDGE, "alpha": alpha, "relative_alpha": place}
        row["zero_fraction"] = float((w.abs() < ZERO).double().mean())
        rows.append(row | {"exact_zeros": float((w == 0).double().mean())})
    return rows
