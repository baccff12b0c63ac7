"""Curves of variants over epochs, a panel per setting: mean and band over completed trials, diverged ones thin.

A table has the rows of metrics.csv of all trials, with the columns setting, variant, run, status, step and epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.curves import Curve, aggregate, prepared
from symlab.plots.panels import need_columns, stacked_panels
from symlab.plots.style import GREY, SMALL_PT, colour_and_marker, plain, wrapped

COLUMNS = ("setting", "variant", "run", "status", "step", "epoch")
HEADROOM = 3.0  # a diverging trial leaves the axis at this many times the largest value of those that completed
Curves = dict[str, dict[str, "VariantCurves"]]  # setting -> variant -> curves


@dataclass(frozen=True)
class VariantCurves:
    """What is drawn of one variant in one setting."""

    completed: Curve | None
    diverged: tuple[pd.DataFrame, ...]  # rows of each such trial; none for one that diverged before its first value


def variant_panels(
    table: pd.DataFrame, column: str, *, title: str, y_label: str, width_in: float, height_in: float
) -> tuple[Figure, list[Axes]]:
    """`column` over epochs; the panels, one per setting in the table's order, have the same two scales.

    Mean over the completed trials of a variant, with a band: mean +- 1 standard deviation from 3 on, smallest to
    largest of 2. A diverged trial is a thin line up to its last evaluation, where a cross stands.

    Raises ValueError for a table without rows or without one of its columns, or a width or height that is not positive.
    """
    need_columns(table, [*COLUMNS, column], "variants")
    rows = prepared(table, "epoch", [column]).join(table[["setting", "variant", "status"]])
    names = list(dict.fromkeys(rows["variant"]))
    curves: Curves = {
        str(setting): {name: _curves(part[part["variant"] == name], column) for name in names}
        for setting, part in rows.groupby("setting", sort=False)
    }
    panels = {wrapped(_heading(setting, own), width_in - 0.4, SMALL_PT): y_label for setting, own in curves.items()}
    figure, grid = stacked_panels(title, _handles(names, curves), panels, width_in, height_in, "epoch")
    for axes, own in zip(grid, curves.values(), strict=True):
        for index, name in enumerate(names):
            _draw(axes, own[name], column, colour_and_marker(index)[0])
    return figure, grid


def completed_range(table: pd.DataFrame, column: str) -> tuple[float, float] | None:
    """Least positive and largest finite value among completed trials (among all where none completed)."""
    done = table[table["status"] == "completed"]
    values = pd.to_numeric((done if len(done) else table)[column])
    values = values[(values > 0) & (values < float("inf"))]
    return (float(values.min()), float(values.max())) if len(values) else None


def _curves(rows: pd.DataFrame, column: str) -> VariantCurves:
    done = rows[rows["status"] == "completed"].dropna(subset=[column])
    lost = rows[rows["status"] != "completed"]
    return VariantCurves(
        aggregate(done, "epoch", column) if len(done) else None,
        tuple(part.dropna(subset=[column]).sort_values("step") for _, part in lost.groupby("run", sort=False)),
    )


def _heading(setting: str, curves: dict[str, VariantCurves]) -> str:
    """The setting, and what became of the trials of each variant."""
    counts = []
    for name, own in curves.items():
        done = own.completed.runs if own.completed else 0
        counts.append(f"{name} n={done}" + (f" + {len(own.diverged)} diverged" if own.diverged else ""))
    return f"{setting}: {', '.join(counts)}"


def _handles(names: list[str], curves: Curves) -> list[Artist]:
    every = [one for own in curves.values() for one in own.values()]
    handles: list[Artist] = [
        Line2D([], [], color=colour_and_marker(index)[0], linewidth=1.4, label=plain(name))
        for index, name in enumerate(names)
    ]
    bands = dict.fromkeys(one.completed.band for one in every if one.completed and one.completed.band)
    handles += [Patch(facecolor=GREY, alpha=0.3, linewidth=0, label=band) for band in bands]
    if any(one.diverged for one in every):
        look: dict[str, Any] = {"linewidth": 0.6, "marker": "x", "markersize": 3}
        handles.append(Line2D([], [], color=GREY, label="diverged", **look))
    return handles


def _draw(axes: Axes, curves: VariantCurves, column: str, colour: str) -> None:
    if curves.completed is not None:
        curve = curves.completed
        axes.plot(curve.x, curve.mean, color=colour, linewidth=1.3, marker="." if len(curve.x) == 1 else "")
        if curve.band:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.22, linewidth=0)
        for x, y in curve.tails:
            axes.plot(x, y, color=colour, linewidth=0.5)
    for rows in curves.diverged:
        line = axes.plot(rows["epoch"], rows[column], color=colour, linewidth=0.6, marker="x", markersize=3)[0]
        line.set_markevery([len(rows) - 1] if len(rows) else None)
