"""Running averages of structured factors over training: do nets agree, with each other and with the ensemble?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.panels import Look, draw_series, need_columns, over_repeats, stacked_panels
from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, GREY, MARKERS

PANELS = {
    "between two nets' averages": ("pairwise", "pairwise_error"),
    "one net's average with the other nets' present factors": ("agreement", "agreement_std"),
    "drift: the ensemble's average with its factors at step 0": ("drift_start", None),
}


def factor_momentum(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    part: str = "all",
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 1.4,
) -> Figure:
    """Correlations over steps, one line per beta, in three panels of `height_in` inches; see the job for the columns.

    `part`: all factors, or those of a pair of tensors, `<tensor> x <tensor>`. Bands: of one run, the standard error of
    the first panel's mean and one standard deviation over nets in the second; of several runs (column run), one
    standard deviation over the runs. `references` are not drawn: these axes hold no loss.

    Raises ValueError for an empty table, a missing column and a part that there is not.
    """
    columns = [name for pair in PANELS.values() for name in pair if name]
    need_columns(table, ["step", "beta", "part", *columns], "factor-momentum")
    rows = table[table["part"] == part]
    if rows.empty:
        raise ValueError(f"part={part!r}: the table has {', '.join(dict.fromkeys(table['part']))}")
    looks = {
        beta: Look(f"beta {beta:g}" if beta else "no memory (beta 0)", COLOURS[i % len(COLOURS)], "-", MARKERS[i % 8])
        for i, beta in enumerate(sorted(set(rows["beta"])))
    }
    repeats = rows["run"].nunique() if "run" in rows.columns else 1
    handles: list[Artist] = [
        Line2D([], [], color=look.colour, marker=look.marker, markersize=3, linewidth=1.3, label=look.label)
        for look in looks.values()
    ]
    band = f"±1 std over {repeats} runs" if repeats > 1 else "±1 error; ±1 std over nets"
    handles.append(Patch(color=GREY, alpha=0.25, linewidth=0, label=band))
    labels = dict.fromkeys(PANELS, "correlation")
    figure, grid = stacked_panels(title, handles, labels, width_in, height_in, "step (updates)")
    for axes, (y, spread) in zip(grid, PANELS.values(), strict=True):
        for beta, look in looks.items():
            draw_series(axes, over_repeats(rows[rows["beta"] == beta], y, ["run"], spread), look)
    return figure
