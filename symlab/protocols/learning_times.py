"""How many updates one weight needs to be learnt, alone and as a product of two.

Legend: E  seeds;  C  combinations of x, y and lr.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from symlab.protocols.stack import column, combinations
from symlab.protocols.study import Row, Watch

ARMS = ("u w", "one parameter")
RELATIVE, ABSOLUTE = "relative", "fixed"
"""Kinds of starts: in units of the solution y / x, or of fixed size."""
MOST_TIME = 2_000.0
"""Updates after this many time scales are given up."""


@dataclass(frozen=True)
class Times:
    """What the times are measured of."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    lrs: tuple[float, ...]
    start: float
    fraction: float


def learning_times(seeds: Sequence[int], times: Times, device: torch.device, watch: Watch) -> list[Row] | None:
    """One row per seed, arm, kind of start, x, y and lr: `updates` until u w x / y (or m x / y) passes the fraction.

    `scale`: 1 / (lr x y) of u w, 1 / (lr x^2) of one parameter. Every start is drawn by itself.
    """
    labels = combinations(x=times.xs, y=times.ys, lr=times.lrs)
    like = torch.empty((), dtype=torch.float64, device=device)
    x, y, lr = (column(labels, name, like) for name in ("x", "y", "lr"))  # [C]
    rows: list[Row] = []
    for kind in (RELATIVE, ABSOLUTE):
        draws = [_factors(seed, len(labels), kind) for seed in seeds]
        size, ratio = (torch.stack(parts).to(device) for parts in zip(*draws, strict=True))  # [E, C]
        begin = times.start * size * (y / x if kind == RELATIVE else 1.0)
        for arm in ARMS:
            scale = 1 / (lr * x * y) if arm == ARMS[0] else 1 / (lr * x.square())
            split = ratio if arm == ARMS[0] else None
            updates = _updates(x, y, lr, begin, split, times.fraction, MOST_TIME * float(scale.max()), watch)
            if updates is None:
                return None
            for e, seed in enumerate(seeds):
                for c, label in enumerate(labels):
                    row: Row = {"seed": seed, "arm": arm, "start": kind, **label, "scale": float(scale[c])}
                    rows.append(row | {"updates": float(updates[e, c]), "diverged": False})
    return rows


def _factors(seed: int, count: int, kind: str) -> tuple[Tensor, Tensor]:
    """Factors of the start's size and of u / w, log-uniform in [1/4, 4]: [C] each."""
    generator = torch.Generator().manual_seed(seed)
    size, ratio = 4 ** (2 * torch.rand(2, count, generator=generator, dtype=torch.float64) - 1)
    return (size if kind == RELATIVE else torch.ones_like(size)), ratio


def _updates(
    x: Tensor,
    y: Tensor,
    lr: Tensor,
    begin: Tensor,
    ratio: Tensor | None,
    fraction: float,
    most: float,
    watch: Watch,
) -> Tensor | None:
    """[E, C]: updates until the fraction of y / x, linear between two; nan for what `most` updates do not bring there.

    `ratio` None: one parameter m, else u = sqrt(begin ratio) and w = sqrt(begin / ratio).
    """
    goal = fraction * y / x
    reached = torch.full_like(begin, torch.nan)
    u, w = (begin, torch.ones_like(begin)) if ratio is None else ((begin * ratio).sqrt(), (begin / ratio).sqrt())
    before, update = u * w, 0
    while bool(reached.isnan().any()) and update < most:
        for _ in range(100):
            pull = 2 * lr * x * (y - x * before)
            u, w = (u + pull, w) if ratio is None else (u + pull * w, w + pull * u)
            after = u * w
            passed = (before < goal) & (after >= goal)
            reached = torch.where(passed, update + (goal - before) / (after - before), reached)
            before, update = after, update + 1
        if watch.stopped():
            return None
    return reached
