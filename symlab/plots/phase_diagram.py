"""Phase diagram: one measure over two settings of a sweep as a heat map, a panel per arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle

from symlab.plots.style import (
    COLUMN_WIDTH_IN,
    DIGIT_EM,
    DPI,
    GREY,
    LETTER_EM,
    LINE_IN,
    SMALL_PT,
    TITLE_PT,
    label_axes,
    legend_below,
    wrapped,
)
from symlab.plots.sweep import (
    Value,
    check_columns,
    in_words,
    over_repeats,
    places,
    shown,
    split_labels,
    spread_text,
    tried,
)

CELL_PT = 6.0
COLOUR_MAP = "viridis"  # even in lightness, so it also reads in grey
SIDE_IN, GAP_IN, BAR_IN = 0.62, 0.1, 0.5  # labels at the left, between panels, colour bar with its label
MOST_COLUMNS = 3
EMPTY, HATCH = "#d9d9d9", "/////"


@dataclass(frozen=True)
class _Grid:
    """The values of both axes and, per panel, means, deviations and shares of failed repeats [len(y), len(x)]."""

    x: Sequence[Value]
    y: Sequence[Value]
    panels: Mapping[str, Mapping[str, np.ndarray]]

    def texts(self, spread: bool) -> list[str]:
        """All that could stand in a cell."""
        names = ("mean", "std") if spread else ("mean",)
        cells = [(name, v) for panel in self.panels.values() for name in names for v in panel[name].ravel()]
        return [("±" if name == "std" else "") + cell_text(v) for name, v in cells if math.isfinite(v)] or [""]


def phase_diagram(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    x: str = "decay",
    y: str = "lr",
    value: str = "zero_fraction",
    panel: str | None = "arm",
    x_label: str | None = None,
    y_label: str | None = None,
    value_label: str | None = None,
    low: float | None = None,
    high: float | None = None,
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 1.7,
) -> Figure:
    """Mean of column `value` over seeds in each cell of columns `x` and `y`, one panel per value of column `panel`.

    The axes are the values that were tried, evenly spaced. A cell says its mean and, where there is room, the standard
    deviation over seeds. Rows that diverged or have no finite number are left out of the mean: such cells are hatched,
    grey where no seed is left; a cell that nobody ran is white. Runs of different settings that share cells get panels
    of their own. `low`, `high`: ends of the colours, None: least and greatest mean. `height_in`: of each panel.

    Raises ValueError for an empty table, an unknown column, one that holds text, and low >= high.
    """
    if not (width_in > 0 and height_in > 0):
        raise ValueError(f"width_in and height_in must be positive, got {width_in} and {height_in}")
    check_columns(table, {"x": x, "y": y, "value": value, "panel": panel})
    grid, spread = _grid(table, x, y, value, panel)
    norm = _colours(grid, low, high)
    columns, words = _layout(grid, width_in, height_in)
    spread = spread if words == 2 else None
    labels = (x_label or in_words(x), y_label or in_words(y))
    figure, panels = _figure(title, grid, columns, labels, _handles(grid, spread), width_in, height_in)
    for axes, (name, cells) in zip(panels, grid.panels.items(), strict=True):
        image = _draw(axes, cells, norm, words)
        axes.set_title(wrapped(name, (width_in - SIDE_IN) / columns, SMALL_PT), fontsize=SMALL_PT)
    bar = figure.colorbar(image, ax=panels, location="bottom", shrink=0.8, aspect=30, pad=0.02)
    bar.ax.tick_params(labelsize=SMALL_PT)
    bar.set_label(wrapped(value_label or in_words(value), width_in - 0.4, SMALL_PT), fontsize=SMALL_PT)
    return figure


def cell_text(value: float) -> str:
    """A number in at most 5 signs or so, three digits of it where that has room: 0, 0.98, 15.6, 123, 3e-4."""
    if value == 0:
        return "0"
    if 0.005 <= abs(value) < 9.995:
        return f"{value:.2f}"
    if 9.995 <= abs(value) < 99.95:
        return f"{value:.1f}"
    if 99.95 <= abs(value) < 9999.5:
        return f"{value:.0f}"
    digits, _, power = f"{value:.0e}".partition("e")
    return f"{digits}e{int(power)}"


def _grid(table: pd.DataFrame, x: str, y: str, value: str, panel: str | None) -> tuple[_Grid, str | None]:
    across, up = tried(table[x]), tried(table[y])
    labels = split_labels(table, panel, (x, y))
    names = list(dict.fromkeys(labels))
    position = {name: index for index, name in enumerate(names)}
    cells = {"panel": labels.map(position).to_numpy(), "y": places(table[y], up), "x": places(table[x], across)}
    found = over_repeats(table, cells, value)
    panels = {}
    for index, name in enumerate(names):
        own = found[found["panel"] == index]
        blank = {column: np.full((len(up), len(across)), np.nan) for column in ("mean", "std", "failed")}
        for column, matrix in blank.items():
            matrix[own["y"], own["x"]] = own[column]
        panels[name] = blank
    return _Grid(across, up, panels), spread_text(found)


def _colours(grid: _Grid, low: float | None, high: float | None) -> Normalize:
    """The colour scale; half a unit to each side where all means are equal."""
    means = np.concatenate([panel["mean"].ravel() for panel in grid.panels.values()])
    means = means[np.isfinite(means)]
    least, most = (float(means.min()), float(means.max())) if len(means) else (0.0, 1.0)
    if low is not None and high is not None and not low < high:
        raise ValueError(f"low must be below high, got {low} and {high}")
    bottom, top = least if low is None else low, most if high is None else high
    return Normalize(bottom, top, clip=True) if bottom < top else Normalize(bottom - 0.5, bottom + 0.5, clip=True)


def _layout(grid: _Grid, width_in: float, height_in: float) -> tuple[int, int]:
    """Panels beside each other, and lines of text in a cell: as many panels as leave room for the numbers."""
    fits = height_in * 72 / len(grid.y)
    room = {n: ((width_in - SIDE_IN) / n - GAP_IN) * 72 / len(grid.x) for n in range(1, MOST_COLUMNS + 1)}
    most = min(len(grid.panels), MOST_COLUMNS)
    for lines, spread in ((2, True), (1, False)):
        needed = max(map(len, grid.texts(spread))) * LETTER_EM * CELL_PT + 2
        found = [n for n in range(most, 0, -1) if room[n] >= needed]
        if found and fits >= lines * 1.2 * CELL_PT and (lines == 1 or found[0] >= min(most, 2)):
            return found[0], lines
    return min(most, 2), 0


def _figure(
    title: str,
    grid: _Grid,
    columns: int,
    labels: tuple[str, str],
    handles: Sequence[Artist],
    width_in: float,
    height_in: float,
) -> tuple[Figure, list[Axes]]:
    rows = math.ceil(len(grid.panels) / columns)
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    names = max(wrapped(name, (width_in - SIDE_IN) / columns, SMALL_PT).count("\n") + 1 for name in grid.panels)
    height = rows * (height_in + LINE_IN * (names + 0.5)) + LINE_IN * (heading.count("\n") + 3 + len(handles)) + BAR_IN
    figure = Figure(figsize=(width_in, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for axes in panels[len(grid.panels) :]:
        axes.remove()
    shown_panels = panels[: len(grid.panels)]
    for place, axes in enumerate(shown_panels):
        below = place + columns >= len(grid.panels)
        axes.tick_params(length=2, labelsize=SMALL_PT, labelbottom=below)
        label_axes(axes, labels[0] if below else "", labels[1] if place % columns == 0 else "")
    shown_panels[0].set_yticks(range(len(grid.y)), [shown(value) for value in grid.y])
    room = (width_in - SIDE_IN) / columns * 72 / len(grid.x)
    wide = max(len(shown(value)) for value in grid.x) * DIGIT_EM * SMALL_PT + 3 > room
    shown_panels[0].set_xticks(range(len(grid.x)), [shown(value) for value in grid.x])
    for axes in shown_panels:
        axes.tick_params(axis="x", labelrotation=90 if wide else 0)
    if handles:
        legend_below(figure, handles, 1)
    return figure, shown_panels


def _draw(axes: Axes, cells: Mapping[str, np.ndarray], norm: Normalize, words: int) -> AxesImage:
    mean, failed = cells["mean"], cells["failed"]
    colour_map = matplotlib.colormaps[COLOUR_MAP]
    image = axes.imshow(mean, cmap=colour_map, norm=norm, origin="lower", aspect="auto", interpolation="nearest")
    for row, column in np.argwhere(failed > 0):
        none_left = not np.isfinite(mean[row, column])
        corner = (column - 0.5, row - 0.5)
        face = EMPTY if none_left else "none"
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=face, edgecolor=GREY, hatch=HATCH, linewidth=0))
    for row, column in np.argwhere(np.isfinite(mean)) if words else []:
        red, green, blue, _ = colour_map(norm(mean[row, column]))
        light = 0.3 * red + 0.59 * green + 0.11 * blue > 0.5
        text = cell_text(mean[row, column])
        if words == 2 and np.isfinite(cells["std"][row, column]):
            text += f"\n±{cell_text(cells['std'][row, column])}"
        colour = "black" if light else "white"
        axes.text(
            column, row, text, ha="center", va="center", color=colour, fontsize=CELL_PT, linespacing=1.0,
            bbox={"facecolor": colour_map(norm(mean[row, column])), "edgecolor": "none", "pad": 0.8}
            if failed[row, column] > 0
            else None,
        )  # fmt: skip
    return image


def _handles(grid: _Grid, spread: str | None) -> list[Artist]:
    """What the marks mean, as far as they occur."""
    panels = grid.panels.values()
    failed = [panel["failed"] for panel in panels]
    gone = [(panel["failed"] > 0) & ~np.isfinite(panel["mean"]) for panel in panels]
    some = [(panel["failed"] > 0) & np.isfinite(panel["mean"]) for panel in panels]
    handles: list[Artist] = []
    if spread is not None:
        handles.append(Patch(facecolor="none", edgecolor="none", label=f"number: mean ±1 std {spread}"))
    if any(cells.any() for cells in gone):
        handles.append(
            Patch(
                facecolor=EMPTY,
                edgecolor=GREY,
                hatch=HATCH,
                linewidth=0,
                label="all seeds diverged or without a number",
            )
        )
    if any(cells.any() for cells in some):
        label = "some seeds diverged, mean of the others"
        handles.append(Patch(facecolor="none", edgecolor=GREY, hatch=HATCH, linewidth=0, label=label))
    if any(np.isnan(cells).any() for cells in failed):
        handles.append(Patch(facecolor="white", edgecolor=GREY, linewidth=0.5, label="not run"))
    return handles
