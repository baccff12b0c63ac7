"""Data for the lasso: drawn as published, drawn like gene expressions, and real.

Legend: n  rows;  p  columns. X [n, p] is stored column after column, as scikit-learn's coordinate descent wants it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Problem = tuple[Tensor, Tensor]
"""X [n, p] and y [n], float64."""
REAL = ("diabetes", "breast_cancer")
GENES = "gene_like"


def published(seed: int, rows: int, columns: int, density: float, noise: float) -> Problem:
    """X ~ N(0, 1/p), y = X w + noise, w ~ N(0, 1) on a random `density` of the columns (spred, ICML 2023)."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(columns, rows, generator=generator, dtype=torch.float64).mul_(columns**-0.5).T
    truth = torch.zeros(columns, dtype=torch.float64)
    chosen = torch.randperm(columns, generator=generator)[: max(round(density * columns), 1)]
    truth[chosen] = torch.randn(len(chosen), generator=generator, dtype=torch.float64)
    return X, X @ truth + noise * torch.randn(rows, generator=generator, dtype=torch.float64)


def gene_like(seed: int, rows: int, columns: int, block: int, correlation: float, causal: int, noise: float) -> Problem:
    """Columns in blocks of `block`, correlated by `correlation` within a block; `causal` columns, each of
    another block (at most one per block), have a weight of 1 or -1; X standardised, y centred, its noise `noise` times
    the signal's deviation.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-columns // block)
    shared = torch.randn(blocks, rows, generator=generator, dtype=torch.float64).repeat_interleave(block, 0)[:columns]
    own = torch.randn(columns, rows, generator=generator, dtype=torch.float64)
    X = correlation**0.5 * shared + (1 - correlation) ** 0.5 * own  # [p, n]
    X = ((X - X.mean(1, keepdim=True)) / X.std(1, keepdim=True, correction=0)).T
    first = torch.randperm(blocks, generator=generator)[:causal] * block
    signs = torch.randint(0, 2, (len(first),), generator=generator).double() * 2 - 1
    signal = X[:, first] @ signs
    y = signal + noise * signal.std() * torch.randn(rows, generator=generator, dtype=torch.float64)
    return X, y - y.mean()


def real(name: str, seed: int, fraction: float) -> Problem:
    """A random `fraction` of the rows of scikit-learn's data set; the columns standardised, y (for breast_cancer its
    two classes, 0 and 1) standardised.
    """
    loaded = _loader(name)(return_X_y=True)
    X, y = (torch.as_tensor(part, dtype=torch.float64) for part in loaded)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(y), generator=generator)[: max(round(fraction * len(y)), 2)]
    X, y = X[rows].T.contiguous(), y[rows]  # [p, n]
    X = ((X - X.mean(1, keepdim=True)) / X.std(1, keepdim=True, correction=0)).T
    return X, (y - y.mean()) / y.std(correction=0)


def _loader(name: str) -> Callable[..., tuple[object, object]]:
    from sklearn.datasets import load_breast_cancer, load_diabetes

    return {"diabetes": load_diabetes, "breast_cancer": load_breast_cancer}[name]
