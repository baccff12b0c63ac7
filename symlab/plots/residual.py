"""What of a curvature estimate lies outside of the commutant, against the number of models."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.curvature_view import CurvatureView
from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, GREY, MARKERS, figure_with_legend, label_axes

STRUCTURES: dict[str, Literal["-", "--"]] = {"right": "-", "wrong": "--"}


def residual(
    view: CurvatureView, *, title: str, width_in: float = COLUMN_WIDTH_IN, height_in: float = 2.3
) -> Figure | None:
    """Root mean square over groups of N models of ||C_N - P(C_N)||_F / ||C||_F against N, on logarithmic axes; C: of
    all models.

    One line per step and structure: solid with the symmetry of the net, dashed with a group that it does not have;
    the band is one standard deviation over independent groups of N models (from 2 groups on). Grey: what sampling
    noise alone leaves. The legend has the slope of the line of least squares through the logarithms (theory: -1/2).
    None where the table has no row with such a part.
    """
    rows = view.residuals.dropna(subset=["outside"])
    rows = rows[rows["outside"] > 0]
    if rows.empty:
        return None
    handles: list[Artist] = []
    lines = []
    for index, ((structure, step), part) in enumerate(rows.groupby(["structure", "step"])):
        curve = over_models(part)
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[1 + index % (len(MARKERS) - 1)]
        label = f"{structure} structure, step {step}{_slope_text(curve)}"
        look = Line2D(
            [],
            [],
            color=colour,
            linestyle=STRUCTURES[str(structure)],
            marker=marker,
            markersize=3,
            linewidth=1.3,
            label=label,
        )
        handles.append(look)
        lines.append((curve, look))
    handles.append(Line2D([], [], color=GREY, linewidth=0.9, dashes=(2, 2), label="sampling noise alone"))
    handles.append(Patch(color=GREY, alpha=0.25, linewidth=0, label="±1 std over groups of models"))
    figure, axes = figure_with_legend(title, handles, width_in, height_in)
    axes.set_xscale("log")
    axes.set_yscale("log")
    label_axes(axes, "models N", "part outside of the structure")
    for curve, look in lines:
        _draw(axes, curve, look)
    return figure


def over_models(part: pd.DataFrame) -> pd.DataFrame:
    """One row per N, ascending: the means over the data sets of outside, outside_std and noise."""
    columns = ["outside", "outside_std", "noise"]
    return part.groupby("models")[columns].mean().reset_index().sort_values("models")


def log_slope(models: np.ndarray, residuals: np.ndarray) -> float:
    """Slope of the least-squares line through (log N, log residual); nan for fewer than 2 points."""
    if len(models) < 2:
        return float("nan")
    x, y = np.log(models), np.log(residuals)
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())


def _slope_text(curve: pd.DataFrame) -> str:
    slope = log_slope(curve["models"].to_numpy(float), curve["outside"].to_numpy(float))
    return f": slope {slope:.2f}" if np.isfinite(slope) else ""


def _draw(axes: Axes, curve: pd.DataFrame, look: Line2D) -> None:
    models, mean = curve["models"].to_numpy(float), curve["outside"].to_numpy(float)
    std = curve["outside_std"].to_numpy(float)
    style = {"color": look.get_color(), "linestyle": look.get_linestyle(), "marker": look.get_marker()}
    (line,) = axes.plot(models, mean, linewidth=look.get_linewidth(), markersize=look.get_markersize())
    line.set(**style)
    known = np.isfinite(std)
    low = np.maximum(mean - std, mean / 10)
    axes.fill_between(models[known], low[known], (mean + std)[known], color=look.get_color(), alpha=0.25, linewidth=0)
    expected = curve["noise"].to_numpy(float)
    shown = np.isfinite(expected) & (expected > 0)
    axes.plot(models[shown], expected[shown], color=GREY, linewidth=0.9, dashes=(2, 2), zorder=3)
