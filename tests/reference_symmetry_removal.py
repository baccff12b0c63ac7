"""A two-layer net with squared error, its gradient and its symmetries, by loops over numpy arrays in float64.

A net is (W, b, V, c): hidden_i = phi(sum_j W_ij x_j + b_i), output_k = sum_i V_ki hidden_i + c_k, phi tanh or ReLU.
The loss is the mean over rows of half the squared error.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Net = tuple[Array, Array, Array, Array]


def activations(net: Net, x: Array, relu: bool) -> tuple[list[float], list[float]]:
    """hidden units and their derivatives, for one row."""
    W, b, _, _ = net
    values, slopes = [], []
    for i in range(len(b)):
        z = b[i] + sum(W[i, j] * x[j] for j in range(len(x)))
        values.append(max(z, 0.0) if relu else math.tanh(z))
        slopes.append(float(z > 0) if relu else 1 - math.tanh(z) ** 2)
    return values, slopes


def residuals(net: Net, x: Array, y: Array, relu: bool) -> list[float]:
    _, _, V, c = net
    hidden, _ = activations(net, x, relu)
    return [c[k] + sum(V[k, i] * h for i, h in enumerate(hidden)) - y[k] for k in range(len(c))]


def loss(net: Net, X: Array, Y: Array, relu: bool) -> float:
    return sum(r * r / 2 for x, y in zip(X, Y, strict=True) for r in residuals(net, x, y, relu)) / len(X)


def gradient(net: Net, X: Array, Y: Array, relu: bool) -> Net:
    _, b, V, _ = net
    found = tuple(np.zeros_like(part) for part in net)
    for x, y in zip(X, Y, strict=True):
        hidden, slopes = activations(net, x, relu)
        for k, r in enumerate(residuals(net, x, y, relu)):
            found[3][k] += r / len(X)
            for i in range(len(b)):
                found[2][k, i] += r * hidden[i] / len(X)
                found[1][i] += r * V[k, i] * slopes[i] / len(X)
                for j in range(len(x)):
                    found[0][i, j] += r * V[k, i] * slopes[i] * x[j] / len(X)
    return found  # type: ignore[return-value]


def descent_towards(net: Net, target: Net, X: Array, Y: Array, lr: float, decay: float, steps: int) -> Net:
    """theta <- theta - lr (gradient + decay (theta - target))."""
    for _ in range(steps):
        slope = gradient(net, X, Y, relu=False)
        moved = [w - lr * (g + decay * (w - t)) for w, g, t in zip(net, slope, target, strict=True)]
        net = (moved[0], moved[1], moved[2], moved[3])
    return net


def squared_norm(net: Net) -> float:
    return float(sum((part**2).sum() for part in net))


def permuted(net: Net) -> Iterator[Net]:
    """Every other order of the hidden units."""
    W, b, V, c = net
    for order in list(itertools.permutations(range(len(b))))[1:]:
        chosen = list(order)
        yield W[chosen], b[chosen], V[:, chosen], c


def negated(net: Net) -> Iterator[Net]:
    """Every choice of hidden units whose incoming and outgoing weights change their sign (tanh)."""
    W, b, V, c = net
    for signs in list(itertools.product([1.0, -1.0], repeat=len(b)))[1:]:
        s = np.array(signs)
        yield s[:, None] * W, s * b, s * V, c


def balanced(net: Net, unit: int) -> Net:
    """A hidden unit of a ReLU net with incoming and outgoing weights exchanged in size: |in| <-> |out|.

    The rescaling by rho = |out| / |in| leaves the loss and the norm as they are, since |in|^2 + |out|^2 stays.
    """
    W, b, V, c = (part.copy() for part in net)
    rho = math.sqrt((V[:, unit] ** 2).sum() / ((W[unit] ** 2).sum() + b[unit] ** 2))
    W[unit] *= rho
    b[unit] *= rho
    V[:, unit] /= rho
    return W, b, V, c
