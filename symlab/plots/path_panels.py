"""One measure of many starts along gradient descent: a panel per kind of net, a colour per scale of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.panels import need_columns
from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, GREY
from symlab.plots.variant_grid import decades, over_starts, variant_grid, within

LABELS = {
    "loss": "loss",
    "regularity": "λ(DF)",
    "bound": "lower bound of λ(DF)",
    "hessian_largest": "largest eigenvalue of H",
    "lipschitz": "|change of gradient| / |step|",
    "first_norm": "norm of the first layer",
    "gradient_norm": "norm of the gradient",
    "pl_ratio": "|gradient|² / loss",
}
GUIDES = {"level": "level {level:g}", "edge": "2 / lr", "quarter": "$\\propto t^{1/4}$"}


def path_panels(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    y: str = "loss",
    second: str | None = None,
    guide: str | None = None,
    most: float = 1e3,
    least: float = 1e-6,
    width_in: float = 2 * COLUMN_WIDTH_IN,
    height_in: float = 1.5,
) -> Figure:
    """Column `y` over 1 + step, both axes logarithmic: median over the seeds of each scale, band least to greatest.

    `second`: another column, dashed. `guide`: level, a line at references[level]; edge, at 2 / references[lr];
    quarter, a line that grows as t^(1/4) through the median of the last step. A start that diverged has no more points;
    values above `most` or below `least` times the first step's median are drawn at the edge.

    Raises ValueError for an empty table, an unknown column or guide, and a missing reference.
    """
    for name in (y, *([second] if second else [])):
        if name not in LABELS:
            raise ValueError(f"y and second must be one of {', '.join(LABELS)}, got {name!r}")
    if guide is not None and guide not in GUIDES:
        raise ValueError(f"guide must be one of {', '.join(GUIDES)} or null, got {guide!r}")
    need_columns(table, ["variant", "scale", "seed", "step", "alive", y], "convergence")
    table = table[table["alive"].astype(bool)]
    scales = sorted(set(table["scale"]))
    colours = {scale: COLOURS[i % len(COLOURS)] for i, scale in enumerate(scales)}
    variants = list(dict.fromkeys(table["variant"]))
    limits = decades(table, y, most, least)
    handles = _handles(colours, y, second, guide, references)
    figure, grid = variant_grid(title, variants, handles, ("1 + step (updates)", LABELS[y]), width_in, height_in)
    for axes, variant in zip(grid, variants, strict=True):
        rows = table[table["variant"] == variant]
        for scale, colour in colours.items():
            own = rows[rows["scale"] == scale]
            _line(axes, own, y, colour, limits)
            if second:
                points = over_starts(own, second)
                axes.plot(
                    points["x"] + 1, within(points["median"], limits), color=colour, linewidth=0.9, linestyle="--"
                )
        axes.set(xscale="log", yscale="log", ylim=limits)
        if guide:
            _guide(axes, rows, y, guide, references)
    return figure


def _line(axes: Axes, rows: pd.DataFrame, y: str, colour: str, limits: tuple[float, float]) -> None:
    points = over_starts(rows, y)
    steps = points["x"].to_numpy(float) + 1
    axes.plot(steps, within(points["median"], limits), color=colour, linewidth=1.3)
    low, high = within(points["low"], limits), within(points["high"], limits)
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def _guide(axes: Axes, rows: pd.DataFrame, y: str, guide: str, references: Mapping[str, float]) -> None:
    if guide != "quarter":
        value = references["level"] if guide == "level" else 2 / references["lr"]
        axes.axhline(value, color=GREY, linewidth=1.0, linestyle=":")
        return
    points = over_starts(rows, y)
    t = np.array([1.0, float(points["x"].max()) + 1])
    axes.plot(t, float(points["median"].iloc[-1]) * (t / t[-1]) ** 0.25, color=GREY, linewidth=1.0, linestyle=":")


def _handles(
    colours: Mapping[float, str], y: str, second: str | None, guide: str | None, references: Mapping[str, float]
) -> list[Artist]:
    handles: list[Artist] = [
        Line2D([], [], color=colour, linewidth=1.3, label=f"weights x {scale:g}") for scale, colour in colours.items()
    ]
    if second:
        handles.append(Line2D([], [], color=GREY, linewidth=0.9, linestyle="--", label=LABELS[second]))
    if guide:
        missing = {"level": "level", "edge": "lr"}.get(guide)
        if missing and missing not in references:
            raise ValueError(
                f"guide={guide} needs the reference {missing!r}; there are {', '.join(references) or 'none'}"
            )
        text = GUIDES[guide].format(**references) if guide == "level" else GUIDES[guide]
        handles.append(Line2D([], [], color=GREY, linewidth=1.0, linestyle=":", label=text))
    handles.append(Patch(color=GREY, alpha=0.25, linewidth=0, label="least to greatest over seeds"))
    return handles
