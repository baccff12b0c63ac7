"""Histograms of the singular values of a Jacobian, one variant of a net under the other on one scale."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.panels import need_columns, stacked_panels
from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, GREY, SMALL_PT, colour_and_marker, plain


def singular_value_histogram(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    log: bool = False,
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 1.1,
) -> Figure:
    """Density of the singular values in each bin: mean over trials, band of one standard deviation over them.

    `table`: histogram.csv of the job singular-values: trial, variant, kind (measured or law), low, high, density. The
    densities are of all singular values, so what is not in the figure's range is said in it. Rows of kind law are the
    limit for large matrices, a dashed line. `log`: a logarithmic axis, for tails. `references` are not drawn: these
    axes hold no loss. `width_in`, `height_in`: inches, the height of each panel.

    Raises ValueError for an empty table or a missing column.
    """
    need_columns(table, ["trial", "variant", "kind", "low", "high", "density"], "singular-values (histogram.csv)")
    measured, laws = table[table["kind"] == "measured"], table[table["kind"] == "law"]
    variants = list(dict.fromkeys(measured["variant"]))
    labels = dict.fromkeys([plain(str(variant)) for variant in variants], "density")
    trials = measured["trial"].nunique()
    figure, grid = stacked_panels(
        title, _handles(trials, not laws.empty), labels, width_in, height_in, "singular value"
    )
    tallest = 0.0
    for index, (axes, variant) in enumerate(zip(grid, variants, strict=True)):
        colour, _ = colour_and_marker(index)
        tallest = max(tallest, _draw(axes, measured[measured["variant"] == variant], colour))
        law = laws[laws["variant"] == variant]
        if not law.empty:
            axes.plot((law["low"] + law["high"]) / 2, law["density"], color="black", linewidth=1.0, linestyle="--")
    if log:
        grid[0].set_yscale("log", nonpositive="clip")
    elif tallest > 0:
        grid[0].set_ylim(0, 1.08 * tallest)
    grid[0].set_xlim(float(measured["low"].min()), float(measured["high"].max()))
    return figure


def _draw(axes: Axes, rows: pd.DataFrame, colour: str) -> float:
    """Steps and band of one variant; returns the highest point of the band."""
    bins = rows.groupby("low").agg(high=("high", "first"), mean=("density", "mean"), std=("density", "std"))
    edges = np.append(bins.index.to_numpy(float), bins["high"].iloc[-1])  # [bins + 1]
    mean, std = bins["mean"].to_numpy(float), bins["std"].fillna(0.0).to_numpy(float)
    axes.stairs(mean, edges, color=colour, fill=True, alpha=0.35, linewidth=0)
    axes.stairs(mean, edges, color=colour, linewidth=1.2)
    low, high = np.maximum(mean - std, 0.0), mean + std
    axes.fill_between(edges, np.append(low, low[-1]), np.append(high, high[-1]), step="post", color=GREY, alpha=0.35,
                      linewidth=0)  # fmt: skip
    outside = 1 - float((mean * np.diff(edges)).sum())
    if outside > 5e-4:
        told = f"{100 * outside:.2g} % beyond the axis"
        axes.annotate(told, (0.98, 0.8), xycoords="axes fraction", ha="right", fontsize=SMALL_PT - 1, color=GREY)
    return float(high.max())


def _handles(trials: int, law: bool) -> list[Artist]:
    several = f"mean over {trials} trials" if trials > 1 else "one trial"
    handles: list[Artist] = [Patch(color=COLOURS[0], alpha=0.5, linewidth=0, label=several)]
    if trials > 1:
        handles.append(Patch(color=GREY, alpha=0.35, linewidth=0, label="±1 std over trials"))
    if law:
        handles.append(Line2D([], [], color="black", linewidth=1.0, linestyle="--", label="limit for large n"))
    return handles
