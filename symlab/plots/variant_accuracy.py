"""Test accuracy of variants over epochs, a panel per setting."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from symlab.plots.style import COLUMN_WIDTH_IN
from symlab.plots.variant_panels import variant_panels


def variant_accuracy(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 1.4,
) -> Figure:
    """100 times the share of test rows classified correctly, over epochs, for each variant; see `variant_panels`.

    `table`: curves.csv of the job variants. `references` are losses, so none is drawn here. `height_in`: of one panel.

    Raises ValueError for a table without rows or without a column, as of runs on data without classes.
    """
    percent = (
        table.assign(test_accuracy=100 * pd.to_numeric(table["test_accuracy"])) if "test_accuracy" in table else table
    )
    return variant_panels(
        percent, "test_accuracy", title=title, y_label="accuracy (%)", width_in=width_in, height_in=height_in
    )[0]
