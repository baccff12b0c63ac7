"""The axes of a model: which parameters have which axis, coloured by its group.

Small nets get the whole chart, parameters against axes; larger ones the share of the weights that axes of each role and
group index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from symlab.plots.style import COLUMN_WIDTH_IN, DPI, LINE_IN, SMALL_PT, TITLE_PT, plain, wrapped

GROUP_COLOURS = {
    "permutation": "#0072B2",
    "signed_permutation": "#E69F00",
    "orthogonal": "#009E73",
    "trivial": "#B8B8B8",
}
GROUP_NAMES = {"signed_permutation": "signed permutation", "trivial": "free"}
LETTER_IN = 0.056  # width of a letter of SMALL_PT
CELL_IN = 0.125  # least side of a cell, so that a digit of SMALL_PT fits
MOST_PARAMETERS = 70  # rows of the chart; more make the compact figure
FEW = 2  # free axes of one role that have a column of their own each; more share one


def axes(
    rows: Sequence[Mapping[str, Any]], weights: Mapping[str, int], *, title: str, width_in: float = COLUMN_WIDTH_IN
) -> Figure:
    """`rows`: one per axis with axis, size, used_group, role and places ("<parameter>:<dimension> ..."); `weights`:
    parameter -> its number of weights, in order.

    The chart has one row per parameter and one column per axis; a number in a cell is the dimension of the parameter
    that the axis indexes. Free axes of one role share a column if there are more than `FEW`. Where that does not fit
    into `width_in` or into one page: bars, per role and group the share of the weights that such axes index. Free axes
    of one unit are left out.

    Raises ValueError for a width that is not positive.
    """
    if not width_in > 0:
        raise ValueError(f"width_in must be positive, got {width_in}")
    rows = [row for row in rows if row["size"] > 1 or row["used_group"] != "trivial"]
    columns = _columns(rows)
    space = width_in - 0.25 - LETTER_IN * max(len(name) for name in weights)
    if len(weights) > MOST_PARAMETERS or CELL_IN * len(columns) > space:
        return _bars(rows, weights, title, width_in)
    return _chart(columns, list(weights), title, width_in)


Column = tuple[str, str, list[tuple[str, str]]]  # label, group, places (parameter, dimension)


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    shared: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["used_group"] == "trivial":
            shared.setdefault(row["role"], []).append(row)
    columns: list[Column] = []
    for row in rows:
        alike = shared[row["role"]] if row["used_group"] == "trivial" else []
        if len(alike) <= FEW:
            columns.append((f"{row['axis']} [{row['size']}]", row["used_group"], _places(row)))
        elif row is alike[0]:
            places = [place for other in alike for place in _places(other)]
            columns.append((f"{len(alike)} {row['role']} axes", "trivial", places))
    return columns


def _places(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = [place.rpartition(":") for place in str(row["places"]).split()]
    return [(name, dimension) for name, _, dimension in pairs]


def _chart(columns: list[Column], names: list[str], title: str, width_in: float) -> Figure:
    heading = wrapped(title, width_in - 0.3, TITLE_PT)
    used = list(dict.fromkeys(group for _, group, _ in columns))
    labels_in = LETTER_IN * max((len(label) for label, _, _ in columns), default=0)
    lines = heading.count("\n") + 2 + len(used) // 3
    height = 0.3 + 1.2 * CELL_IN * len(names) + labels_in + LINE_IN * lines
    figure = _empty_figure(width_in, height)
    panel = figure.add_subplot()
    for x, (_, group, places) in enumerate(columns):
        dimensions: dict[str, list[str]] = {}
        for name, dimension in places:
            dimensions.setdefault(name, []).append(dimension)
        for name, found in dimensions.items():
            if name in names:  # frozen parameters have no row
                _cell(panel, x, names.index(name), GROUP_COLOURS[group], ",".join(dict.fromkeys(found)))
    panel.set_xlim(-0.5, max(len(columns), 1) - 0.5)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.set_xticks(range(len(columns)), [plain(label) for label, _, _ in columns], rotation=90, fontsize=SMALL_PT)
    panel.set_yticks(range(len(names)), [plain(name) for name in names], fontsize=SMALL_PT)
    panel.tick_params(length=0)
    panel.grid(True, color="#e4e4e4", linewidth=0.4)
    panel.set_axisbelow(True)
    _finish(figure, panel, heading, used)
    return figure


def _cell(panel: Axes, x: int, y: int, colour: str, text: str) -> None:
    panel.add_patch(Rectangle((x - 0.44, y - 0.42), 0.88, 0.84, facecolor=colour, edgecolor="none"))
    dark = colour in (GROUP_COLOURS["permutation"], GROUP_COLOURS["orthogonal"])
    if len(text) <= 1:
        colour = "white" if dark else "black"
        panel.text(x, y, text, ha="center", va="center_baseline", fontsize=SMALL_PT, color=colour)


def _bars(rows: Sequence[Mapping[str, Any]], weights: Mapping[str, int], title: str, width_in: float) -> Figure:
    heading = wrapped(title, width_in - 0.3, TITLE_PT)
    families: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        families.setdefault((row["role"], row["used_group"]), []).append(row)
    used = list(dict.fromkeys(group for _, group in families))
    lines = heading.count("\n") + 2 + len(used) // 3
    figure = _empty_figure(width_in, 0.55 + 0.3 * len(families) + LINE_IN * lines)
    panel = figure.add_subplot()
    total = sum(weights.values())
    for y, ((_, group), found) in enumerate(families.items()):
        names = {name for row in found for name, _ in _places(row)}
        share = 100 * sum(weights.get(name, 0) for name in names) / total
        panel.barh(y, share, height=0.62, color=GROUP_COLOURS[group])
        inside = share > 55
        panel.text(
            share - 2 if inside else share + 2,
            y,
            _counted(found),
            ha="right" if inside else "left",
            va="center_baseline",
            fontsize=SMALL_PT,
            color="white" if inside and group in ("permutation", "orthogonal") else "black",
        )
    panel.set_yticks(range(len(families)), [role for role, _ in families], fontsize=SMALL_PT)
    panel.set_ylim(len(families) - 0.5, -0.5)
    panel.set_xlim(0, 100)
    panel.set_xlabel("share of the weights that these axes index (%)", fontsize=SMALL_PT)
    panel.tick_params(labelsize=SMALL_PT)
    panel.tick_params(axis="y", length=0)
    _finish(figure, panel, heading, used)
    return figure


def _counted(found: Sequence[Mapping[str, Any]]) -> str:
    sizes = sorted(row["size"] for row in found)
    count = f"{len(found)} axes" if len(found) > 1 else "1 axis"
    return f"{count}, size {sizes[0]}" + (f" to {sizes[-1]}" if sizes[-1] > sizes[0] else "")


def _empty_figure(width_in: float, height_in: float) -> Figure:
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _finish(figure: Figure, panel: Axes, heading: str, groups: Sequence[str]) -> None:
    for side in ("top", "right", "left", "bottom"):
        panel.spines[side].set_visible(side == "bottom")
    panel.spines["bottom"].set_color("#999999")
    figure.suptitle(heading, fontsize=TITLE_PT)
    handles = [Patch(color=GROUP_COLOURS[group], label=GROUP_NAMES.get(group, group)) for group in groups]
    if not handles:
        return
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 3), fontsize=SMALL_PT, frameon=False
    )
