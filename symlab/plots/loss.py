"""Train and test loss against steps on a logarithmic axis, with reference lines."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from symlab.plots.curves import (
    X_LABELS,
    Curve,
    aggregate,
    draw_curve,
    group_handles,
    prepared,
    shared_handles,
)
from symlab.plots.style import (
    COLUMN_WIDTH_IN,
    GREY,
    colour_and_marker,
    label_axes,
    legend_below,
    legend_columns,
    new_figure,
    plain,
)

SPLITS = ("test", "train")
HEADROOM = 100.0  # the axis ends at this many times the largest loss at the start


def loss(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    x: str = "step",
    y_label: str = "loss",
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 2.3,
) -> Figure:
    """Loss over `x` (step, epoch or time_s) of one or many runs, log scale: test solid, train dotted.

    `table`: the rows of metrics.csv (columns step, train_loss, test_loss, x) of all runs; with the
    columns run and group, the runs of a group become their mean and, for the test loss, a band: mean +- 1
    standard deviation from 3 runs on, smallest to largest of 2. `references` (name -> test loss) become
    dashed horizontal lines; one that lies far below or above the curves is named in the legend only.
    Values that are not finite or not positive are left out; a run that ends early is drawn by itself from
    where the group's mean ends. The axis ends at 100 times the largest loss at the start, so that a
    diverging run does not flatten the others. `width_in`, `height_in`: inches, height without title and
    legend.

    Raises ValueError for an empty table, a missing column or an unknown x.
    """
    columns = {split: f"{split}_loss" for split in SPLITS}
    rows = prepared(table, x, list(columns.values()))
    for column in columns.values():
        rows[column] = rows[column].where(rows[column] > 0)
    splits = [split for split in SPLITS if rows[columns[split]].notna().any()]
    curves = {
        split: {str(group): aggregate(part, x, columns[split]) for group, part in rows.groupby("group", sort=False)}
        for split in splits
    }
    limits = _limits(rows, [columns[split] for split in splits])
    handles = _handles(curves, splits, references, limits)
    labels = [str(handle.get_label()) for handle in handles]
    legend_cols = legend_columns(labels, width_in)
    figure, axes = new_figure(title, math.ceil(len(handles) / legend_cols), width_in, height_in)
    _draw(axes, curves, references, limits)
    label_axes(axes, X_LABELS[x], y_label)
    legend_below(figure, handles, legend_cols)
    return figure


def _draw(
    axes: Axes,
    curves: Mapping[str, Mapping[str, Curve]],
    references: Mapping[str, float],
    limits: tuple[float, float] | None,
) -> None:
    if limits is None:
        axes.text(0.5, 0.5, "no finite loss to draw", ha="center", va="center", transform=axes.transAxes, fontsize=8)
        axes.set_yticks([])
        return
    axes.set_yscale("log", nonpositive="mask")
    for split, groups in curves.items():
        for index, curve in enumerate(groups.values()):
            draw_curve(axes, curve, split, *colour_and_marker(index))
    shown = [value for value in references.values() if _on_axis(value, limits)]
    for index, value in enumerate(shown):
        axes.axhline(value, color=GREY, linewidth=0.9, dashes=_dashes(index), zorder=1.5)
    low, high = min([limits[0], *shown]), max([limits[1], *shown])
    axes.set_ylim(low / 1.25, high * 1.25)


def _limits(rows: pd.DataFrame, columns: list[str]) -> tuple[float, float] | None:
    """Smallest and largest loss to show; None if there is no finite positive one."""
    values = rows[columns].to_numpy().ravel() if columns else np.empty(0)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    start = rows.loc[rows["step"] == rows["step"].min(), columns].to_numpy().ravel()
    start = start[np.isfinite(start)]
    ceiling = HEADROOM * start.max() if len(start) else math.inf
    low = float(values.min())
    return low, max(float(min(values.max(), ceiling)), low)


def _on_axis(value: float, limits: tuple[float, float] | None) -> bool:
    return limits is not None and limits[0] / 10 <= value <= limits[1] * 3


def _dashes(index: int) -> tuple[int, ...]:
    """Dash pattern number `index`; the first is the plain dash."""
    return ((5, 2), (5, 2, 1, 2), (2, 2), (8, 2, 2, 2))[index % 4]


def _handles(
    curves: Mapping[str, dict[str, Curve]],
    splits: list[str],
    references: Mapping[str, float],
    limits: tuple[float, float] | None,
) -> list[Artist]:
    if limits is None:
        return []
    every = [curve for groups in curves.values() for curve in groups.values()]
    handles = group_handles(dict(curves[splits[0]])) + shared_handles(every, splits)
    shown = 0
    for name, value in references.items():
        if _on_axis(value, limits):
            label, dashes = f"{name} ({value:.3g})", _dashes(shown)
            shown += 1
            handles.append(Line2D([], [], color=GREY, linewidth=0.9, dashes=dashes, label=plain(label)))
        else:
            label = f"{name} ({value:.1e}, off the axis)"
            handles.append(Line2D([], [], linestyle="", label=plain(label)))
    return handles
