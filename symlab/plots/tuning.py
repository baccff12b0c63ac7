"""What tuning found: the objective over the tuned values, one panel per optimizer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from symlab.plots.panels import need_columns
from symlab.plots.style import COLUMN_WIDTH_IN, DPI, GREY, LINE_IN, SMALL_PT, TITLE_PT, bare, label_axes, plain, wrapped
from symlab.plots.tuned_axis import SCHEDULE, TunedAxis, axis_of, chosen_keys

SHAPES = ("o", "s", "^", "D", "v", "P", "p", "h")
LOST = {"diverged": ("x", "#D55E00"), "failed": ("+", "#000000"), "pruned": ("1", GREY)}
MAP = "viridis"
TICKS = (1.1, 1.5, 2, 3, 5, 10)
FARTHEST = 10.0  # the colour ends at this many times the best objective
BEST = "#CC0000"
HIGHEST, ROOM = 1e3, 0.08


def tuning(
    trials: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 1.35,
) -> Figure:
    """Objective / that optimizer's best objective as the colour, over the first two tuned numbers of each optimizer.

    `trials`: one row per tuning run with optimizer, seed, settings (JSON text), status (completed, diverged, failed,
    pruned) and value (the objective, smaller is better). A point is one setting, its value the mean over its seeds; one
    with a seed that did not complete is a cross. The shape tells the schedule, the red ring is the best. The colour is
    logarithmic and ends at 10 times the best. An axis is logarithmic, in the value or in 1 - value, where the tried
    values span a factor of 8 that way; settings without the key of an axis stand at `none`. An optimizer with one tuned
    number has the objective / best on its y-axis. `height_in`: inches of one panel. `references` are not drawn: losses
    on the test split.

    Raises ValueError for an empty table or a missing column.
    """
    need_columns(trials, ["optimizer", "seed", "settings", "status", "value"], "compare")
    tables = {str(name): settings_table(part) for name, part in trials.groupby("optimizer", sort=False)}
    schedules = dict.fromkeys(json.loads(text).get(SCHEDULE) for text in trials["settings"])
    shapes = {name: SHAPES[index % len(SHAPES)] for index, name in enumerate(schedules) if name is not None}
    handles = _handles(shapes, tables.values())
    figure, grid = _panels(title, handles, len(tables), width_in, height_in)
    for axes, (name, table) in zip(grid, tables.items(), strict=False):
        _draw_panel(axes, name, table, shapes)
    for axes in grid[len(tables) :]:
        axes.set_visible(False)
    bar = figure.colorbar(
        ScalarMappable(LogNorm(1, FARTHEST), MAP), ax=grid, location="bottom", aspect=40, pad=0.02, extend="max"
    )
    bar.set_ticks(TICKS, labels=[f"{tick:g}" for tick in TICKS])
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=SMALL_PT)
    bar.set_label("objective / the optimizer's best", fontsize=SMALL_PT)
    return figure


def settings_table(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per setting of one optimizer, best last: settings (mapping), status, value (mean of seeds; nan if lost).

    status: the first of diverged, failed, pruned that a seed of the setting ended with, else completed.
    """
    rows = []
    keys = [json.dumps(json.loads(text), sort_keys=True) for text in trials["settings"]]
    for _, part in trials.assign(key=keys).groupby("key", sort=False):
        statuses = set(part["status"])
        lost = [name for name in LOST if name in statuses]
        value = math.nan if lost else float(pd.to_numeric(part["value"]).mean())
        rows.append(
            {
                "settings": json.loads(part["settings"].iloc[0]),
                "status": lost[0] if lost else "completed",
                "value": value,
            }
        )
    return pd.DataFrame(rows).sort_values("value", ascending=False, kind="stable", na_position="first")


def _panels(
    title: str, handles: Sequence[Artist], count: int, width_in: float, height_in: float
) -> tuple[Figure, list[Axes]]:
    if not (width_in > 0 and height_in > 0):
        raise ValueError(f"width_in and height_in must be positive, got {width_in} and {height_in}")
    columns = 1 if count == 1 else 2
    lines, per_line = math.ceil(count / columns), 3
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    below = heading.count("\n") + 1 + math.ceil(len(handles) / per_line)
    figure = Figure(figsize=(width_in, (height_in + 2 * LINE_IN) * lines + LINE_IN * below + 0.45), dpi=DPI)
    figure.set_layout_engine("constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    figure.legend(
        handles=list(handles), loc="outside lower center", ncols=per_line, fontsize=SMALL_PT, frameon=False,
        handlelength=1.0, columnspacing=1.0, labelspacing=0.3,
    )  # fmt: skip
    grid = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for axes in grid:
        bare(axes)
    return figure, grid


def _draw_panel(axes: Axes, name: str, table: pd.DataFrame, shapes: Mapping[str, str]) -> None:
    best = table["value"].min()
    relative = _relative(table["value"].to_numpy(float))
    heading = f"{name}: best {best:.3g}" if math.isfinite(best) else f"{name}: none completed"
    axes.set_title(plain(heading), fontsize=SMALL_PT)
    settings = list(table["settings"])
    keys = chosen_keys(settings)
    if not keys:
        axes.text(0.5, 0.5, "nothing was tuned", ha="center", va="center", transform=axes.transAxes, fontsize=SMALL_PT)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    x = axis_of(keys[0], settings)
    y = axis_of(keys[1], settings) if len(keys) > 1 else None
    heights = _places(y, settings) if y else relative
    x.prepare(axes, "x")
    if y:
        y.prepare(axes, "y")
    else:
        heights = _prepare_objective(axes, relative)
    label_axes(axes, x.key, y.key if y else "objective / best")
    _draw_points(axes, table, _places(x, settings), heights, relative, shapes)


def _prepare_objective(axes: Axes, relative: np.ndarray) -> np.ndarray:
    """A logarithmic y-axis for objective / best; where each setting stands on it, what is lost or beyond at the top."""
    finite = relative[np.isfinite(relative)]
    top = float(np.clip(1.3 * finite.max(), 2.0, HIGHEST)) if len(finite) else 2.0
    axes.set_yscale("log")
    axes.set_ylim(top**-ROOM, top)
    return np.minimum(np.where(np.isfinite(relative), relative, top), top)


def _relative(values: np.ndarray) -> np.ndarray:
    """value / best; where an objective is not positive, 1 + (value - best) / |best|."""
    best = np.nanmin(values) if np.isfinite(values).any() else math.nan
    return values / best if best > 0 else 1 + (values - best) / (abs(best) or 1.0)


def _places(axis: TunedAxis, settings: Sequence[Mapping[str, object]]) -> np.ndarray:
    return np.array([axis.place(setting.get(axis.key)) for setting in settings])


def _draw_points(
    axes: Axes, table: pd.DataFrame, x: np.ndarray, y: np.ndarray, relative: np.ndarray, shapes: Mapping[str, str]
) -> None:
    size = float(np.clip(1500 / len(table), 6, 40))
    for status, (marker, colour) in LOST.items():
        lost = (table["status"] == status).to_numpy()
        axes.scatter(
            x[lost], y[lost], s=0.6 * size, marker=marker, color=colour, linewidths=0.7, zorder=2, clip_on=False
        )
    drawn = np.isfinite(relative)
    schedules = np.array([str(setting.get(SCHEDULE)) for setting in table["settings"]])
    for schedule in reversed(dict.fromkeys(schedules[drawn][::-1])):  # that of the best setting last, on top
        own = drawn & (schedules == schedule)  # worst first
        axes.scatter(
            x[own], y[own], c=relative[own], s=size, marker=shapes.get(schedule, "o"), cmap=MAP,
            norm=LogNorm(1, FARTHEST, clip=True), edgecolors="white", linewidths=0.2, zorder=3, clip_on=False,
        )  # fmt: skip
    if drawn.any():
        axes.scatter(x[-1], y[-1], s=3 * size, marker="o", facecolors="none", edgecolors=BEST, zorder=4, clip_on=False)


def _handles(shapes: Mapping[str, str], tables: Iterable[pd.DataFrame]) -> list[Artist]:
    found = {status for table in tables for status in table["status"]}
    marks = [(name, marker, "#31688e") for name, marker in shapes.items()]
    marks += [(status, *look) for status, look in LOST.items() if status in found]
    handles: list[Artist] = [
        Line2D([], [], linestyle="", markersize=4, color=colour, marker=marker, label=plain(name))
        for name, marker, colour in marks
    ]
    ring = Line2D([], [], linestyle="", markersize=6, marker="o", markeredgecolor=BEST, markerfacecolor="none")
    ring.set_label("best")
    return [*handles, ring]
