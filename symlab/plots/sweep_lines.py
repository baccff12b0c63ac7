"""One measure over one setting of a sweep: a line with its spread per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from symlab.plots.style import (
    COLOURS,
    COLUMN_WIDTH_IN,
    DIGIT_EM,
    GREY,
    LETTER_EM,
    SMALL_PT,
    colour_and_marker,
    figure_with_legend,
    label_axes,
    plain,
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

SAME = 0.01  # of the range: lines as near as this at most points lie on each other
OVER: tuple[Literal["--", ":"], ...] = ("--", ":")  # the upper ones
MOST_POINTS = 25  # of a line that has a marker at each
DASHES = ((5, 2), (5, 2, 1, 2), (2, 2), (8, 2, 2, 2))
Numbers = tuple[float, ...]


def sweep_lines(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    x: str = "decay",
    y: str = "zero_fraction",
    group: str | None = "arm",
    x_label: str | None = None,
    y_label: str | None = None,
    log_x: bool = True,
    log_y: bool = False,
    guide: str | None = None,
    level: str | None = None,
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 2.0,
) -> Figure:
    """Mean of column `y` over seeds against column `x`, a line per value of column `group`, band: standard deviation.

    A repeat (seed) with several rows at one x counts once, with their mean; the legend says so. Rows that diverged or
    have no finite number are left out of the mean and marked by a cross, at the foot where no seed is left. Runs of
    different settings that share points get lines of their own. On a logarithmic x-axis 0 stands to the left of all
    others. `guide`, `level`: references drawn as a vertical and a horizontal line, one for each group of runs that has
    its own. `height_in`: without title and legend.

    Raises ValueError for an empty table, an unknown column or reference, a column `y` of text, and a negative x on a
    logarithmic axis.
    """
    check_columns(table, {"x": x, "y": y, "group": group})
    values = tried(table[x])
    positions, logarithmic = _positions(values, x, log_x)
    labels = split_labels(table, group, (x,))
    names = list(dict.fromkeys(labels))
    cells = {"line": labels.map({name: i for i, name in enumerate(names)}).to_numpy(), "x": places(table[x], values)}
    found = over_repeats(table, cells, y)
    lines = [*_lines(references, "guide", guide), *_lines(references, "level", level)]
    looks = _looks(found, len(names), len(values))
    handles = _handles(names, looks, found, [label for _, label, _ in lines])
    figure, axes = figure_with_legend(title, handles, width_in, height_in)
    label_axes(axes, x_label or in_words(x), y_label or in_words(y))
    axes.set_xscale("log" if logarithmic else "linear")
    axes.set_yscale("log" if log_y else "linear", **({"nonpositive": "mask"} if log_y else {}))
    for index in range(len(names)):
        _draw(axes, found[found["line"] == index], np.array(positions), looks[index], log_y)
    for index, (key, _, place) in enumerate(lines):
        draw = axes.axvline if key == "guide" else axes.axhline
        draw(place, color=GREY, linewidth=0.9, dashes=DASHES[index % len(DASHES)], zorder=1.5)
    _ticks(axes, values, positions, logarithmic, width_in)
    if not (np.isfinite(found["mean"]) & ((found["mean"] > 0) | (not log_y))).any():
        words = "no positive number" if log_y else "no finite number"
        axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, fontsize=SMALL_PT)
        axes.set_yticks([])
    return figure


def _positions(values: Sequence[Value], x: str, log_x: bool) -> tuple[Numbers, bool]:
    """Where each value stands, and whether the axis is logarithmic: texts and a value that is none stand evenly."""
    numbers = [value for value in values if isinstance(value, float) and np.isfinite(value)]
    if len(numbers) < len(values):
        return tuple(float(index) for index in range(len(values))), False
    if not log_x:
        return tuple(numbers), False
    if numbers[0] < 0:
        raise ValueError(f"log_x: the column {x!r} has the negative value {numbers[0]:g}; log_x=false draws it")
    positive = [value for value in numbers if value > 0]
    if not positive:
        return tuple(numbers), False
    step = positive[1] / positive[0] if len(positive) > 1 else 10.0
    return tuple(value or positive[0] / step for value in numbers), True


def _lines(references: Mapping[str, float], key: str, name: str | None) -> list[tuple[str, str, float]]:
    """key, label and place of the reference `name`, or of each group's own, "name (group)"."""
    if name is None:
        return []
    own = {label: v for label, v in references.items() if label == name or label.startswith(f"{name} (")}
    if not own:
        raise ValueError(f"{key}={name!r}: no reference of that name; there are {', '.join(references) or 'none'}")
    return [(key, f"{label}: {v:.3g}", v) for label, v in own.items()]


def _looks(found: pd.DataFrame, lines: int, points: int) -> list[Line2D]:
    """Solid lines; one that lies on others is dashed, so that all are seen."""
    curves = [found[found["line"] == index].set_index("x")["mean"] for index in range(lines)]
    finite = found["mean"][np.isfinite(found["mean"])]
    near = SAME * float(finite.max() - finite.min()) if len(finite) else 0.0
    looks = []
    for index, curve in enumerate(curves):
        colour, marker = colour_and_marker(index)
        marker = marker or ("." if points <= MOST_POINTS else "")
        look = Line2D([], [], color=colour, marker=marker, markersize=5 if marker == "." else 3.5, linewidth=1.3)
        below = sum(bool(((curve - other).abs().dropna() <= near).mean() > 0.5) for other in curves[:index])
        if below and points > 1:
            look.set_linestyle(OVER[(below - 1) % len(OVER)])
        looks.append(look)
    return looks


def _draw(axes: Axes, points: pd.DataFrame, positions: np.ndarray, look: Line2D, log_y: bool) -> None:
    """One line with its band, and crosses where repeats are missing."""
    own = points.sort_values("x")
    place, mean, std = positions[own["x"]], own["mean"].to_numpy(float), own["std"].to_numpy(float)
    colour = look.get_color()
    known = np.isfinite(mean) & ((mean > 0) | (not log_y))
    (line,) = axes.plot(place[known], mean[known], color=colour, linewidth=look.get_linewidth())
    line.set(linestyle=look.get_linestyle(), marker=look.get_marker(), markersize=look.get_markersize())
    half = np.where(np.isfinite(std), std, 0.0)
    low = np.maximum(mean - half, mean / 10) if log_y else mean - half
    axes.fill_between(place[known], low[known], (mean + half)[known], color=colour, alpha=0.2, linewidth=0)
    failed = own["failed"].to_numpy(int) > 0
    crosses: dict[str, Any] = {"color": colour, "marker": "x", "linestyle": "", "markersize": 6, "zorder": 4}
    axes.plot(place[failed & known], mean[failed & known], **crosses)
    if (gone := place[failed & ~known]).size:
        axes.plot(gone, np.full(gone.size, 0.03), transform=axes.get_xaxis_transform(), **crosses)


def _ticks(axes: Axes, values: Sequence[Value], positions: Numbers, logarithmic: bool, width_in: float) -> None:
    """Names where the axis has names, and a 0 at the left of a logarithmic axis."""
    if not logarithmic:
        if any(not isinstance(value, float) or not np.isfinite(value) for value in values):
            names = [plain(shown(value)) for value in values]
            wide = sum(map(len, names)) * LETTER_EM * SMALL_PT > (width_in - 0.7) * 72
            axes.set_xticks(positions, names, fontsize=SMALL_PT, rotation=90 if wide else 0)
        return
    if _decades(values) < 2:  # too few for labels at decades alone
        names = [shown(value) for value in values]
        kept = _apart(names, positions, width_in)
        axes.set_xticks([positions[i] for i in kept], [names[i] for i in kept], fontsize=SMALL_PT)
        axes.xaxis.set_minor_locator(NullLocator())
    elif 0.0 in values:
        positive = [place for value, place in zip(values, positions, strict=True) if value != 0.0]
        decades = [t for t in LogLocator().tick_values(min(positive), max(positive)) if min(positive) <= t * 1.001]
        decades = [t for t in decades if t <= max(positive) * 1.001]
        axes.set_xticks([positions[0], *decades], ["0", *(f"$10^{{{round(np.log10(t))}}}$" for t in decades)])
        axes.xaxis.set_minor_formatter(NullFormatter())


def _apart(names: Sequence[str], positions: Numbers, width_in: float) -> list[int]:
    """Numbers of the names that stand beside each other on a logarithmic axis, from the left on."""
    places = np.log(positions)
    points = (places - places[0]) / max(places[-1] - places[0], 1e-9) * (width_in - 0.8) * 72
    kept: list[int] = []
    for index, name in enumerate(names):
        letters = 0.5 * (len(name) + len(names[kept[-1]])) + 0.5 if kept else 0.0
        if not kept or points[index] - points[kept[-1]] >= letters * DIGIT_EM * SMALL_PT:
            kept.append(index)
    return kept


def _decades(values: Sequence[Value]) -> int:
    """Powers of ten from the least positive value to the greatest."""
    positive = [value for value in values if isinstance(value, float) and value > 0]
    low, high = np.log10(min(positive)), np.log10(max(positive))
    return int(np.floor(high + 1e-9) - np.ceil(low - 1e-9)) + 1


def _handles(names: Sequence[str], looks: Sequence[Line2D], found: pd.DataFrame, lines: Sequence[str]) -> list[Artist]:
    handles: list[Artist] = []
    for name, look in zip(names, looks, strict=True):
        if name or len(names) > 1:
            look.set_label(plain(name or "none"))
            handles.append(look)
    for index, label in enumerate(lines):
        look = Line2D([], [], color=GREY, linewidth=0.9, dashes=DASHES[index % len(DASHES)], label=plain(label))
        handles.append(look)
    if (spread := spread_text(found)) is not None:
        handles.append(Patch(color=COLOURS[0], alpha=0.2, linewidth=0, label=f"±1 std {spread}"))
    if (found["failed"] > 0).any():
        label = "seeds that diverged or have no number left out"
        handles.append(Line2D([], [], color=GREY, marker="x", linestyle="", markersize=6, label=label))
    return handles
