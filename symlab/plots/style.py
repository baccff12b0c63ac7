"""One look for all figures: column width, fonts of at least 7 pt, colours that colour-blind readers tell
apart.

matplotlib's object interface only: no pyplot, so no global state, no window, and a figure is freed with
its last reference.
"""

from __future__ import annotations

import math
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
LETTER_EM = 0.53  # mean width of a letter of the font
DIGIT_EM = 0.62  # of a digit
LINE_IN = 0.15  # height of one line of the title or the legend


def colour_and_marker(index: int) -> tuple[str, str]:
    """Look number `index`: all colours without a marker first, then all with the next marker, and so on."""
    return COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]


def plain(text: str) -> str:
    """`text` so that matplotlib shows it as it is: a $ would start a formula."""
    return text.replace("$", r"\$")


def wrapped(text: str, width_in: float, points: float) -> str:
    """`text` broken into lines that fit `width_in` at a font size of `points`."""
    columns = max(int(width_in * 72 / (LETTER_EM * points)), 8)
    return "\n".join(textwrap.wrap(plain(text), columns))


def figure_with_legend(title: str, handles: Sequence[Artist], width_in: float, height_in: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, the legend under them, so that it never covers a curve.

    `width_in`, `height_in`: inches; title and legend add the height of their lines. Raises ValueError
    unless both are positive.
    """
    if not (width_in > 0 and height_in > 0):
        raise ValueError(f"width_in and height_in must be positive, got {width_in} and {height_in}")
    heading = wrapped(title, width_in - 0.3, TITLE_PT)
    columns = legend_columns([str(handle.get_label()) for handle in handles], width_in)
    for handle in handles:  # plain already; a label that is wider than the figure is broken, not clipped
        handle.set_label(_broken(str(handle.get_label()), width_in - 0.5))
    rows = math.ceil(len(handles) / columns)
    legend_lines = [max(str(h.get_label()).count("\n") + 1 for h in handles[row::rows]) for row in range(rows)]
    lines = heading.count("\n") + 1 + sum(legend_lines)
    figure = Figure(figsize=(width_in, height_in + LINE_IN * lines), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    bare(axes)
    figure.suptitle(heading, fontsize=TITLE_PT)  # over the figure: long tick labels push a title over the axes out
    if handles:
        legend_below(figure, handles, columns)
    return figure, axes


def _broken(label: str, width_in: float) -> str:
    """A label in lines that fit `width_in`, broken behind its commas where that can be."""
    columns = max(int(width_in * 72 / (LETTER_EM * SMALL_PT)), 8)
    return "\n".join(textwrap.wrap(label, columns, break_on_hyphens=False))


def bare(axes: Axes) -> None:
    """Small ticks, a pale grid behind what is drawn, and no frame above and on the right."""
    axes.tick_params(labelsize=SMALL_PT, which="both")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend_below(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    """The legend under all axes of the figure."""
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


def label_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """Axis labels, with units where there are any."""
    axes.set_xlabel(plain(x_label), fontsize=TEXT_PT)
    axes.set_ylabel(plain(y_label), fontsize=TEXT_PT)


def legend_columns(labels: Sequence[str], width_in: float) -> int:
    """Two columns if the labels of the first half and those of the second fit beside each other, else one."""
    half = (len(labels) + 1) // 2
    if half < 1 or half == len(labels):
        return 1
    letters = max(map(len, labels[:half])) + max(map(len, labels[half:]))
    room_pt = width_in * 72 - 2 * 3.0 * SMALL_PT - 1.2 * SMALL_PT - 8  # handles, gap, margin
    return 2 if letters * LETTER_EM * SMALL_PT <= room_pt else 1
