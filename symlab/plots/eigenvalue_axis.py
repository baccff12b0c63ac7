"""An axis for eigenvalues of either sign that span many orders of magnitude."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator, SymmetricalLogLocator

from symlab.plots.style import GREY

DECADES = 12.0  # a logarithmic axis shows at most so many below the largest eigenvalue
LINEAR_SHARE = 1e-3  # of the largest magnitude: where an axis with both signs is linear

MOST_TICKS = 7


def scale_for_eigenvalues(axes: Axes, values: np.ndarray) -> None:
    """Logarithmic where all values are positive, else logarithmic on both sides of a linear part around zero."""
    largest = float(np.abs(values).max()) or 1.0
    if values.min() > 0:
        axes.set_yscale("log", nonpositive="mask")
        axes.set_ylim(max(float(values.min()), largest * 10**-DECADES) / 3, largest * 10)
        return
    axes.set_yscale("symlog", linthresh=LINEAR_SHARE * largest)
    ticks = SymmetricalLogLocator(base=10, linthresh=LINEAR_SHARE * largest)
    ticks.set_params(numticks=MOST_TICKS)
    axes.yaxis.set_major_locator(ticks)
    axes.yaxis.set_minor_locator(NullLocator())
    lowest = min(float(values.min()), -LINEAR_SHARE * largest)
    axes.set_ylim(4 * lowest, max(10 * float(values.max()), LINEAR_SHARE * largest))
    axes.axhline(0.0, color=GREY, linewidth=0.5)
