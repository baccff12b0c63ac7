"""Performance profile: how often each optimizer is within a factor of the best, over many tasks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from symlab.plots.panels import need_columns
from symlab.plots.style import COLUMN_WIDTH_IN, TEXT_PT, colour_and_marker, figure_with_legend, plain

LEAST_END = 2.0  # of the axis of tau
FAR = 100.0  # beyond it only powers of 10 are labelled


def performance_profile(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    cost: str = "cost",
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 2.3,
) -> Figure:
    """rho(tau) = share of the tasks with cost(optimizer, task) <= tau min over optimizers of cost(., task).

    Dolan and More, Mathematical Programming 91 (2002); tau on a logarithmic axis. `table`: one row per optimizer and
    task with optimizer, task, cost (not negative, smaller is better; empty or infinite: not solved, nor is one without
    a row for that optimizer). Tasks with a cost of 0 are left out: they were solved at the start. At tau = 1 a line
    starts at the share of tasks on which that optimizer is the best (ties count for both); it ends at the share that
    it solved at all, which the legend counts. Tasks that nobody solved stay in the divisor. `cost` names what the cost
    is, on the axis. `references` are not drawn: these axes hold no loss.

    Raises ValueError for an empty table, a missing column, two rows for an optimizer and a task, or a negative cost.
    """
    ratios = ratios_to_best(table)
    finite = ratios.to_numpy()[np.isfinite(ratios.to_numpy())]
    end = max(LEAST_END, 1.1 * finite.max()) if len(finite) else LEAST_END
    handles, lines = [], []
    for index, (name, own) in enumerate(ratios.items()):
        colour, marker = colour_and_marker(index)
        solved = int(np.isfinite(own).sum())
        label = plain(f"{name}: solved {solved} of {len(own)}")
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=3, linewidth=1.4, label=label))
        lines.append(steps_of(own.to_numpy(float), end))
    figure, axes = figure_with_legend(title, handles, width_in, height_in)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if end < FAR else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tau, _: f"{tau:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"$\\tau$: {plain(cost)} within this factor of the best", fontsize=TEXT_PT)
    axes.set_ylabel("share of tasks", fontsize=TEXT_PT)
    for handle, (tau, share) in zip(handles, lines, strict=True):
        axes.plot(
            tau, share, drawstyle="steps-post", color=handle.get_color(), marker=handle.get_marker(), markersize=3,
            markevery=max(len(tau) // 6, 1), linewidth=1.4, clip_on=False,
        )  # fmt: skip
    axes.set_xlim(1, end)
    axes.set_ylim(0, 1)
    return figure


def ratios_to_best(table: pd.DataFrame) -> pd.DataFrame:
    """Per task (row) and optimizer (column, in the table's order): cost / least cost of the task; inf if not solved.

    Raises ValueError as `performance_profile` does.
    """
    need_columns(table, ["optimizer", "task", "cost"], "profile")
    if table.duplicated(["optimizer", "task"]).any():
        first = table[table.duplicated(["optimizer", "task"])].iloc[0]
        raise ValueError(f"two rows for optimizer {first['optimizer']} and task {first['task']}: one is needed")
    costs = pd.to_numeric(table["cost"]).astype(float).fillna(np.inf)
    if (costs < 0).any():
        row = table[costs < 0].iloc[0]
        raise ValueError(f"a cost is not negative, got {row['cost']} for {row['optimizer']} and task {row['task']}")
    wide = table.assign(cost=costs).pivot(index="task", columns="optimizer", values="cost").fillna(np.inf)
    wide = wide[list(dict.fromkeys(table["optimizer"]))]
    wide = wide[(wide > 0).all(axis=1)]
    best = wide.min(axis=1)
    return wide.div(best.where(np.isfinite(best), 1.0), axis=0)


def steps_of(ratios: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    """tau and the share of `ratios` that are <= tau, from tau = 1 to `end`: the corners of the step line."""
    solved = np.sort(ratios[np.isfinite(ratios)])
    tau = np.unique(np.concatenate([[1.0], solved, [end]]))
    return tau, np.searchsorted(solved, tau, side="right") / max(len(ratios), 1)
