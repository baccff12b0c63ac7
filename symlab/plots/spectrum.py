"""Eigenvalues of a curvature matrix, measured and predicted with their multiplicities."""

from __future__ import annotations

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from symlab.plots.curvature_view import CurvatureView, StepView
from symlab.plots.eigenvalue_axis import scale_for_eigenvalues
from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, DPI, GREY, SMALL_PT, TITLE_PT, label_axes, wrapped

MOST_LABELS = 12


def spectrum(
    view: CurvatureView, *, title: str, width_in: float = COLUMN_WIDTH_IN, height_in: float = 1.7
) -> Figure | None:
    """Sorted eigenvalues: measured (points) on the predicted plateaus (lines), whose lengths are the multiplicities.

    One panel for the first and one for the last step, each `height_in` inches high. The axis is logarithmic where all
    predicted eigenvalues are positive, else logarithmic on both sides of zero; at its foot stands the number of
    eigenvalues below its end. Numbers over the plateaus are multiplicities greater than 1, as far as there is room.
    None for a vector, which has no spectrum.
    """
    if not view.steps:
        return None
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    steps = dict([view.first, view.last])
    height = height_in * len(steps) + 0.15 * (heading.count("\n") + 2)
    figure = Figure(figsize=(width_in, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    grid = figure.subplots(len(steps), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (step, data) in zip(grid, steps.items(), strict=True):
        _draw(axes, data)
        axes.set_title(f"step {step}", fontsize=SMALL_PT)
        label_axes(axes, "", "eigenvalue")
    grid[-1].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    label_axes(grid[-1], "rank of the eigenvalue", "eigenvalue")
    measured = any(data.spectrum is not None for data in steps.values())
    figure.legend(handles=_handles(measured), loc="outside lower center", ncols=2, fontsize=SMALL_PT, frameon=False)
    return figure


def _draw(axes: Axes, data: StepView) -> None:
    scale_for_eigenvalues(axes, data.predicted)
    order = np.argsort(-data.predicted, kind="stable")
    start = 0
    labelled = 0
    for value, times in zip(data.predicted[order], data.multiplicity[order], strict=True):
        end = start + int(times)
        axes.plot([start + 0.55, end + 0.45], [value, value], color=COLOURS[1], linewidth=1.6, solid_capstyle="butt")
        if times > 1 and labelled < MOST_LABELS and int(times) >= 0.03 * data.multiplicity.sum():
            axes.annotate(
                str(int(times)), ((start + end + 1) / 2, value), (0, 3), textcoords="offset points", ha="center",
                fontsize=SMALL_PT - 1, color=GREY,
            )  # fmt: skip
            labelled += 1
        start = end
    if data.spectrum is not None:
        ranks = np.arange(1, len(data.spectrum) + 1)
        axes.plot(ranks, data.spectrum, ".", color=COLOURS[0], markersize=3, zorder=3)
    lowest = axes.get_ylim()[0]
    shown = data.predicted.repeat(data.multiplicity) if data.spectrum is None else data.spectrum
    below = int((shown < lowest).sum())
    if below:
        told = f"{below} below the axis"
        axes.annotate(told, (0.99, 0.03), xycoords="axes fraction", ha="right", fontsize=SMALL_PT - 1, color=GREY)
    axes.tick_params(labelsize=SMALL_PT, which="both")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)


def _handles(measured: bool) -> list[Artist]:
    predicted = Line2D([], [], color=COLOURS[1], linewidth=1.6, label="predicted, with multiplicity")
    points = Line2D([], [], color=COLOURS[0], marker=".", linestyle="", label="measured")
    return [points, predicted] if measured else [predicted]
