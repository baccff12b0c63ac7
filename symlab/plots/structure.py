"""The structure of a curvature matrix: a matrix on weight space on one symmetric colour scale, with its layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from symlab.plots.matrix_image import draw_matrix, mark_borders
from symlab.plots.style import COLUMN_WIDTH_IN, DPI, SMALL_PT, TITLE_PT, wrapped


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
    image = draw_matrix(axes, matrix, largest)
    mark_borders(axes, layers, names=True)
    axes.set_xlabel("weights (columns in the same order)", fontsize=SMALL_PT)
    axes.set_title(heading, fontsize=TITLE_PT)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.ax.tick_params(labelsize=SMALL_PT)
    bar.set_label("entry", fontsize=SMALL_PT)
    return figure
