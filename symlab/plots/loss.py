"""Train and test loss on a logarithmic axis, with reference lines."""

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
    Curves,
    aggregate,
    aggregate_medians,
    curves_by_split,
    draw_curves,
    legend_handles,
    prepared,
    x_label,
)
from symlab.plots.style import COLUMN_WIDTH_IN, GREY, figure_with_legend, label_axes, plain

HEADROOM = 100.0  # the axis ends at this many times the largest loss at the start
DRAWABLE = (1e-100, 1e100)  # matplotlib's logarithmic axis overflows far beyond
REACH = 100.0  # a reference this many times below the smallest loss is still drawn
DASHES = ((5, 2), (5, 2, 1, 2), (2, 2), (8, 2, 2, 2))
Limits = tuple[float, float]


def loss(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    x: str = "step",
    train: bool = True,
    medians: bool = False,
    y_label: str = "loss",
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 2.3,
) -> Figure:
    """Loss over `x` (step, epoch or time_s) of one or many runs, log scale: test solid, train dotted.

    `table`: the rows of metrics.csv (columns step, train_loss, test_loss, x) of all runs; with the
    columns run and group, the runs of a group become their mean and, for the test loss, a band: mean +- 1
    standard deviation from 3 runs on, smallest to largest of 2. A run that ends early is drawn by itself
    from where the group's mean ends. `references` (name -> test loss) become dashed lines; one that lies
    more than 100 times below or 3 times above the curves is named in the legend only. Values out of
    1e-100..1e100 (inf, nan, 0) are left out. The axis ends at 100 times the largest loss at the start, so that
    a diverging run does not flatten the others. `train`: draw the training loss too. `medians`: median and quartiles
    of the runs, those that ended early counting as infinite, in place of mean and deviation. `width_in`,
    `height_in`: inches, height without title and legend.

    Raises ValueError for an empty table, a missing column or an unknown x.
    """
    columns = {"test": "test_loss", "train": "train_loss"} if train else {"test": "test_loss"}
    rows = prepared(table, x, list(columns.values()))
    for column in columns.values():
        rows[column] = rows[column].where(rows[column].between(*DRAWABLE))
    curves = curves_by_split(rows, x, columns, aggregate_medians if medians else aggregate)
    limits = _limits_of_medians(curves) if medians else _limits(rows, list(columns.values()))
    handles = legend_handles(curves) + _reference_handles(references, limits)
    figure, axes = figure_with_legend(title, handles, width_in, height_in)
    label_axes(axes, x_label(x, curves), y_label)
    if limits is None:
        axes.text(0.5, 0.5, "no finite loss", ha="center", va="center", transform=axes.transAxes, fontsize=8)
        axes.set_yticks([])
    else:
        _draw(axes, curves, references, limits)
    return figure


def _draw(axes: Axes, curves: Curves, references: Mapping[str, float], limits: Limits) -> None:
    axes.set_yscale("log", nonpositive="mask")
    shown = [value for value in references.values() if _on_axis(value, limits)]
    axes.set_ylim(min([limits[0], *shown]) / 1.25, max([limits[1], *shown]) * 1.25)
    draw_curves(axes, curves)
    for index, value in enumerate(shown):
        axes.axhline(value, color=GREY, linewidth=0.9, dashes=DASHES[index % len(DASHES)], zorder=1.5)


def _limits(rows: pd.DataFrame, columns: list[str]) -> Limits | None:
    """Smallest and largest loss to show; None if there is no finite positive one."""
    values = rows[columns].to_numpy().ravel()
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    start = rows.loc[rows["step"] == rows["step"].min(), columns].to_numpy().ravel()
    start = start[np.isfinite(start)]
    ceiling = HEADROOM * start.max() if len(start) else math.inf
    low = float(values.min())
    return low, max(float(min(values.max(), ceiling)), low)


def _limits_of_medians(curves: Curves) -> Limits | None:
    """Smallest lower quartile and largest median: the worst runs may leave the axis; None if there is no median."""
    every = [curve for groups in curves.values() for curve in groups.values() if len(curve.mean)]
    if not every:
        return None
    return min(float(curve.low.min()) for curve in every), max(float(curve.mean.max()) for curve in every)


def _on_axis(value: float, limits: Limits | None) -> bool:
    return limits is not None and limits[0] / REACH <= value <= limits[1] * 3


def _reference_handles(references: Mapping[str, float], limits: Limits | None) -> list[Artist]:
    handles: list[Artist] = []
    shown = 0
    for name, value in references.items():
        if _on_axis(value, limits):
            dashes = DASHES[shown % len(DASHES)]
            shown += 1
            label = plain(f"{name}: {value:.3g}")
            handles.append(Line2D([], [], color=GREY, linewidth=0.9, dashes=dashes, label=label))
        else:
            label = plain(f"{name}: {value:.1e}, off the axis")
            handles.append(Line2D([], [], linestyle="", label=label))
    return handles
