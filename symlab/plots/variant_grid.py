"""Panels side by side, one per kind of net, with the same two axes and one legend under them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from symlab.plots.style import DPI, LINE_IN, SMALL_PT, TITLE_PT, bare, label_axes, legend_below, plain, wrapped

MOST_COLUMNS = 3
LEGEND_COLUMNS = 4


def variant_grid(
    title: str,
    variants: Sequence[str],
    handles: Sequence[Artist],
    labels: tuple[str, str],
    width_in: float,
    height_in: float,
) -> tuple[Figure, list[Axes]]:
    """A figure with one pair of axes per variant, two or three beside each other, `height_in` inches each.

    `labels`: of the x- and the y-axis. Raises ValueError unless width and height are positive.
    """
    if not (width_in > 0 and height_in > 0):
        raise ValueError(f"width_in and height_in must be positive, got {width_in} and {height_in}")
    columns = 2 if len(variants) == 4 else min(MOST_COLUMNS, len(variants))
    rows = math.ceil(len(variants) / columns)
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    lines = heading.count("\n") + 2 + math.ceil(len(handles) / LEGEND_COLUMNS)
    figure = Figure(figsize=(width_in, rows * (height_in + LINE_IN) + LINE_IN * lines), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    grid = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for axes in grid[len(variants) :]:
        axes.remove()
    for place, (axes, variant) in enumerate(zip(grid, variants, strict=False)):
        axes.set_title(plain(variant), fontsize=SMALL_PT)
        below = place + columns >= len(variants)
        bare(axes)
        axes.tick_params(which="both", labelbottom=below)
        label_axes(axes, labels[0] if below else "", labels[1] if place % columns == 0 else "")
    legend_below(figure, handles, LEGEND_COLUMNS)
    return figure, grid[: len(variants)]


def over_starts(rows: pd.DataFrame, y: str, x: str = "step") -> pd.DataFrame:
    """Per x the median of column `y` over the rows there, the least and the greatest: columns x, median, low, high.

    Cells without a number (the net diverged) are left out.
    """
    values = rows.assign(**{y: pd.to_numeric(rows[y])}).replace([np.inf, -np.inf], np.nan).dropna(subset=[y])
    found = values.groupby(x)[y].agg(["median", "min", "max"]).reset_index()
    return found.set_axis(["x", "median", "low", "high"], axis=1)


def within(values: pd.Series, limits: tuple[float, float]) -> np.ndarray:
    """The values cut to the limits, so that one net that blows up does not rule the axis."""
    return values.to_numpy(float).clip(*limits)


def decades(rows: pd.DataFrame, y: str, most: float = 1e6, least: float = 1e-14) -> tuple[float, float]:
    """Limits of a logarithmic axis for the positive values of column `y`: whole decades within [least, most] times the
    median of the first step.
    """
    numbers = pd.to_numeric(rows[y]).replace([np.inf, -np.inf], np.nan)
    positive = numbers[numbers > 0]
    if positive.empty:
        return 1e-1, 1e1
    anchor = float(positive[rows.loc[positive.index, "step"] == rows["step"].min()].median())
    anchor = float(positive.median()) if math.isnan(anchor) else anchor
    low, high = max(float(positive.min()), least * anchor), min(float(positive.max()), most * anchor)
    low, high = min(low, high), max(low, high)
    return 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high) + 1e-9)
