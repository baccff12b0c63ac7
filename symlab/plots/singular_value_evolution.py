"""Numbers of a Jacobian's spectrum over the iterations of training: one panel per number, one line per variant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.panels import Look, draw_series, need_columns, over_repeats
from symlab.plots.style import (
    COLUMN_WIDTH_IN,
    DPI,
    GREY,
    LINE_IN,
    MARKERS,
    SMALL_PT,
    TEXT_PT,
    TITLE_PT,
    bare,
    colour_and_marker,
    legend_columns,
    plain,
    wrapped,
)

LABELS = {"loss": "training loss", "condition": "condition number", "square_variation": "var / mean$^2$ of s$^2$"}
LABELS |= {"min": "smallest s", "median": "median s", "max": "largest s", "mean": "mean s", "mean_log": "mean ln s"}
LABELS |= {"q1": "lower quartile", "q3": "upper quartile", "mean_square": "mean s$^2$", "std": "deviation of s"}
"""Labels of the y-axes; s: singular values."""


def singular_value_evolution(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    columns: Sequence[str] = ("mean", "median", "condition"),
    log: bool = False,
    x_label: str = "iteration (updates made)",
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 1.1,
) -> Figure:
    """Mean over trials of each of `columns`, with a band of one standard deviation over trials, per variant.

    `table`: metrics.csv of the job singular-values, of one or several runs; `columns` are its own, `loss` among them.
    Steps at which a column was not measured are left out. `log`: logarithmic axes. `references` are not drawn: no
    reference model belongs to these numbers. `width_in`, `height_in`: inches, the height of each panel.

    Raises ValueError for an empty table, a missing column, no column, and sizes that are not positive.
    """
    need_columns(table, ["step", "variant", *columns], "singular-values")
    if not columns:
        raise ValueError("columns must name at least one column of metrics.csv, e.g. [median]")
    if not (width_in > 0 and height_in > 0):
        raise ValueError(f"width_in and height_in must be positive, got {width_in} and {height_in}")
    variants = list(dict.fromkeys(table["variant"]))
    looks = {
        name: Look(plain(str(name)), colour_and_marker(i)[0], "-", MARKERS[i % 8]) for i, name in enumerate(variants)
    }
    figure, grid = _panels(title, _handles(table, looks), len(columns), (width_in, height_in), x_label)
    for axes, column in zip(grid, columns, strict=True):
        for name, look in looks.items():
            rows = table[(table["variant"] == name) & table[column].notna()]
            if not rows.empty:
                draw_series(axes, over_repeats(rows, column, ["run", "trial"], None), look)
        if log:
            axes.set_yscale("log", nonpositive="mask")
        axes.set_ylabel(LABELS.get(column, column.replace("_", " ")), fontsize=TEXT_PT)
    grid[-1].set_xlabel(plain(x_label), fontsize=TEXT_PT)
    return figure


def variant_loss(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    log: bool = True,
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 2.0,
) -> Figure:
    """Loss of the batch before each update, of every variant: `singular_value_evolution` of the column loss alone."""
    more = {"log": log, "width_in": width_in, "height_in": height_in}
    return singular_value_evolution(table, references, title=title, columns=("loss",), **more)  # type: ignore[arg-type]


def _panels(
    title: str, handles: Sequence[Artist], count: int, size: tuple[float, float], x_label: str
) -> tuple[Figure, list[Axes]]:
    """Panels under each other, each with a scale of its own."""
    width_in, height_in = size
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    columns = legend_columns([str(handle.get_label()) for handle in handles], width_in)
    lines = heading.count("\n") + 1 + math.ceil(len(handles) / columns)
    figure = Figure(figsize=(width_in, height_in * count + LINE_IN * (lines + 2)), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    grid = list(figure.subplots(count, 1, squeeze=False, sharex=True)[:, 0])
    for axes in grid:
        bare(axes)
    figure.align_ylabels(grid)
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, fontsize=SMALL_PT, frameon=False)
    return figure, grid


def _handles(table: pd.DataFrame, looks: Mapping[str, Look]) -> list[Artist]:
    repeats = table[[name for name in ("run", "trial") if name in table.columns]].drop_duplicates()
    handles: list[Artist] = [
        Line2D([], [], color=look.colour, marker=look.marker, markersize=3, linewidth=1.3, label=look.label)
        for look in looks.values()
    ]
    if len(repeats) > 1:
        handles.append(Patch(color=GREY, alpha=0.25, linewidth=0, label=f"±1 std over {len(repeats)} trials"))
    return handles
