"""Sharpness and loss through gradient descent, with the line 2 / lr."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from symlab.plots.panels import need_columns
from symlab.plots.style import (
    COLUMN_WIDTH_IN,
    DPI,
    GREY,
    LINE_IN,
    SMALL_PT,
    TITLE_PT,
    colour_and_marker,
    label_axes,
    plain,
    wrapped,
)
from symlab.plots.variant_grid import over_starts

LABELS = {"hessian_largest": "largest Hessian eigenvalue", "loss": "loss"}


def edge_of_stability(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 1.8,
) -> Figure:
    """Above the largest Hessian eigenvalue, dashed at 2 / references[lr], below the loss, both logarithmic, over steps.

    A line per kind of net: the median over its trials, the band from the least to the greatest. A trial that diverged
    has no more points. `height_in`: of each panel.

    Raises ValueError for an empty table, a missing column or reference, and sizes that are not positive.
    """
    need_columns(table, ["variant", "seed", "step", *LABELS], "sharpness")
    if "lr" not in references:
        raise ValueError("this figure needs the reference 'lr'")
    if not (width_in > 0 and height_in > 0):
        raise ValueError(f"width_in and height_in must be positive, got {width_in} and {height_in}")
    looks = {name: colour_and_marker(i)[0] for i, name in enumerate(dict.fromkeys(table["variant"]))}
    handles: list[Artist] = [
        Line2D([], [], color=colour, linewidth=1.3, label=plain(name)) for name, colour in looks.items()
    ]
    handles.append(Line2D([], [], color=GREY, linewidth=1.1, linestyle="--", label="2 / lr"))
    trials = len(table[["variant", "seed"]].drop_duplicates()) // len(looks)
    if trials > 1:
        handles.append(Patch(color=GREY, alpha=0.25, linewidth=0, label=f"median, band least to greatest of {trials}"))
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    lines = heading.count("\n") + 2 + (len(handles) + 1) // 2
    figure = Figure(figsize=(width_in, 2 * height_in + LINE_IN * lines), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    for axes, (column, label) in zip(figure.subplots(2, 1, sharex=True), LABELS.items(), strict=True):
        for name, colour in looks.items():
            points = over_starts(table[table["variant"] == name], column)
            axes.plot(points["x"], points["median"], color=colour, linewidth=1.3)
            axes.fill_between(points["x"], points["low"], points["high"], color=colour, alpha=0.15, linewidth=0)
        if column == "hessian_largest":
            axes.axhline(2 / references["lr"], color=GREY, linewidth=1.1, linestyle="--")
        if bool((pd.to_numeric(table[column]) > 0).any()):
            _logarithmic(axes)
        axes.tick_params(labelsize=SMALL_PT, which="both")
        axes.grid(True, which="major", color="#dddddd", linewidth=0.5)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        label_axes(axes, "step (updates)" if column == "loss" else "", label)
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=SMALL_PT, frameon=False)
    return figure


def _logarithmic(axes: Axes) -> None:
    """Ticks at 1, 2 and 5 of each decade. (Axes without a positive number cannot have them.)"""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, (1.0, 2.0, 5.0), numticks=8))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(NullFormatter())
