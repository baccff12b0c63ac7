"""The reduced (surrogate) matrix of a curvature: all its independent numbers, and its spectrum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from symlab.plots.curvature_view import CurvatureView
from symlab.plots.eigenvalue_axis import scale_for_eigenvalues
from symlab.plots.matrix_image import add_colour_bar, colour_limit, draw_matrix, mark_borders
from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, DPI, GREY, MARKERS, SMALL_PT, TITLE_PT, label_axes, wrapped

LEAST_SHARE = 0.07
MOST_COPIES = 3000  # a reduced matrix with more rows is not drawn


def reduced_matrix(
    view: CurvatureView, *, title: str, width_in: float = COLUMN_WIDTH_IN, quantile: float = 0.99
) -> Figure | None:
    """The direct sum of all M_k at the last step, and its eigenvalues, one per distinct eigenvalue of the full matrix.

    Each block M_k is named by its axes and its multiplicity D_k, which the full matrix repeats it. The colours are on
    one symmetric scale, which ends at the `quantile` of the magnitudes that are not zero. None where the M_k together
    have more than 3,000 rows, and for a vector.
    """
    if not view.steps:
        return None
    step, data = view.last
    sizes = {name: len(block) for name, block in data.reduced.items()}
    if sum(sizes.values()) > MOST_COPIES:
        return None
    matrix = _direct_sum(list(data.reduced.values()))
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    figure = Figure(
        figsize=(width_in, width_in * 1.45 + 0.15 * (heading.count("\n") + 1)), dpi=DPI, layout="compressed"
    )
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    above, below = figure.subplots(2, 1, height_ratios=(2, 1))
    largest = colour_limit([matrix], quantile)
    image = draw_matrix(above, matrix, largest)
    mark_borders(above, sizes, names=True, least=LEAST_SHARE)
    above.set_title(f"step {step}: {len(matrix)} x {len(matrix)}", fontsize=SMALL_PT)
    clipped = float(np.abs(matrix).max()) > largest
    add_colour_bar(figure, image, above, clipped, "entry")
    _draw_spectrum(below, data.reduced)
    return figure


def _direct_sum(blocks: list[np.ndarray]) -> np.ndarray:
    size = sum(len(block) for block in blocks)
    matrix = np.zeros((size, size))
    start = 0
    for block in blocks:
        end = start + len(block)
        matrix[start:end, start:end] = block
        start = end
    return matrix


def _draw_spectrum(axes: Axes, reduced: Mapping[str, np.ndarray]) -> None:
    """Eigenvalues of each block, side by side, one colour and marker per block."""
    values = {name: np.linalg.eigvalsh((block + block.T) / 2)[::-1] for name, block in reduced.items()}
    every = np.concatenate(list(values.values()))
    start = 0
    for index, own in enumerate(values.values()):
        marker = MARKERS[1 + index % (len(MARKERS) - 1)]
        places = np.arange(start, start + len(own))
        axes.plot(places, own, marker, color=COLOURS[index % len(COLOURS)], markersize=3)
        start += len(own)
        axes.axvline(start - 0.5, color=GREY, linewidth=0.4)
    scale_for_eigenvalues(axes, every)
    axes.set_xlim(-0.5, start - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=SMALL_PT, which="both")
    axes.grid(True, which="major", axis="y", color="#dddddd", linewidth=0.5)
    label_axes(axes, "eigenvalues block by block", "eigenvalue")
