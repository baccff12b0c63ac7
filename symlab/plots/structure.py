"""The structure of a curvature matrix: a matrix on weight space on one symmetric colour scale, with its layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from symlab.plots.style import COLUMN_WIDTH_IN, DPI, SMALL_PT, TITLE_PT, plain, wrapped

COLOUR_MAP = "RdBu_r"  # red and blue: told apart in all common forms of colour blindness


def structure(
    matrix: np.ndarray, layers: Mapping[str, int], *, title: str, width_in: float = COLUMN_WIDTH_IN
) -> Figure:
    """The entries of a matrix [P, P] as colours, the largest magnitude at both ends of the scale.

    `layers`: tensor name -> number of weights, in the order of the matrix; lines mark the borders, names stand at
    the left.

    Raises ValueError unless the matrix is square, finite and as large as the layers.
    """
    P = sum(layers.values())
    if matrix.shape != (P, P):
        raise ValueError(f"matrix must be [{P}, {P}] like its layers, got {list(matrix.shape)}")
    if not np.isfinite(matrix).all():
        raise ValueError("matrix holds NaN or inf")
    heading = wrapped(title, width_in - 0.3, TITLE_PT)
    figure = Figure(figsize=(width_in, width_in * 0.72 + 0.15 * heading.count("\n")), dpi=DPI, layout="compressed")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    largest = float(np.abs(matrix).max()) or 1.0
    image = axes.imshow(matrix, cmap=COLOUR_MAP, vmin=-largest, vmax=largest, interpolation="nearest")
    _mark_layers(axes, layers)
    axes.set_title(heading, fontsize=TITLE_PT)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.ax.tick_params(labelsize=SMALL_PT)
    bar.set_label("entry", fontsize=SMALL_PT)
    return figure


def _mark_layers(axes: Axes, layers: Mapping[str, int]) -> None:
    borders = np.cumsum([0, *layers.values()])
    for border in borders[1:-1]:
        axes.axhline(border - 0.5, color="black", linewidth=0.5)
        axes.axvline(border - 0.5, color="black", linewidth=0.5)
    middles = (borders[:-1] + borders[1:] - 1) / 2
    names = [plain(name) for name in layers]
    axes.set_xticks([])
    axes.set_yticks(middles, names, fontsize=SMALL_PT)
    axes.tick_params(length=0)
    axes.set_xlabel("weights (columns in the same order)", fontsize=SMALL_PT)
