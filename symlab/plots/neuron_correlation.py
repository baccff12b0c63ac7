"""Correlation of the neurons of one layer, in the order of their clusters: a matrix per arm and decay."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from symlab.plots.matrix_image import add_colour_bar, draw_matrix
from symlab.plots.panels import need_columns
from symlab.plots.style import COLUMN_WIDTH_IN, DPI, LINE_IN, SMALL_PT, TITLE_PT, label_axes, plain, wrapped

COLUMNS = ("i", "j", "value")
FOOT_IN = 0.5  # the colour bar with its label


def neuron_correlation(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    row: str = "decay",
    panel: str = "arm",
    value_label: str = "correlation of the weights into neurons",
    width_in: float = COLUMN_WIDTH_IN,
) -> Figure:
    """Column `value` at (i, j) in colours from -1 to 1: a row of panels per value of column `row`, arms beside it.

    Red blocks on the diagonal are neurons that have become equal. Neurons without weights have no correlation: they
    stand last, white, also on the diagonal. `width_in`: of the figure.

    Raises ValueError for an empty table, a missing column, cells that occur twice (take one run) and a width that is
    not positive.
    """
    need_columns(table, (*COLUMNS, row, panel), "constraint, protocol permutation")
    if not width_in > 0:
        raise ValueError(f"width_in must be positive, got {width_in}")
    if table.duplicated(["i", "j", row, panel]).any():
        raise ValueError("the table holds several matrices for one panel: draw one run at a time")
    rows, columns = sorted(table[row].unique()), list(dict.fromkeys(table[panel]))
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    side = (width_in - 0.55) / len(columns)
    height = (side + 0.2) * len(rows) + 0.2 + FOOT_IN + LINE_IN * (heading.count("\n") + 1)
    figure = Figure(figsize=(width_in, height), dpi=DPI, layout="compressed")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    image = None
    for r, level in enumerate(rows):
        for c, arm in enumerate(columns):
            own = table[(table[row] == level) & (table[panel] == arm)]
            image = draw_matrix(grid[r, c], _matrix(own), 1.0)
            _dress(grid[r, c], f"{arm}, {row} {level:g}", bottom=r == len(rows) - 1, left=c == 0)
    assert image is not None
    add_colour_bar(figure, image, grid, False, plain(value_label))
    return figure


def _matrix(own: pd.DataFrame) -> np.ndarray:
    """[n, n]; NaN (drawn as nothing) where the table has no number."""
    size = int(own[["i", "j"]].max().max()) + 1 if len(own) else 1
    matrix = np.full((size, size), math.nan)
    matrix[own["i"].to_numpy(int), own["j"].to_numpy(int)] = own["value"].to_numpy(float)
    return matrix


def _dress(axes: Axes, name: str, *, bottom: bool, left: bool) -> None:
    axes.set_title(plain(name), fontsize=SMALL_PT)
    axes.tick_params(labelsize=SMALL_PT, labelbottom=bottom, labelleft=left)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
    label_axes(axes, "neuron" if bottom else "", "neuron" if left else "")
