"""The lasso's weights over alpha by two solvers: lines of the one, dots of the other."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from symlab.plots.panels import need_columns
from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, GREY, figure_with_legend, label_axes, plain

COLUMNS = ("arm", "seed", "column", "relative_alpha", "weight")


def lasso_path(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    lines: str = "scikit-learn",
    dots: str = "spred, Newton",
    data: str | None = None,
    seed: int | None = None,
    x_label: str = "alpha / alpha_max",
    y_label: str = "weight",
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 2.2,
) -> Figure:
    """Weights against alpha / alpha_max, descending to the right, one colour per column of the data (colours repeat):
    lines for the arm `lines`, dots for the arm `dots`.

    One draw of the data is shown: `seed` (null: the table's first), and of the data set `data` where the table has
    several (column data; null: the first). `height_in`: without title and legend.

    Raises ValueError for an empty table, missing columns, and for an arm, seed or data set that the table lacks.
    """
    need_columns(table, COLUMNS, "constraint with a path")
    rows, words = _chosen(table, data, seed)
    for key, arm in {"lines": lines, "dots": dots}.items():
        if arm not in set(rows["arm"]):
            raise ValueError(f"{key}={arm!r}: no arm of that name; there are {', '.join(sorted(set(rows['arm'])))}")
    count = rows["column"].nunique()
    handles: list[Artist] = [
        Line2D([], [], color=GREY, linewidth=1.2, label=plain(lines)),
        Line2D([], [], color=GREY, marker="o", markersize=3.5, linestyle="", label=plain(dots)),
    ]
    figure, axes = figure_with_legend(f"{title}; {words}, {count} weights", handles, width_in, height_in)
    for index, (_, own) in enumerate(rows.groupby("column", sort=True)):
        colour = COLOURS[index % len(COLOURS)]
        for arm, look in ((lines, {"linewidth": 1.2}), (dots, {"marker": "o", "markersize": 3.0, "linestyle": ""})):
            part = own[own["arm"] == arm].sort_values("relative_alpha")
            axes.plot(part["relative_alpha"], part["weight"], color=colour, **look)
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.axhline(0.0, color=GREY, linewidth=0.6, zorder=0.5)
    label_axes(axes, x_label, y_label)
    return figure


def _chosen(table: pd.DataFrame, data: str | None, seed: int | None) -> tuple[pd.DataFrame, str]:
    """The rows of one draw of one data set, and the words that say which."""
    rows, words = table, []
    if "data" in table.columns:
        name = table["data"].iloc[0] if data is None else data
        rows = rows[rows["data"] == name]
        if rows.empty:
            raise ValueError(f"data={name!r}: not in the table; there are {', '.join(sorted(set(table['data'])))}")
        words.append(str(name))
    elif data is not None:
        raise ValueError(f"data={data!r}: this table is of one data set; leave it out")
    number = rows["seed"].iloc[0] if seed is None else seed
    own = rows[rows["seed"] == number]
    if own.empty:
        known = ", ".join(f"{value:g}" for value in sorted(set(rows["seed"])))
        raise ValueError(f"seed={seed}: not in the table; there are {known}")
    return own, ", ".join([*words, f"seed {number:g}"])
