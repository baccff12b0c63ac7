"""Newton's method on (1/2n) ||X^T (u * v) - y||^2 + (alpha/2) (||u||^2 + ||v||^2), for some columns.

Legend: k  columns;  n  rows;  columns [k, n], one column of the data per row;  s  sign of u * v;  q = |u * v|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

GONE = 0.05
"""A weight whose root shrinks below this share in one step is set to zero (it may come back)."""
LARGEST_GROWTH = 3.0
"""of a root in one step."""
HALVINGS = 40
MOST_STALLS = 10
"""Steps in succession that bring objective and dual bound no nearer to each other: rounding."""
ROUNDING = 1e-15
"""Relative: the objective may rise so much, since the gap is finer than the objective's last digit."""
JITTERS = (0.0, 1e-10, 1e-7, 1e-4, 1e-1)
"""Shares of the mean curvature that are added until the factorisation exists."""


@dataclass(frozen=True)
class Stationary:
    """Weights [k] and residual y - X^T w [n] where Newton's method ended, and its steps."""

    weights: Tensor
    residual: Tensor
    steps: int


def lasso_objective(residual: Tensor, weights: Tensor, alpha: float) -> float:
    """F(w) = (1/2n) ||residual||^2 + alpha ||w||_1."""
    return float(residual @ residual) / (2 * len(residual)) + alpha * float(weights.abs().sum())


def dual_value(residual: Tensor, y: Tensor, steepest: float, alpha: float) -> float:
    """max over t of D(t r) = (1/2n) (||y||^2 - ||y - t r||^2), |t| steepest <= alpha: at most the least F.

    `steepest`: max_j |x_j^T r| / n over all columns, so that t r is a feasible point of the lasso's dual.
    """
    n, square, cross = len(y), float(residual @ residual), float(residual @ y)
    most = alpha / steepest if steepest > 0 else math.inf
    t = min(max(cross / square, -most), most) if square > 0 else 0.0
    return (t * cross - t * t * square / 2) / n


def balanced_newton(columns: Tensor, y: Tensor, alpha: float, start: Tensor, gap: float, most: int) -> Stationary:
    """argmin_w F(w) through w = s q, q = r^2, where |u| = |v| = r: the balanced points of the decayed problem.

    The loss in the roots r is smooth, F = (1/2n) ||X^T (s r^2) - y||^2 + alpha ||r||^2, with gradient 2 r c and Hessian
    4 r s (X X^T / n) s r + 2 diag(c), c = s g + alpha, g the gradient of the squared error. Newton's relative step
    e = dr / r solves (2 s (X X^T / n) s + diag(|c| / q)) q e = -c (|c|: no step towards a saddle), with the step
    halved until F falls. Where r = 0 and |g| > alpha, u = v = 0 is a saddle: it is left along its direction of
    negative curvature u = -sign(g) v, which gives the weight its sign; one that gets to r = 0 may so change it.

    columns [k, n] and y [n] float64; start [k]. Ends at duality gap `gap` on these columns, after `most` steps, or
    where rounding ends it.
    """
    n, w = len(y), start
    square = columns @ columns.T / n  # [k, k]
    residual = y - columns.T @ w
    value, bound, least, stalls = lasso_objective(residual, w, alpha), -math.inf, math.inf, 0
    for step in range(most):
        g = -(columns @ residual) / n
        bound = max(bound, dual_value(residual, y, float(g.abs().max()), alpha))
        stalls = 0 if value - bound < least else stalls + 1
        least = min(least, value - bound)
        if least <= gap or stalls > MOST_STALLS:
            return Stationary(w, residual, step)
        w = _leave_saddles(square, g, w, alpha)
        residual = y - columns.T @ w
        at_start, g = lasso_objective(residual, w, alpha), -(columns @ residual) / n
        live = w.nonzero().flatten()
        found = _descend(columns, y, alpha, w, live, _relative_step(square, g, w, live, alpha), at_start)
        if found is None:
            return Stationary(w, residual, step + 1)
        w, residual = found
        value = lasso_objective(residual, w, alpha)
    return Stationary(w, residual, most)


def _leave_saddles(square: Tensor, g: Tensor, w: Tensor, alpha: float) -> Tensor:
    """Zeros with |g| > alpha get -sign(g) (|g| - alpha) / curvature, times the step at which F is least, at most 1."""
    leaving = (w == 0) & (g.abs() > alpha)
    if not leaving.any():
        return w
    move = torch.where(leaving, -g.sign() * (g.abs() - alpha) / square.diagonal(), 0.0)
    downhill = float((move.abs() * (g.abs() - alpha)).sum())
    return w + min(downhill / float(move @ (square @ move)), 1.0) * move


def _relative_step(square: Tensor, g: Tensor, w: Tensor, live: Tensor, alpha: float) -> Tensor:
    """e = dr / r of the live weights."""
    q, s = w[live].abs(), w[live].sign()
    c = s * g[live] + alpha
    curvature = 2 * s[:, None] * square[live][:, live] * s
    curvature.diagonal().add_(c.abs() / q)
    unit = float(square.diagonal().mean())
    for jitter in JITTERS:
        curvature.diagonal().add_(jitter * unit)
        factor, failed = torch.linalg.cholesky_ex(curvature)
        if not failed:
            break
    return torch.cholesky_solve(-c[:, None], factor).flatten() / q


def _descend(
    columns: Tensor, y: Tensor, alpha: float, w: Tensor, live: Tensor, step: Tensor, value: float
) -> tuple[Tensor, Tensor] | None:
    """Weights and residual after the largest of the steps step, step / 2, ... that does not raise F; None: no step."""
    share = 1.0
    for _ in range(HALVINGS):
        growth = 1 + share * step
        growth = torch.where(growth < GONE, 0.0, growth).clamp_max(LARGEST_GROWTH)
        after = torch.zeros_like(w)
        after[live] = w[live] * growth.square()
        residual = y - columns.T @ after
        if lasso_objective(residual, after, alpha) <= value * (1 + ROUNDING):
            return after, residual
        share /= 2
    return None
