"""Statements about a sweep, one value per seed: slopes, rises and means of the rows that did not diverge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas

PerSeed = list[float | None]


def chosen(table: pandas.DataFrame, **values: float | str | int) -> pandas.DataFrame:
    """The rows with these cells."""
    for name, value in values.items():
        table = table[table[name] == value]
    return table


def means(table: pandas.DataFrame, y: str, seeds: Sequence[int]) -> PerSeed:
    """Per seed the mean of column `y` over its rows; None where no row is left."""
    return [_mean(_sound(table, seed)[y].astype(float).to_numpy()) for seed in seeds]


def slopes(table: pandas.DataFrame, x: str, y: str, seeds: Sequence[int]) -> PerSeed:
    """Per seed the slope of the least-squares line of column `y` over log10 of column `x` (> 0); None below two x."""
    found: PerSeed = []
    for seed in seeds:
        curve = _curve(table, x, y, seed)
        if len(curve) < 2:
            found.append(None)
            continue
        at = np.log10(curve.index.to_numpy(float))
        at -= at.mean()
        found.append(float((at * curve.to_numpy(float)).sum() / (at * at).sum()))
    return found


def rises(table: pandas.DataFrame, x: str, y: str, seeds: Sequence[int], slack: float) -> PerSeed:
    """Per seed 1 if column `y`, a mean per x, never falls by more than `slack` from one x to the next, else 0."""
    found: PerSeed = []
    for seed in seeds:
        curve = _curve(table, x, y, seed).to_numpy(float)
        found.append(None if len(curve) < 2 else float((np.diff(curve) >= -slack - 1e-12).all()))
    return found


def differences(first: PerSeed, second: PerSeed) -> PerSeed:
    """first - second, seed by seed; None where one of them is."""
    return [None if a is None or b is None else a - b for a, b in zip(first, second, strict=True)]


def ratios(first: PerSeed, second: PerSeed) -> PerSeed:
    """first / second, seed by seed; None where one of them is, or the second is 0."""
    return [None if a is None or not b else a / b for a, b in zip(first, second, strict=True)]


def _sound(table: pandas.DataFrame, seed: int) -> pandas.DataFrame:
    own = table[table["seed"] == seed]
    return own[~own["diverged"].astype(bool)]


def _curve(table: pandas.DataFrame, x: str, y: str, seed: int) -> pandas.Series:
    own = _sound(table, seed)
    curve: pandas.Series = own[y].astype(float).groupby(own[x].astype(float)).mean().dropna().sort_index()
    return curve


def _mean(values: np.ndarray) -> float | None:
    values = values[np.isfinite(values)]
    mean = float(values.mean()) if len(values) else math.nan
    return mean if math.isfinite(mean) else None
