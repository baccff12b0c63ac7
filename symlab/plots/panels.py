"""Panels under each other with one x-axis and one legend, and the series that stand in them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from symlab.plots.style import DPI, LINE_IN, SMALL_PT, TITLE_PT, bare, label_axes, legend_below, legend_columns, wrapped


@dataclass(frozen=True)
class Look:
    """How one series is drawn; `label` is its name in the legend."""

    label: str
    colour: str
    linestyle: Literal["-", "--"] = "-"
    marker: str = ""
    width: float = 1.3  # points


def stacked_panels(
    title: str, handles: Sequence[Artist], panels: Mapping[str, str], width_in: float, height_in: float, x_label: str
) -> tuple[Figure, list[Axes]]:
    """A figure with one pair of axes per panel (heading -> label of the y-axis), `height_in` inches each.

    All panels have the same two scales, so that their curves compare. Title and legend add the height of their lines.

    Raises ValueError unless width and height are positive.
    """
    if not (width_in > 0 and height_in > 0):
        raise ValueError(f"width_in and height_in must be positive, got {width_in} and {height_in}")
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    columns = legend_columns([_shown(str(handle.get_label())) for handle in handles], width_in)
    lines = heading.count("\n") + 1 + math.ceil(len(handles) / columns)
    height = (height_in + LINE_IN) * len(panels) + LINE_IN * lines
    figure = Figure(figsize=(width_in, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    grid = list(figure.subplots(len(panels), 1, squeeze=False, sharex=True, sharey=True)[:, 0])
    for axes, (name, y_label) in zip(grid, panels.items(), strict=True):
        axes.set_title(name, fontsize=SMALL_PT)
        bare(axes)
        label_axes(axes, "", y_label)
    label_axes(grid[-1], x_label, list(panels.values())[-1])
    legend_below(figure, handles, columns)
    return figure, grid


def _shown(label: str) -> str:
    """A label without the marks of its formulas, which take no room."""
    return re.sub(r"\\[a-z]+|[${}^_]", "", label)


def over_repeats(rows: pd.DataFrame, y: str, repeats: Sequence[str], spread: str | None) -> pd.DataFrame:
    """Per step the mean of column `y` over all repeats and what it is surrounded by: columns step, mean, half.

    A repeat is a combination of the columns `repeats`, as far as the table has them. half is one standard deviation
    over the repeats (n - 1 in the divisor) where there are 2 or more; of a single one the column `spread`, or 0.
    """
    have = [name for name in repeats if name in rows.columns]
    single = not have or len(rows[have].drop_duplicates()) < 2
    values = rows.assign(**{y: pd.to_numeric(rows[y])}).groupby("step")[y]
    found = pd.DataFrame({"mean": values.mean(), "half": values.std()})
    if single:
        found["half"] = pd.to_numeric(rows.set_index("step")[spread]) if spread else 0.0
    return found.fillna({"half": 0.0}).dropna(subset=["mean"]).reset_index()


def draw_series(axes: Axes, series: pd.DataFrame, look: Look) -> None:
    """The mean, and a band of mean +- half."""
    step, mean, half = (series[name].to_numpy(float) for name in ("step", "mean", "half"))
    (line,) = axes.plot(step, mean, color=look.colour, linewidth=look.width)
    line.set(linestyle=look.linestyle, marker=look.marker, markersize=3, markevery=max(len(step) // 6, 1))
    axes.fill_between(step, mean - half, mean + half, color=look.colour, alpha=0.15, linewidth=0)


def need_columns(table: pd.DataFrame, columns: Sequence[str], job: str) -> None:
    """Raises ValueError for a table without rows, or without one of the columns that `job` writes."""
    if table.empty:
        raise ValueError("the table of metrics has no rows, so there is nothing to draw")
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise ValueError(f"the metrics have no column {', '.join(missing)}: this figure is for runs of {job}")
