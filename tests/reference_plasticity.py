"""A ReLU net that learns by Adam with coupled decay towards a point, one row and one weight tensor at a time, in numpy.

Layers are pairs (W [out, in], b [out]); the loss is the mean cross-entropy of a batch.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Layers = list[tuple[Array, Array]]


def outputs(layers: Layers, x: Array) -> list[Array]:
    """Every layer's output for one row; all but the last are cut off below 0."""
    found = [x]
    for k, (W, b) in enumerate(layers):
        z = W @ found[-1] + b
        found.append(z if k == len(layers) - 1 else np.where(z > 0, z, 0.0))
    return found[1:]


def gradients(layers: Layers, X: Array, labels: Array) -> Layers:
    """Of the mean cross-entropy."""
    sums = [(np.zeros_like(W), np.zeros_like(b)) for W, b in layers]
    for x, label in zip(X, labels, strict=True):
        values = [x, *outputs(layers, x)]
        e = np.exp(values[-1] - values[-1].max())
        back = e / e.sum()
        back[label] -= 1
        for k in reversed(range(len(layers))):
            sums[k] = (sums[k][0] + np.outer(back, values[k]), sums[k][1] + back)
            back = (layers[k][0].T @ back) * (values[k] > 0)
    return [(W / len(X), b / len(X)) for W, b in sums]


def adam(
    layers: Layers, points: Layers, batches: Iterable[tuple[Array, Array]], lr: float, decay: float
) -> tuple[Layers, float]:
    """Weights after all batches, and the mean accuracy on each before its update. Decay pulls towards `points`."""
    flat = [t.copy() for pair in layers for t in pair]
    point = [t for pair in points for t in pair]
    first, second = [np.zeros_like(t) for t in flat], [np.zeros_like(t) for t in flat]
    right = []
    for step, (X, labels) in enumerate(batches, start=1):
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        right.append(np.mean([outputs(pairs, x)[-1].argmax() == c for x, c in zip(X, labels, strict=True)]))
        slopes = [g for pair in gradients(pairs, X, labels) for g in pair]
        for i, slope in enumerate(slopes):
            g = slope + decay * (flat[i] - point[i])
            first[i] = 0.9 * first[i] + 0.1 * g
            second[i] = 0.999 * second[i] + 0.001 * g**2
            size = np.sqrt(second[i] / (1 - 0.999**step)) + 1e-8
            flat[i] = flat[i] - lr * first[i] / (1 - 0.9**step) / size
    return list(zip(flat[::2], flat[1::2], strict=True)), float(np.mean(right))


def shape_of(features: Array, rtol: float) -> tuple[int, int]:
    """Number of singular values above rtol of the largest, and of columns that do not vary."""
    values = np.linalg.svd(features, compute_uv=False)
    still = sum(1 for column in features.T if np.ptp(column) == 0)
    return int((values > rtol * values[0]).sum()), still
