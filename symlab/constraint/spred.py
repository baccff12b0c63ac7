"""The lasso by a smooth problem: w = u * v with weight decay on u and v.

Legend: n  rows;  p  columns;  k  columns of the working set.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from symlab.constraint.spred_newton import balanced_newton, dual_value, lasso_objective

SMALLEST_SET, LARGEST_FIRST_SET = 64, 512
INNER = 0.03
"""Share of the whole problem's duality gap to which the problem on a working set is solved."""
NEWTON_STEPS = 300
STRIDE = 10.0
"""The alphas on the way to a small one are so much apart."""
ON_THE_WAY = 1e-3
"""Duality gap over the objective that suffices there."""
MOST_STALLS = 4
"""Working sets in succession that bring the gap no further down: rounding."""


@dataclass(frozen=True)
class SpredFit:
    """A solution of the lasso, with its certificate: objective - duality_gap <= min F <= objective.

    weights [p] in the data's dtype, exact zeros where zero; objective and duality_gap in units of F. `iterations`:
    Newton steps; `passes`: products with all of X; time_s: seconds. `converged`: the gap is within the tolerance.
    """

    weights: Tensor
    intercept: float
    alpha: float
    objective: float
    duality_gap: float
    iterations: int
    passes: int
    time_s: float
    converged: bool


def spred_lasso(
    X: Tensor,
    y: Tensor,
    alpha: float,
    *,
    tol: float = 1e-6,
    intercept: bool = False,
    start: Tensor | None = None,
    max_passes: int = 100,
) -> SpredFit:
    """argmin_w F(w) = (1/2n) ||X w - y||^2 + alpha ||w||_1, as argmin over u, v with w = u * v of the smooth
    (1/2n) ||X (u * v) - y||^2 + (alpha/2) (||u||^2 + ||v||^2)  (spred: Ziyin and Wang, ICML 2023). alpha is
    scikit-learn's; with torch's mse_loss and Adam it is weight_decay = 2 alpha on u and v.

    The smooth problem is solved on working sets of columns (those of the support, and those with the steepest gradient)
    by Newton's method at balanced |u| = |v| (see `balanced_newton`), in float64; products with all of X are in the
    dtype of X, on its device. It ends when the duality gap over all columns is at most `tol` times F, so F(w) - min F
    is, too. A small alpha is reached by way of larger ones. `intercept` adds an unpenalised one (X is centred without
    a copy). `start` [p]: weights to begin with.

    X [n, p], a tensor or a numpy array, any strides, float32 or float64 (float32 resolves a tol of about 1e-6); y [n];
    alpha > 0, finite.

    Warns (RuntimeWarning) if `max_passes` products with X or rounding end it before `tol`. Raises ValueError for values
    out of range, shapes and dtypes that do not fit, and data that are not finite or whose squares are not.
    """
    problem = _Problem(X, y, intercept, start)
    return _checked(problem.solve(_check_alpha(alpha), _check_tol(tol), _check_passes(max_passes)), tol)


def spred_path(
    X: Tensor,
    y: Tensor,
    alphas: Sequence[float],
    *,
    tol: float = 1e-6,
    intercept: bool = False,
    max_passes: int = 100,
) -> list[SpredFit]:
    """`spred_lasso` for each of `alphas`, in their order, each started from the one before: large to small is fast.

    Raises ValueError as `spred_lasso`, and without alphas.
    """
    if not len(alphas):
        raise ValueError("alphas is empty: the path needs at least one alpha")
    values = [_check_alpha(alpha) for alpha in alphas]
    problem = _Problem(X, y, intercept, None)
    return [_checked(problem.solve(alpha, _check_tol(tol), _check_passes(max_passes)), tol) for alpha in values]


def alpha_max(X: Tensor, y: Tensor, *, intercept: bool = False) -> float:
    """max_j |x_j^T y| / n (y centred with `intercept`): from this alpha on all weights are zero. Raises ValueError."""
    return _Problem(X, y, intercept, None).steepest()


class _Problem:
    """The data, and where the solver stands: support [k], its values [k], residual [n], correlations X^T r / n [p]."""

    def __init__(self, X: Tensor, y: Tensor, intercept: bool, start: Tensor | None) -> None:
        X, y = torch.as_tensor(X), torch.as_tensor(y)
        _check_data(X, y)
        self.began, self.first = time.perf_counter(), 0
        self.X, self.intercept = X.detach(), intercept
        self.mean = float(y.detach().double().mean()) if intercept else 0.0
        self.y = y.detach().double() - self.mean
        self.support = torch.empty(0, dtype=torch.int64, device=X.device)
        self.values = self.y.new_empty(0)
        self.residual, self.passes = self.y, 0
        if start is not None:
            start = torch.as_tensor(start)
            if start.shape != X.shape[1:] or not start.isfinite().all():
                raise ValueError(f"start must be finite of shape {tuple(X.shape[1:])}, got {tuple(start.shape)}")
            self.support = start.nonzero().flatten().to(X.device)
            self.values = start.to(self.y)[self.support]
            self.residual = self.y - self.columns(self.support).T @ self.values
        self.correlate()
        if not self.correlations.isfinite().all():
            raise ValueError("X has entries that are not finite, or so large that X^T y is not")

    def columns(self, chosen: Tensor) -> Tensor:
        """Columns of X as rows of a matrix [k, n] in float64, centred with an intercept."""
        found = self.X[:, chosen].T.double()
        return found - found.mean(1, keepdim=True) if self.intercept else found

    def correlate(self) -> None:
        """X^T r / n [p], one pass over X. With an intercept r sums to zero, so that centring X would change nothing."""
        self.correlations = self.X.T @ (self.residual / len(self.y)).to(self.X.dtype)
        self.passes += 1

    def steepest(self) -> float:
        """max_j |x_j^T r| / n."""
        return float(self.correlations.abs().max())

    def solve(self, alpha: float, tol: float, max_passes: int) -> SpredFit:
        """From where the solver stands, by way of larger alphas if that is far: only the last one to `tol`."""
        steps, most = 0, self.first + max_passes
        far = math.ceil(math.log(max(self.steepest() / alpha, 1.0), STRIDE)) - 1
        for k in range(far, 0, -1):
            steps += self._close(alpha * STRIDE**k, max(tol, ON_THE_WAY), most)[2]
        value, gap, last = self._close(alpha, tol, most)
        if not (0 < value < math.inf or (value == 0 and not self.y.any())):
            raise ValueError(f"the objective {value} is out of range: scale X, y and alpha (or start) nearer to 1")
        weights, offset = self._weights()
        now = time.perf_counter()
        done = (value, max(gap, 0.0), steps + last, self.passes - self.first, now - self.began, gap <= tol * value)
        self.began, self.first = now, self.passes
        return SpredFit(weights, offset, alpha, *done)

    def _close(self, alpha: float, tol: float, most: int) -> tuple[float, float, int]:
        """Move to the solution at `alpha`; objective, duality gap and Newton steps. `most`: end at so many passes."""
        first_set = min(max(len(self.y), SMALLEST_SET), LARGEST_FIRST_SET)
        bound, nearest, stalls, steps = -math.inf, math.inf, 0, 0
        while True:
            value = lasso_objective(self.residual, self.values, alpha)
            bound = max(bound, dual_value(self.residual, self.y, self.steepest(), alpha))
            gap = value - bound
            stalls = 0 if gap < nearest else stalls + 1
            nearest = min(nearest, gap)
            if gap <= tol * value or self.passes >= most or stalls > MOST_STALLS:
                return value, gap, steps
            chosen, start = self._working_set(first_set)
            inner = max(INNER * gap, tol * value / 4)
            found = balanced_newton(self.columns(chosen), self.y, alpha, start, inner, NEWTON_STEPS)
            kept = found.weights.nonzero().flatten()
            self.support, self.values, self.residual = chosen[kept], found.weights[kept], found.residual
            steps += found.steps
            self.correlate()

    def _working_set(self, least: int) -> tuple[Tensor, Tensor]:
        """The support and the columns of steepest gradient, at least `least` and twice the support; weights there."""
        score = self.correlations.abs()
        score[self.support] = math.inf
        chosen = score.topk(min(max(least, 2 * len(self.support)), len(score))).indices
        chosen = chosen.sort().values
        start = self.y.new_zeros(len(chosen))
        start[torch.searchsorted(chosen, self.support)] = self.values
        return chosen, start

    def _weights(self) -> tuple[Tensor, float]:
        """All weights [p], and the intercept."""
        weights = torch.zeros(self.X.shape[1], dtype=self.X.dtype, device=self.X.device)
        weights[self.support] = self.values.to(weights.dtype)
        if not self.intercept:
            return weights, 0.0
        return weights, self.mean - float(self.X[:, self.support].double().mean(0) @ self.values)


def _checked(fit: SpredFit, tol: float) -> SpredFit:
    if not fit.converged:
        share = fit.duality_gap / fit.objective
        text = f"alpha={fit.alpha:g}: ended at a duality gap of {share:.1e} of the objective, not tol={tol:g}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    return fit


def _check_data(X: Tensor, y: Tensor) -> None:
    if X.ndim != 2 or y.shape != X.shape[:1] or not X.numel():
        raise ValueError(f"X must be [n, p] and y [n], n and p at least 1, got {tuple(X.shape)} and {tuple(y.shape)}")
    if X.dtype not in (torch.float32, torch.float64) or not y.is_floating_point():
        raise ValueError(f"X must be float32 or float64 and y floating, got {X.dtype} and {y.dtype}")
    if X.device != y.device:
        raise ValueError(f"X and y must be on one device, got {X.device} and {y.device}")
    if not y.isfinite().all():
        raise ValueError("y has entries that are not finite")


def _check_alpha(alpha: float) -> float:
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    return float(alpha)


def _check_tol(tol: float) -> float:
    if not 0 < tol < 1:
        raise ValueError(f"tol, the duality gap over the objective, must lie strictly between 0 and 1, got {tol}")
    return tol


def _check_passes(max_passes: int) -> int:
    if not max_passes >= 1:
        raise ValueError(f"max_passes must be at least 1, got {max_passes}")
    return max_passes
