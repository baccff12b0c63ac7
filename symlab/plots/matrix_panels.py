"""A curvature matrix at the first and the last step, the fitted theory, and the difference."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from symlab.plots.curvature_view import CurvatureView
from symlab.plots.matrix_image import add_colour_bar, colour_limit, draw_matrix, mark_borders
from symlab.plots.style import COLUMN_WIDTH_IN, DPI, SMALL_PT, TITLE_PT, wrapped

LEAST_SHARE = 0.06  # a layer with fewer of the rows than this has no room for its name


def matrix_panels(
    view: CurvatureView, *, title: str, width_in: float = COLUMN_WIDTH_IN, quantile: float = 0.99
) -> Figure | None:
    """Measured matrices at the first and the last step, P(C) at the last step, and C - P(C), on one symmetric scale.

    P is the projection on the commutant: the theory, fitted. Each panel's entries are divided by the unit of its step,
    which stands over it: the `quantile` of the magnitudes of C and P(C) that are not zero; gradients shrink along
    training by orders of magnitude. Entries beyond one unit have the colour of the end. `width_in` in inches.

    None where no matrix is kept (dense=false), and for a vector. Raises ValueError unless 0 < quantile <= 1.
    """
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile must lie in (0, 1], got {quantile}")
    panels = _panels(view, quantile)
    if not panels:
        return None
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    rows = (len(panels) + 1) // 2
    height = width_in * 0.46 * rows + 0.45 + 0.15 * (heading.count("\n") + 1)
    figure = Figure(figsize=(width_in, height), dpi=DPI, layout="compressed")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    grid = figure.subplots(rows, 2, squeeze=False)
    for index, (name, matrix) in enumerate(panels.items()):
        axes = grid[index // 2, index % 2]
        image = draw_matrix(axes, matrix, 1.0)
        mark_borders(axes, view.layers, names=index % 2 == 0, least=LEAST_SHARE)
        axes.set_title(name, fontsize=SMALL_PT)
    if len(panels) % 2:
        grid[-1, -1].set_axis_off()
    clipped = max(float(np.abs(matrix).max()) for matrix in panels.values()) > 1 + 1e-9
    add_colour_bar(figure, image, grid, clipped, "entry, in units of its step")
    return figure


def _panels(view: CurvatureView, quantile: float) -> dict[str, np.ndarray]:
    """Title of the panel -> matrix [P, P]."""
    if not view.steps:
        return {}
    first, start = view.first
    last, end = view.last
    if start.measured is None or end.measured is None or end.fitted is None:
        return {}
    units = {
        step: colour_limit([x for x in (data.measured, data.fitted) if x is not None], quantile)
        for step, data in ((first, start), (last, end))
    }
    panels = {
        f"step {step}, unit {units[step]:.1e}": data.measured / units[step]
        for step, data in ((first, start), (last, end))
        if data.measured is not None
    }
    difference = end.measured - end.fitted
    return panels | {f"theory, step {last}": end.fitted / units[last], "measured - theory": difference / units[last]}
