"""One look for all figures: column width, fonts of at least 7 pt, colours that colour-blind readers tell
apart.

matplotlib's object interface only: no pyplot, so no global state, no window, and a figure is freed with
its last reference.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLUMN_WIDTH_IN = 3.4
DPI = 300
TITLE_PT, TEXT_PT, SMALL_PT = 8.0, 8.0, 7.0
# Okabe and Ito's palette (2008) without yellow, which is too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")
GREY = "#595959"
LINE_IN = 0.15  # height of one line of the title or the legend


def colour_and_marker(index: int) -> tuple[str, str]:
    """Look number `index`: all colours without a marker first, then all with the next marker, and so on."""
    return COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]


def plain(text: str) -> str:
    """`text` so that matplotlib shows it as it is: a $ would start a formula."""
    return text.replace("$", r"\$")


def wrapped(text: str, width_in: float, points: float) -> str:
    """`text` broken into lines that fit `width_in` at a font size of `points` (average glyph: 0.55 em)."""
    columns = max(int(width_in * 72 / (0.55 * points)), 8)
    return "\n".join(textwrap.wrap(plain(text), columns))


def new_figure(title: str, legend_lines: int, width_in: float, height_in: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; `height_in` is that without title and legend, which add their lines."""
    if not (width_in > 0 and height_in > 0):
        raise ValueError(f"width_in and height_in must be positive, got {width_in} and {height_in}")
    heading = wrapped(title, width_in - 0.3, TITLE_PT)
    extra = LINE_IN * (heading.count("\n") + 1 + legend_lines)
    figure = Figure(figsize=(width_in, height_in + extra), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(heading, fontsize=TITLE_PT)
    axes.tick_params(labelsize=SMALL_PT, which="both")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def label_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """Axis labels, with units where there are any."""
    axes.set_xlabel(plain(x_label), fontsize=TEXT_PT)
    axes.set_ylabel(plain(y_label), fontsize=TEXT_PT)


def legend_below(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    """The legend under the axes, so that it never covers a curve."""
    if handles:
        figure.legend(
            handles=list(handles),
            loc="outside lower center",
            ncols=columns,
            fontsize=SMALL_PT,
            frameon=False,
            handlelength=2.2,
            columnspacing=1.2,
            labelspacing=0.3,
        )


def legend_columns(labels: Sequence[str], width_in: float) -> int:
    """Two columns if every label fits into half the width, one otherwise."""
    room = (width_in / 2 - 0.45) * 72 / (0.55 * SMALL_PT)
    return 2 if labels and all(len(label) <= room for label in labels) else 1
