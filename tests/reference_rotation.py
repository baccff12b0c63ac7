"""Low rank and contrastive learning from the mathematics: numpy, scipy and loops, nothing from symlab."""

import numpy as np
from scipy.optimize import minimize


def factorisation_minimum(target, decay, second=None, seed=0):
    """The P = U W of least ||(P - M) S^(1/2)||^2 / 2 + decay (||U||^2 + ||W||^2) / 2, S = I by default."""
    d = len(target)
    weight = np.eye(d) if second is None else second

    def value(flat):
        u, w = flat.reshape(2, d, d)
        gap = u @ w - target
        slope = gap @ weight
        loss = 0.5 * np.sum(gap * slope) + 0.5 * decay * np.sum(flat**2)
        return loss, np.concatenate([(slope @ w.T + decay * u).ravel(), (u.T @ slope + decay * w).ravel()])

    start = np.random.default_rng(seed).normal(size=2 * d * d) / d**0.5
    found = minimize(
        value, start, jac=True, method="L-BFGS-B", options={"maxiter": 20000, "ftol": 1e-16, "gtol": 1e-10}
    )
    u, w = found.x.reshape(2, d, d)
    return u @ w


def growth_rate(value, decay, noise, lr, nodes=201):
    """E log|1 - lr decay + lr (value + noise e)|, e ~ N(0, 1): of u + w at u = w = 0, one step of (u w - value)^2 / 2.

    Negative: zero attracts.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    factors = np.abs(1 - lr * decay + lr * (value + noise * points))
    return float(np.sum(weights * np.log(np.maximum(factors, 1e-300))) / np.sum(weights))


def info_nce(outputs, temperature):
    """One net, [2 B, F], by loops over rows."""
    rows = outputs / np.linalg.norm(outputs, axis=1, keepdims=True)
    both = len(rows)
    total = 0.0
    for i in range(both):
        partner = (i + both // 2) % both
        others = sum(np.exp(rows[i] @ rows[k] / temperature) for k in range(both) if k != i)
        total -= np.log(np.exp(rows[i] @ rows[partner] / temperature) / others)
    return total / both


def moved(image, down, right, shift, brightness, noise):
    """One view of [H, W], pixel by pixel."""
    height, width = image.shape
    view = np.zeros_like(image)
    for i in range(height):
        for j in range(width):
            a, b = i + down - shift, j + right - shift
            inside = 0 <= a < height and 0 <= b < width
            view[i, j] = brightness * (image[a, b] if inside else 0.0) + noise[i, j]
    return view
