"""The lasso from its optimality conditions, with loops; imports nothing from symlab."""

import numpy as np


def objective(X: np.ndarray, y: np.ndarray, w: np.ndarray, alpha: float) -> float:
    """(1/2n) sum_i (x_i . w - y_i)^2 + alpha sum_j |w_j|."""
    total = 0.0
    for row, target in zip(X, y, strict=True):
        total += (sum(a * b for a, b in zip(row, w, strict=True)) - target) ** 2
    return total / (2 * len(y)) + alpha * sum(abs(value) for value in w)


def worst_violation(X: np.ndarray, y: np.ndarray, w: np.ndarray, alpha: float) -> float:
    """Largest violation of the KKT conditions, in units of alpha: with g_j = x_j . (y - X w) / n, it must be
    g_j = alpha sign(w_j) where w_j is not zero, and |g_j| <= alpha where it is.
    """
    residual = y - X @ w
    worst = 0.0
    for j in range(X.shape[1]):
        g = float(X[:, j] @ residual) / len(y)
        violation = abs(g - alpha * np.sign(w[j])) if w[j] != 0 else max(abs(g) - alpha, 0.0)
        worst = max(worst, violation / alpha)
    return worst


def one_column(x: np.ndarray, y: np.ndarray, alpha: float) -> float:
    """soft(x . y / n, alpha) / (x . x / n)."""
    n, cross = len(y), float(x @ y)
    return float(np.sign(cross)) * max(abs(cross) / n - alpha, 0.0) / (float(x @ x) / n)
