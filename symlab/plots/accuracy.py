"""Train and test accuracy of classification runs, in per cent."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from symlab.plots.curves import curves_by_split, draw_curves, legend_handles, prepared, x_label
from symlab.plots.style import COLUMN_WIDTH_IN, figure_with_legend, label_axes


def accuracy(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    x: str = "step",
    train: bool = True,
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 2.3,
) -> Figure:
    """100 times the share of rows classified correctly over `x` (step, epoch or time_s); test solid,
    train dotted.

    `table`: the rows of metrics.csv (columns step, train_accuracy and test_accuracy in [0, 1], x) of all
    runs; with the columns run and group, the runs of a group become their mean and, for the test
    accuracy, a band: mean +- 1 standard deviation from 3 runs on, smallest to largest of 2. A run that
    ends early is drawn by itself from where the group's mean ends. `references` are losses, so none is
    drawn here. `train`: draw the training accuracy too. `width_in`, `height_in`: inches, height without
    title and legend.

    Raises ValueError for an empty table, an unknown x or a missing column, as in a regression run.
    """
    columns = {"test": "test_accuracy", "train": "train_accuracy"} if train else {"test": "test_accuracy"}
    rows = prepared(table, x, list(columns.values()))
    for column in columns.values():
        rows[column] = 100 * rows[column]
    curves = curves_by_split(rows, x, columns)
    figure, axes = figure_with_legend(title, legend_handles(curves), width_in, height_in)
    label_axes(axes, x_label(x, curves), "accuracy (%)")
    if curves:
        draw_curves(axes, curves)
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -2.0), min(high, 102.0))
    else:
        axes.text(0.5, 0.5, "no finite accuracy", ha="center", va="center", transform=axes.transAxes, fontsize=8)
        axes.set_yticks([])
    return figure
