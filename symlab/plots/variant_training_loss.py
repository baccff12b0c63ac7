"""Training loss of variants over epochs, log scale, a panel per setting."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from symlab.plots.style import COLUMN_WIDTH_IN
from symlab.plots.variant_panels import HEADROOM, completed_range, variant_panels


def variant_training_loss(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 1.4,
) -> Figure:
    """Mean batch loss since the evaluation before, over epochs, for each variant; see `variant_panels`.

    `table`: curves.csv of the job variants. `references` are test losses, so none is drawn here. The axis ends at 3
    times the largest loss of the completed trials, where diverging ones leave it. `height_in`: of one panel.

    Raises ValueError for a table without rows or without a column.
    """
    figure, grid = variant_panels(
        table, "batch_loss", title=title, y_label="training loss", width_in=width_in, height_in=height_in
    )
    limits = completed_range(table, "batch_loss")
    if limits is not None:
        grid[0].set_yscale("log", nonpositive="mask")  # the panels share it
        low, high = grid[0].get_ylim()
        grid[0].set_ylim(max(low, limits[0] / 1.3), min(high, limits[1] * HEADROOM))
    return figure
