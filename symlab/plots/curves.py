"""Curves of one column over steps: mean and band over the runs of each group.

A table holds one row per evaluation of a run, with the columns step, epoch, time_s, ... of metrics.csv,
and, for several runs, `run` (a name) and `group` (what the run has in common with others, e.g.
"optimizer=adam").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.style import GREY, colour_and_marker, plain

X_LABELS = {"step": "step (updates)", "epoch": "epoch", "time_s": "training time (s)"}
SPLIT_LOOKS: dict[str, tuple[Literal["-", ":"], float]] = {"test": ("-", 1.4), "train": (":", 1.1)}
Curves = dict[str, dict[str, "Curve"]]  # split -> group -> curve
MAX_LEGEND_GROUPS = 14
STD_BAND = "±1 std over runs"
RANGE_BAND = "min to max over runs"
QUARTILE_BAND = "median and quartiles"
FAR = 1e100  # stands for infinity in a band


@dataclass(frozen=True)
class Curve:
    """Mean over the runs of a group, where all of them have a finite value, and what single runs have
    after that.
    """

    x: np.ndarray  # [T]
    mean: np.ndarray  # [T]
    low: np.ndarray  # [T]
    high: np.ndarray  # [T]
    runs: int
    band: str  # STD_BAND, RANGE_BAND, QUARTILE_BAND, or "" for a single run
    tails: tuple[tuple[np.ndarray, np.ndarray], ...]  # (x, y) per run


def prepared(table: pd.DataFrame, x: str, columns: Sequence[str]) -> pd.DataFrame:
    """`table` with numbers in step, x and `columns`, infinities as NaN, and the columns run and group
    present.

    Raises ValueError for an unknown x, a missing column or a table without rows.
    """
    if x not in X_LABELS:
        raise ValueError(f"x must be one of {', '.join(X_LABELS)}, got {x!r}")
    if table.empty:
        raise ValueError("the table of metrics has no rows, so there is nothing to draw")
    missing = [name for name in dict.fromkeys(["step", x, *columns]) if name not in table.columns]
    if missing:
        raise ValueError(f"the metrics have no column {', '.join(missing)}; they have {', '.join(table.columns)}")
    numbers = {
        name: pd.to_numeric(table[name]).astype(float).replace([np.inf, -np.inf], np.nan)
        for name in dict.fromkeys(["step", x, *columns])
    }
    labels = {
        name: table[name].astype(str) if name in table.columns else pd.Series("", index=table.index)
        for name in ("run", "group")
    }
    return pd.DataFrame({**numbers, **labels}).dropna(subset=["step"])


def aggregate(rows: pd.DataFrame, x: str, y: str) -> Curve:
    """Mean and band of column `y` over the runs in `rows`, matched by step and drawn at the mean of
    column `x`.

    The band is mean +- 1 standard deviation (n - 1 in the divisor), cut off below at the smallest run,
    from 3 runs on; smallest to largest run for 2. Steps at which some run has no finite value get no
    mean, for a mean over the survivors would jump; after the last common step each run goes on by itself.
    """
    values = rows.pivot_table(index="step", columns="run", values=y, aggfunc="last", dropna=False).sort_index()
    places = rows.groupby("step")[x].mean().reindex(values.index)
    values = values[places.notna()]
    common = values.dropna()  # [T, runs]
    data = common.to_numpy()
    runs = values.shape[1]
    mean = data.mean(axis=1) if len(data) else np.empty(0)
    low, high = _band(data, mean, runs)
    return Curve(
        x=places.reindex(common.index).to_numpy(),
        mean=mean,
        low=low,
        high=high,
        runs=runs,
        band="" if runs == 1 else RANGE_BAND if runs == 2 else STD_BAND,
        tails=_tails(values, places, common.index[-1] if len(common) else -np.inf),
    )


def aggregate_medians(rows: pd.DataFrame, x: str, y: str) -> Curve:
    """Median and quartiles of column `y` over the runs in `rows`, where a mean would be that of a few bad runs.

    A run without a finite value at a step (it diverged) counts as +inf there, so that no run is dropped; where half of
    the runs or more are so, there is no median. The band is of values that occurred: the lower and upper quartile.
    """
    values = rows.pivot_table(index="step", columns="run", values=y, aggfunc="last", dropna=False).sort_index()
    places = rows.groupby("step")[x].mean().reindex(values.index)
    data = values.fillna(np.inf).to_numpy()  # [T, runs]
    ordered, runs = np.sort(data, axis=1), values.shape[1]
    with np.errstate(invalid="ignore"):
        middle = (ordered[:, (runs - 1) // 2] + ordered[:, runs // 2]) / 2
    shown = np.isfinite(middle) & places.notna().to_numpy()
    return Curve(
        x=places.to_numpy()[shown],
        mean=middle[shown],
        low=ordered[shown, (runs - 1) // 4],
        high=np.minimum(ordered[shown, runs - 1 - (runs - 1) // 4], FAR),
        runs=runs,
        band="" if runs == 1 else QUARTILE_BAND,
        tails=(),
    )


def _band(data: np.ndarray, mean: np.ndarray, runs: int) -> tuple[np.ndarray, np.ndarray]:
    if runs < 2 or not len(data):
        return mean, mean
    smallest, largest = data.min(axis=1), data.max(axis=1)
    if runs == 2:
        return smallest, largest
    scale = np.maximum(np.abs(data).max(axis=1, keepdims=True), np.finfo(float).tiny)
    std = (data / scale).std(axis=1, ddof=1) * scale[:, 0]  # scaled: squares of 1e200 overflow
    return np.maximum(mean - std, smallest), mean + std


def _tails(values: pd.DataFrame, places: pd.Series, last_common: float) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    tails = []
    for run in values.columns:
        tail = values.loc[values.index >= last_common, run].dropna()
        if len(tail) > (1 if last_common > -np.inf else 0):
            tails.append((places.reindex(tail.index).to_numpy(), tail.to_numpy()))
    return tuple(tails)


def curves_by_split(
    rows: pd.DataFrame,
    x: str,
    columns: Mapping[str, str],
    summarise: Callable[[pd.DataFrame, str, str], Curve] = aggregate,
) -> Curves:
    """The curves of each group, in the table's order, for each split of `columns` (split -> column) with
    values.
    """
    return {
        split: {str(group): summarise(part, x, column) for group, part in rows.groupby("group", sort=False)}
        for split, column in columns.items()
        if rows[column].notna().any()
    }


def x_label(x: str, curves: Curves) -> str:
    """Name of the x-axis; the runs of a group reach a step at different times, and it stands at their mean."""
    several = any(curve.runs > 1 for groups in curves.values() for curve in groups.values())
    return f"{X_LABELS[x]}, mean over runs" if several and x == "time_s" else X_LABELS[x]


def draw_curves(axes: Axes, curves: Curves) -> None:
    """All of them: one colour (and marker) per group, one line style per split."""
    for split, groups in curves.items():
        for index, curve in enumerate(groups.values()):
            draw_curve(axes, curve, split, *colour_and_marker(index))


def draw_curve(axes: Axes, curve: Curve, split: str, colour: str, marker: str) -> None:
    """Mean, band and tails of one group: test solid, train dotted, single runs thin."""
    style, width = SPLIT_LOOKS[split]
    every = max(len(curve.x) // 6, 1)
    alone = len(curve.x) == 1
    if len(curve.x):
        axes.plot(
            curve.x,
            curve.mean,
            linestyle=style,
            linewidth=width,
            color=colour,
            marker="o" if alone else marker,
            markersize=3,
            markevery=every,
        )
    if curve.band and split == "test":
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.22, linewidth=0)
    for x, y in curve.tails:
        axes.plot(x, y, linestyle=style, linewidth=0.5, color=colour, marker="." if len(x) == 1 else "")


def legend_handles(curves: Curves) -> list[Artist]:
    """Legend entries: the groups, then what they share (line styles of the splits, bands, single runs)."""
    if not curves:
        return []
    groups = next(iter(curves.values()))
    every = [curve for split in curves.values() for curve in split.values()]
    colour = colour_and_marker(0)[0] if len(groups) == 1 else GREY
    return _group_handles(groups) + _shared_handles(every, list(curves), colour)


def _group_handles(curves: dict[str, Curve]) -> list[Artist]:
    handles: list[Artist] = []
    for index, (group, curve) in enumerate(curves.items()):
        if index == MAX_LEGEND_GROUPS:
            handles.append(Line2D([], [], linestyle="", label=f"and {len(curves) - index} more groups"))
            break
        colour, marker = colour_and_marker(index)
        count = f"n={curve.runs}" if curve.runs > 1 else ""
        label = plain(f"{group} ({count})" if group and count else group or count)
        if label:
            handles.append(Line2D([], [], color=colour, marker=marker, markersize=3, linewidth=1.4, label=label))
    return handles


def _shared_handles(curves: Sequence[Curve], splits: Sequence[str], colour: str) -> list[Artist]:
    handles: list[Artist] = []
    for split in splits:
        style, width = SPLIT_LOOKS[split]
        handles.append(Line2D([], [], color=colour, linestyle=style, linewidth=width, label=split))
    bands = sorted({curve.band for curve in curves if curve.band}, reverse=True)
    handles += [Patch(facecolor=colour, alpha=0.3, linewidth=0, label=f"{band} (test)") for band in bands]
    if any(curve.tails for curve in curves if curve.runs > 1):
        handles.append(Line2D([], [], color=colour, linewidth=0.5, label="single runs"))
    return handles
