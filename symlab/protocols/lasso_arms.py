"""The lasso by spred and by scikit-learn on the same data, and how their solutions compare.

Legend: n  rows;  p  columns.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from symlab.constraint.spred import SpredFit, spred_lasso, spred_path
from symlab.constraint.spred_newton import lasso_objective
from symlab.protocols.study import Row
from symlab.training.factories import Stop

if TYPE_CHECKING:
    import pandas

SKLEARN, NEWTON = "scikit-learn", "spred, Newton"
ZERO = 1e-6
"""|w| below it counts as zero, as published."""
EXACT_TOL = {torch.float64: 1e-9, torch.float32: 1e-6}
MOST_SWEEPS = 100_000
"""of scikit-learn's coordinate descent."""
Solver = Callable[[float], tuple[Tensor, float]]
"""tol -> weights [p] (or [alphas, p]) and seconds."""


def need_sklearn() -> str:
    """scikit-learn's version. Raises ValueError, with the command that installs it, where it is missing."""
    if importlib.util.find_spec("sklearn") is None:
        raise ValueError("this protocol compares with scikit-learn, which is missing: pip install 'symlab[digits]'")
    return version("scikit-learn")


def sklearn_lasso(X: Tensor, y: Tensor, alpha: float) -> Solver:
    """Coordinate descent (cyclic, no Gram matrix, no intercept, data not copied, cold start), single fit."""
    from sklearn.linear_model import Lasso

    columns, targets = X.cpu().numpy(), y.cpu().numpy()

    def solve(tol: float) -> tuple[Tensor, float]:
        solver = Lasso(alpha=alpha, fit_intercept=False, copy_X=False, tol=tol, max_iter=MOST_SWEEPS)
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a loose tol is meant; the objective is judged by itself
            solver.fit(columns, targets)
        return torch.as_tensor(solver.coef_).to(X), time.perf_counter() - began

    return solve


def sklearn_path(X: Tensor, y: Tensor, alphas: Sequence[float]) -> Solver:
    """`lasso_path`, warm from alpha to alpha, in the order of `alphas` (descending)."""
    from sklearn.linear_model import lasso_path

    columns, targets = X.cpu().numpy(), y.cpu().numpy()

    def solve(tol: float) -> tuple[Tensor, float]:
        began = time.perf_counter()
        settings = {"alphas": list(alphas), "precompute": False, "copy_X": False, "check_input": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, found, _ = lasso_path(columns, targets, **settings, tol=tol, max_iter=MOST_SWEEPS)
        return torch.as_tensor(found.T.copy()).to(X), time.perf_counter() - began

    return solve


def newton_lasso(X: Tensor, y: Tensor, alpha: float) -> Solver:
    """`spred_lasso`, cold start."""

    def solve(tol: float) -> tuple[Tensor, float]:
        began = time.perf_counter()
        return spred_lasso(X, y, alpha, tol=tol).weights, time.perf_counter() - began

    return solve


def newton_path(X: Tensor, y: Tensor, alphas: Sequence[float]) -> Solver:
    """`spred_path`."""

    def solve(tol: float) -> tuple[Tensor, float]:
        began = time.perf_counter()
        fits: list[SpredFit] = spred_path(X, y, alphas, tol=tol)
        return torch.stack([fit.weights for fit in fits]), time.perf_counter() - began

    return solve


def certified(X: Tensor, y: Tensor, alphas: Sequence[float]) -> list[SpredFit]:
    """Solutions whose duality gap is 1e-9 of the objective (float32: 1e-6), each started from the one before."""
    return spred_path(X, y, alphas, tol=EXACT_TOL[X.dtype])


def lower_bound(fit: SpredFit) -> float:
    """What no objective can be below: F(w) minus the duality gap. Gaps to it are at least those to the least F."""
    return fit.objective - fit.duality_gap


def objective(X: Tensor, y: Tensor, w: Tensor, alpha: float) -> float:
    """F(w) = (1/2n) ||X w - y||^2 + alpha ||w||_1; only the columns with a weight are read."""
    chosen = w.nonzero().flatten()
    values = w[chosen].double()
    return lasso_objective(y.double() - X[:, chosen].double() @ values, values, alpha)


@dataclass(frozen=True)
class Loosest:
    """The loosest tolerance at which a solver is near enough, its largest relative objective gap there, its weights."""

    tol: float | None
    gap: float
    weights: Tensor
    time_s: float


def loosest(
    solve: Solver, tols: Sequence[float], gap_of: Callable[[Tensor], float], limit: float, stopped: Stop
) -> Loosest | None:
    """Goes through `tols`, loose to tight, until gap_of(weights) <= limit; tol None if none is near enough.

    None if it was stopped, which is asked before every run of the solver.
    """
    for tol in tols:
        if stopped():
            return None
        weights, spent = solve(tol)
        if (gap := gap_of(weights)) <= limit:
            return Loosest(tol, gap, weights, spent)
    return Loosest(None, gap, weights, spent)


def compared(w: Tensor, other: Tensor) -> Row:
    """Zeros of w, and how far its support (|w| >= 1e-6) is that of `other`: share of columns, and overlap
    (intersection over union, 1 for two empty ones).
    """
    own, theirs = w.abs() >= ZERO, other.abs() >= ZERO
    union = int((own | theirs).sum())
    return {
        "zero_fraction": 1 - float(own.double().mean()),
        "exact_zeros": float((w == 0).double().mean()),
        "support_agreement": float((own == theirs).double().mean()),
        "support_overlap": int((own & theirs).sum()) / union if union else 1.0,
    }


def path_time_ratio(other: pandas.DataFrame, own: pandas.DataFrame) -> float | None:
    """Seconds of the one solver's path over those of the other; None where one of them has no time."""
    times = [rows["time_s"].iloc[0] for rows in (other, own)]
    first, second = (math.nan if time is None else float(time) for time in times)
    return first / second if math.isfinite(first / second) else None


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; all the same for a single value."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
