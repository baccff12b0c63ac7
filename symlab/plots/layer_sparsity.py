"""A measure of every weight tensor of a network, in the order of its layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, SMALL_PT, figure_with_legend, label_axes, plain
from symlab.plots.sweep import check_columns, over_repeats, spread_text

MARKS = ("o", "s", "^", "D", "v", "P", "X")
NAME_IN = 0.06  # height of a letter of the names, which stand upright


def layer_sparsity(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    value: str = "zero_fraction",
    value_label: str | None = None,
    group: str = "arm",
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 2.0,
) -> Figure:
    """Mean of column `value` over seeds for every tensor, a line per value of `group`; bars: standard deviation.

    `table`: rows with `group`, seed, layer (position, from 0), tensor (name) and `value`, a fraction in [0, 1].
    `references` are not drawn: these axes hold no loss. `height_in`: without title, legend and the layers' names.

    Raises ValueError for an empty table, a column that it lacks, and layers whose names differ between runs.
    """
    check_columns(table, {"value": value, "group": group, "layer": "layer", "tensor": "tensor"})
    names = table.groupby("layer")["tensor"].agg(["first", "nunique"]).sort_index()
    if int(names["nunique"].max()) > 1:
        place = int(names.index[names["nunique"].argmax()])
        raise ValueError(f"layer {place} has different names in different rows: these are runs of different networks")
    arms = list(dict.fromkeys(table[group].astype(str)))
    order = {layer: place for place, layer in enumerate(names.index)}
    cells = {"arm": table[group].astype(str).map(arms.index).to_numpy(), "x": table["layer"].map(order).to_numpy()}
    found = over_repeats(table, cells, value)
    handles: list[Artist] = [_look(index, plain(arm)) for index, arm in enumerate(arms)]
    if (spread := spread_text(found)) is not None:
        handles.append(Line2D([], [], color="black", linewidth=0.8, marker="|", markersize=5, label=f"±1 std {spread}"))
    longest = max(map(len, names["first"]))
    figure, axes = figure_with_legend(title, handles, width_in, height_in + NAME_IN * longest)
    for index in range(len(arms)):
        own = found[found["arm"] == index].sort_values("x")
        look = _look(index, "")
        shift = (index - (len(arms) - 1) / 2) * 0.16  # so that bars of spread do not cover each other
        bars = np.where(np.isfinite(own["std"]), own["std"], 0.0)
        axes.errorbar(
            own["x"] + shift, own["mean"], bars, color=look.get_color(), marker=look.get_marker(), markersize=3,
            linewidth=0.8, elinewidth=0.8, capsize=1.5,
        )  # fmt: skip
    axes.set_xticks(range(len(names)), [plain(name) for name in names["first"]], rotation=90, fontsize=SMALL_PT)
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.set_ylim(-0.03, 1.03)
    label_axes(axes, "weight tensor, from input to output", value_label or value)
    return figure


def _look(index: int, label: str) -> Line2D:
    colour, marker = COLOURS[index % len(COLOURS)], MARKS[index % len(MARKS)]
    return Line2D([], [], color=colour, marker=marker, markersize=3, linewidth=0.8, label=label)
