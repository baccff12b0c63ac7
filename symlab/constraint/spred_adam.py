"""The lasso as it was published with spred: Adam with weight decay on u and v. And plain descent, for comparison.

Legend: n  rows;  p  columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from symlab.constraint.clock import seconds

CHECK_EVERY = 100  # steps


def adam_product(
    X: Tensor,
    y: Tensor,
    decay: float,
    generator: torch.Generator,
    *,
    lr: float = 0.01,
    steps: int = 10_000,
    std: float = 0.1,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Tensor, float] | None:
    """u * v after Adam on (1/n) ||X (u * v) - y||^2 with torch's weight_decay `decay` on u and v: with decay = 2 alpha
    the loss is twice the lasso's of alpha (spred: Ziyin and Wang, ICML 2023; lr and steps theirs).

    u and v start apart, each N(0, std^2) (ours): from u = v they would stay equal, and no weight could be negative.
    X [n, p], y [n]; weights [p] and seconds; None once `stopped`. Raises ValueError for values out of range.
    """
    _check(decay, lr, steps)
    if not 0 < std < math.inf:
        raise ValueError(f"std must be positive and finite, got {std}: u = v = 0 is a saddle")
    u, v = (std * torch.randn(2, X.shape[1], generator=generator, dtype=X.dtype)).to(X.device)
    optimizer = torch.optim.Adam([u, v], lr=lr, weight_decay=decay)

    def step() -> None:
        slope = _slope(X, y, u * v)
        u.grad, v.grad = slope * v, slope * u
        optimizer.step()

    spent = _run(step, steps, stopped, X.device)
    return None if spent is None else (u * v, spent)


def adam_plain(
    X: Tensor,
    y: Tensor,
    decay: float,
    generator: torch.Generator,
    *,
    lr: float = 0.01,
    steps: int = 10_000,
    std: float = 0.1,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Tensor, float] | None:
    """w after Adam on (1/n) ||X w - y||^2 with torch's weight_decay `decay` on w: ridge regression, no weight is zero.

    w starts as the product in `adam_product` does. Arguments, result and Raises: see there.
    """
    _check(decay, lr, steps)
    w = (std * torch.randn(2, X.shape[1], generator=generator, dtype=X.dtype)).prod(0).to(X.device)
    optimizer = torch.optim.Adam([w], lr=lr, weight_decay=decay)

    def step() -> None:
        w.grad = _slope(X, y, w)
        optimizer.step()

    spent = _run(step, steps, stopped, X.device)
    return None if spent is None else (w, spent)


def _slope(X: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Gradient of (1/n) ||X w - y||^2, [p]."""
    return X.T @ ((X @ w - y) * (2 / len(y)))


def _run(step: Callable[[], None], steps: int, stopped: Callable[[], bool], device: torch.device) -> float | None:
    """Seconds of all steps; None once stopped."""
    began = seconds(device)
    for index in range(steps):
        if index % CHECK_EVERY == 0 and stopped():
            return None
        step()
    return seconds(device) - began


def _check(decay: float, lr: float, steps: int) -> None:
    if not 0 <= decay < math.inf:
        raise ValueError(f"decay must be finite and at least 0, got {decay}")
    if not 0 < lr < math.inf:
        raise ValueError(f"lr must be positive and finite, got {lr}")
    if not steps >= 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
