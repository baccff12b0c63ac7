"""The lower bound of lambda(DF) layer by layer: which layer carries it, and how much it leaves to be desired."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.panels import need_columns
from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, GREY
from symlab.plots.variant_grid import over_starts, variant_grid, within

FLOOR = 1e-16


def layer_terms(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    scale: float = 1.0,
    floor: float = FLOOR,
    width_in: float = 2 * COLUMN_WIDTH_IN,
    height_in: float = 1.5,
) -> Figure:
    """Terms lambda(Df_l) prod_{k>l} lambda(Jf_k) over 1 + step, a colour per layer; black: lambda(DF), dashed: the sum.

    Of the starts whose weights were multiplied by `scale`: median over seeds, band least to greatest. Values below
    `floor` are drawn on it. `references` are not drawn.

    Raises ValueError for an empty table, a missing column, a scale that the table has not, a floor not above 0.
    """
    if not floor > 0:
        raise ValueError(f"floor must be positive, got {floor}")
    need_columns(table, ["variant", "scale", "seed", "step", "layer", "term", "regularity", "bound"], "convergence")
    rows = table[table["scale"] == scale]
    if rows.empty:
        raise ValueError(f"scale={scale:g}: the table has {', '.join(f'{s:g}' for s in sorted(set(table['scale'])))}")
    layers = list(dict.fromkeys(rows["layer"]))
    colours = {layer: COLOURS[i % (len(COLOURS) - 1)] for i, layer in enumerate(layers)}
    handles: list[Artist] = [
        Line2D([], [], color=colour, linewidth=1.3, label=f"term of {layer}") for layer, colour in colours.items()
    ]
    handles += [
        Line2D([], [], color="#000000", linewidth=1.6, label="λ(DF)"),
        Line2D([], [], color="#000000", linewidth=0.9, linestyle="--", label="lower bound, their sum"),
        Patch(color=GREY, alpha=0.25, linewidth=0, label="least to greatest over seeds"),
    ]
    variants = list(dict.fromkeys(rows["variant"]))
    limits = (floor, 10 * float(pd.to_numeric(rows["regularity"]).max()))
    labels = ("1 + step (updates)", "eigenvalue")
    figure, grid = variant_grid(f"{title}, weights x {scale:g}", variants, handles, labels, width_in, height_in)
    for axes, variant in zip(grid, variants, strict=True):
        own = rows[rows["variant"] == variant]
        one = own[own["layer"] == own["layer"].iloc[0]]
        for layer, colour in colours.items():
            if not (part := own[own["layer"] == layer]).empty:
                points = over_starts(part, "term")
                low, high = within(points["low"], limits), within(points["high"], limits)
                axes.fill_between(points["x"] + 1, low, high, color=colour, alpha=0.15, linewidth=0)
                axes.plot(points["x"] + 1, within(points["median"], limits), color=colour, linewidth=1.3)
        for column, width, line in (("regularity", 1.6, "-"), ("bound", 0.9, "--")):
            points = over_starts(one, column)
            axes.plot(
                points["x"] + 1, within(points["median"], limits), color="#000000", linewidth=width, linestyle=line
            )
        axes.set(xscale="log", yscale="log", ylim=limits)
    return figure
