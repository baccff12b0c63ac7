"""An optimizer's steps beside those that exact local curvature would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from symlab.plots.panels import Look, draw_series, need_columns, over_repeats, stacked_panels
from symlab.plots.style import COLOURS, COLUMN_WIDTH_IN, GREY

LABELS = {"cosine": "cosine with the step", "share": "share of the decrease"}
NAMES = {
    "step": "the optimizer's step",
    "gradient": "gradient g",
    "hessian": "$|H|^{-1} g$",
    "ggn": "$\\mathrm{GGN}^{-1} g$",
    "ggn_root": "$\\mathrm{GGN}^{-1/2} g$",
    "empirical_fisher_root": "$E^{-1/2} g$, E = mean $g_r g_r^T$",
    "gradient_root": "$(g g^T)^{-1/2} g$, structured",
}
LOOKS: dict[str, tuple[str, Literal["-", "--"]]] = {
    "step": ("#000000", "-"),
    "gradient": (GREY, "--"),
    **{name: (colour, "-") for name, colour in zip(list(NAMES)[2:], COLOURS, strict=False)},
}
STRUCTURED = "structured_"


def local_curvature(
    table: pd.DataFrame,
    references: Mapping[str, float],
    *,
    title: str,
    y: str = "cosine",
    width_in: float = COLUMN_WIDTH_IN,
    height_in: float = 1.7,
) -> Figure:
    """Column `y` over steps, one line per direction, in two panels of `height_in` inches: exact curvature, structured.

    `y`: cosine, with the optimizer's step; or share, of the decrease that the best step would bring under the local
    quadratic model. Bands: one standard deviation over seeds (and runs), none for a single one. The gradient, and for
    share the step itself, stand in both panels. `references` are not drawn: these axes hold no loss.

    Raises ValueError for an empty table, a missing column, another y or a direction without a name.
    """
    if y not in LABELS:
        raise ValueError(f"y must be one of {', '.join(LABELS)}, got {y!r}")
    need_columns(table, ["step", "reference", y], "local-curvature")
    unknown = {name.removeprefix(STRUCTURED) for name in table["reference"]} - set(NAMES)
    if unknown:
        raise ValueError(f"the column reference holds {unknown.pop()!r}; known are {', '.join(NAMES)}")
    shown = [name for name in dict.fromkeys(table["reference"]) if y == "share" or name != "step"]
    plain = [name for name in shown if not name.startswith(STRUCTURED)]
    both = [name for name in ("step", "gradient") if name in plain]
    panels = {"exact": plain, "structured": [*both, *(name for name in shown if name.startswith(STRUCTURED))]}
    looks = {name: look_of(name) for name in shown}
    handles = _handles(list(looks.values()), table)
    headings = {f"{name} local curvature": LABELS[y] for name in panels}
    figure, grid = stacked_panels(title, handles, headings, width_in, height_in, "step (updates)")
    for axes, names in zip(grid, panels.values(), strict=True):
        for name in names:
            rows = table[table["reference"] == name]
            draw_series(axes, over_repeats(rows, y, ["run", "seed"], None), looks[name])
    return figure


def look_of(name: str) -> Look:
    """A direction and its structured counterpart look the same, for they stand in different panels."""
    own = name.removeprefix(STRUCTURED)
    width = 2.6 if own == "hessian" else 1.3  # it often runs under the GGN's
    return Look(NAMES[own], *LOOKS[own], width=width)


def _handles(looks: Sequence[Look], table: pd.DataFrame) -> list[Artist]:
    handles: list[Artist] = [
        Line2D([], [], color=look.colour, linestyle=look.linestyle, linewidth=look.width, label=look.label)
        for look in dict.fromkeys(looks)
    ]
    repeats = len(table[[name for name in ("run", "seed") if name in table.columns]].drop_duplicates())
    if repeats > 1:
        handles.append(Patch(color=GREY, alpha=0.25, linewidth=0, label=f"±1 std over {repeats} seeds"))
    return handles
