"""The largest curvature of random nets against the scale of the weights: bounded, or growing?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.panels import need_columns
from symlab.plots.style import COLUMN_WIDTH_IN, GREY, colour_and_marker, figure_with_legend, label_axes, plain
from symlab.plots.variant_grid import within

COLUMNS = ("hessian_largest", "hessian_smallest")


def curvature_scales(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    most: float = 1e12,
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 2.3,
) -> Figure:
    """max |Hessian eigenvalue| over all nets of a scale that have not been trained, a line per kind of net, with a band
    down to the net with the least; dotted: 2 / references[lr]. Both axes are logarithmic; values above `most` are drawn
    at its height.

    Raises ValueError for an empty table, a missing column or reference.
    """
    need_columns(table, ["variant", "scale", "step", "rows", *COLUMNS], "convergence")
    if "lr" not in references:
        raise ValueError("this figure needs the reference 'lr'")
    untrained = pd.to_numeric(table["step"]).fillna(0) == 0
    rows = table[(table["rows"] == "given") & untrained]
    worst = rows[list(COLUMNS)].apply(pd.to_numeric).abs().max(axis=1)
    rows = rows.assign(worst=worst).dropna(subset=["worst"])
    variants = list(dict.fromkeys(rows["variant"]))
    looks = {name: colour_and_marker(i) for i, name in enumerate(variants)}
    handles: list[Artist] = [
        Line2D([], [], color=colour, marker=marker or "o", markersize=3, linewidth=1.3, label=plain(name))
        for name, (colour, marker) in looks.items()
    ]
    handles.append(Line2D([], [], color=GREY, linewidth=1.0, linestyle=":", label="2 / lr"))
    handles.append(Patch(color=GREY, alpha=0.25, linewidth=0, label="down to the least of the nets"))
    figure, axes = figure_with_legend(title, handles, width_in, height_in)
    for name, (colour, marker) in looks.items():
        own = rows[(rows["variant"] == name) & (rows["worst"] > 0)].groupby("scale")["worst"]
        low, high = (within(points, (0.0, most)) for points in (own.min(), own.max()))
        axes.plot(own.max().index, high, color=colour, marker=marker or "o", markersize=3, linewidth=1.3)
        axes.fill_between(own.max().index, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.axhline(2 / references["lr"], color=GREY, linewidth=1.0, linestyle=":")
    axes.set(xscale="log", yscale="log")
    label_axes(axes, "scale of the weights", "largest |Hessian eigenvalue|")
    return figure
