"""Measured learning times against predicted time scales, on logarithmic axes, with a line of slope 1."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, GREY, figure_with_legend, label_axes, plain
from symlab.plots.sweep import check_columns

MARKS = ("o", "s", "^", "D", "v")
SCALES = {"u w": "u w: 1 / (lr x y)", "one parameter": "one parameter: 1 / (lr x²)"}


def time_scales(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    start: str = "relative",
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 2.2,
) -> Figure:
    """Column `updates` over column `scale`, a point per row, a colour per arm; dashed: slope 1 through their mean.

    `start`: the kind of starts. Rows without a time are left out and counted in the legend.

    Raises ValueError for an empty table, a missing column and a kind of starts that the table does not have.
    """
    check_columns(table, {"x": "scale", "y": "updates", "group": "arm", "start": "start"})
    rows = table[table["start"] == start]
    if rows.empty:
        raise ValueError(f"start={start!r}: the table has {', '.join(sorted(set(table['start'])))}")
    rows = rows.assign(updates=pd.to_numeric(rows["updates"]), scale=pd.to_numeric(rows["scale"]))
    known = rows[np.isfinite(rows["updates"]) & (rows["updates"] > 0)]
    handles: list[Artist] = []
    lines: list[tuple[pd.DataFrame, Line2D]] = []
    for index, (arm, own) in enumerate(known.groupby("arm", sort=False)):
        label = plain(SCALES.get(str(arm), str(arm)))
        look = Line2D([], [], color=COLOURS[index % len(COLOURS)], marker=MARKS[index % len(MARKS)], label=label)
        look.set(linestyle="", markersize=2.5, markerfacecolor="none", markeredgewidth=0.6)
        handles.append(look)
        lines.append((own, look))
    handles.append(Line2D([], [], color=GREY, linewidth=0.9, dashes=(4, 2), label="slope 1 through the mean"))
    if missing := len(rows) - len(known):
        handles.append(Line2D([], [], linestyle="", label=f"{missing} never learnt, left out"))
    figure, axes = figure_with_legend(title, handles, width_in, height_in)
    label_axes(axes, "predicted time scale (updates)", "time to learn (updates)")
    axes.set(xscale="log", yscale="log")
    for own, look in lines:
        scale, updates = own["scale"].to_numpy(float), own["updates"].to_numpy(float)
        (line,) = axes.plot(scale, updates)
        line.set(color=look.get_color(), marker=look.get_marker(), linestyle="", markersize=2.5)
        line.set(markerfacecolor="none", markeredgewidth=0.6)
        ends = np.array([scale.min(), scale.max()])
        axes.plot(
            ends, ends * np.exp(np.log(updates / scale).mean()), color=GREY, linewidth=0.9, dashes=(4, 2), zorder=3
        )
    return figure
