"""Time per step of several optimizers, relative to the first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.panels import need_columns
from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, GREY, SMALL_PT, figure_with_legend, label_axes, plain

BAR_IN = 0.21  # height of one bar with its gap
LIGHT, DARK = "#9ecae1", COLOURS[0]


def step_time_bars(
    table: pd.DataFrame, references: Mapping[str, float], *, title: str, width_in: float = COLUMN_WIDTH_IN
) -> Figure:
    """Median over repeats of t(optimizer) / t(first optimizer), each ratio taken within one repeat; dark: the update,
    light: forward and backward.

    `table`: rows with optimizer, repeat, step_time_s, update_time_s, timed in turns. Whiskers: quartiles of the ratio
    of whole steps. Beside a bar: the ratio and the median time of a step in ms. `references` are not drawn: these axes
    hold no loss.

    Raises ValueError for an empty table, a missing column, or a repeat that lacks an optimizer.
    """
    rows = relative_times(table)
    first = rows.index[0]
    handles = [
        Patch(color=DARK, label="update"),
        Patch(color=LIGHT, label="forward and backward"),
        Line2D([], [], color="black", linewidth=0.8, marker="|", markersize=4, label="quartiles over repeats"),
    ]
    figure, axes = figure_with_legend(title, handles, width_in, BAR_IN * len(rows) + 0.6)
    y = np.arange(len(rows))
    axes.barh(y, rows["update"], height=0.7, color=DARK, linewidth=0)
    axes.barh(y, rows["step"] - rows["update"], left=rows["update"], height=0.7, color=LIGHT, linewidth=0)
    whiskers = np.array([rows["step"] - rows["low"], rows["high"] - rows["step"]])
    axes.errorbar(rows["step"], y, xerr=whiskers, fmt="none", ecolor="black", elinewidth=0.8, capsize=2)
    axes.set_yticks(y, [plain(str(name)) for name in rows.index])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    end = float(rows["high"].max())
    for place, row in enumerate(rows.to_dict("records")):
        text = f"{row['step']:.3g}  ({_milliseconds(row['ms'])})"
        axes.text(row["high"] + 0.02 * end, place, text, va="center", fontsize=SMALL_PT)
    axes.set_xlim(0, 1.5 * end)
    axes.axvline(1.0, color=GREY, linewidth=0.7, dashes=(2, 2), zorder=0.5)
    label_axes(axes, f"time of a step / {first}'s", "")
    return figure


def relative_times(table: pd.DataFrame) -> pd.DataFrame:
    """Per optimizer, in the table's order: step (median ratio of whole steps), low, high (its quartiles), update
    (median of update time / the first one's step time), ms (median time of a step).

    Raises ValueError as `step_time_bars` does.
    """
    need_columns(table, ["optimizer", "repeat", "step_time_s", "update_time_s"], "compare")
    names = list(dict.fromkeys(table["optimizer"]))
    step, update = (
        table.pivot(index="repeat", columns="optimizer", values=column)[names].astype(float)
        for column in ("step_time_s", "update_time_s")
    )
    if step.isna().to_numpy().any():
        raise ValueError("every repeat must have a time for each optimizer: ratios are taken within a repeat")
    ratios = step.div(step[names[0]], axis=0)
    return pd.DataFrame(
        {
            "step": ratios.median(),
            "low": ratios.quantile(0.25),
            "high": ratios.quantile(0.75),
            "update": update.div(step[names[0]], axis=0).median(),
            "ms": 1e3 * step.median(),
        }
    )


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"
