"""Steps of damped exact curvature, written with dense numpy matrices. Imports nothing from symlab."""

import numpy as np


def damped_power(C, exponent, damping):
    """(|C| + damping x largest |eigenvalue|)^exponent of a symmetric C [P, P]."""
    values, vectors = np.linalg.eigh(C)
    sizes = np.abs(values)
    return vectors @ np.diag((sizes + damping * sizes.max()) ** exponent) @ vectors.T


def best_decrease_along(g, B, d):
    """max over a >= 0 of a g.d - a^2 d^T B d / 2, by ternary search."""
    low, high = 0.0, 4 * abs(g @ d) / (d @ B @ d) + 1e-12

    def gained(a):
        return a * (g @ d) - a * a * (d @ B @ d) / 2

    for _ in range(300):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if gained(left) < gained(right) else (low, right)
    return gained((low + high) / 2)
