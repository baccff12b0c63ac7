"""Time against the number of models and against the number of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, SMALL_PT, TEXT_PT, figure_with_legend, label_axes

LOOKS: dict[str, tuple[Literal["-", "--"], str]] = {"vectorised": ("-", "o"), "loop": ("--", "s")}


def scaling(
    rows: Sequence[dict[str, Any]], *, title: str, width_in: float = 2 * COLUMN_WIDTH_IN, height_in: float = 2.3
) -> Figure:
    """Left: seconds of a whole run against the number of models N; right: milliseconds per model against the number of
    weights P; both on logarithmic axes, a colour per task, solid vectorised, dashed the plain loop.

    `rows`: {against: models or parameters, task, models, parameters, vectorised_s, loop_s}; times of whole runs on the
    left, per model on the right.
    """
    table = pd.DataFrame(rows)
    tasks = list(dict.fromkeys(table["task"]))
    handles = [
        Line2D([], [], color=colour, linestyle=line, marker=marker, markersize=3, label=f"{task}, {way}")
        for task, colour in zip(tasks, COLOURS, strict=False)
        for way, (line, marker) in LOOKS.items()
    ]
    figure, left = figure_with_legend(title, handles, width_in, height_in)
    left.remove()
    panels = figure.subplots(1, 2)
    for axes, against, scale, labels in (
        (panels[0], "models", 1.0, ("models N", "whole run, s")),
        (panels[1], "parameters", 1e3, ("weights P", "one model, ms")),
    ):
        part = table[table["against"] == against]
        for i, task in enumerate(tasks):
            curve = part[part["task"] == task].sort_values(against)
            for way, (line, marker) in LOOKS.items():
                axes.plot(
                    curve[against],
                    scale * curve[f"{way}_s"],
                    color=COLOURS[i % len(COLOURS)],
                    linestyle=line,
                    marker=marker,
                    markersize=3,
                    linewidth=1.3,
                )
        if len(part):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(sorted(set(part[against])), [f"{value:,}" for value in sorted(set(part[against]))])
            axes.set_xticks([], minor=True)
        axes.tick_params(labelsize=SMALL_PT, which="both")
        axes.grid(True, which="major", color="#dddddd", linewidth=0.5)
        axes.xaxis.label.set_fontsize(TEXT_PT)
        label_axes(axes, *labels)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure
