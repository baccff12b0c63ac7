"""Images per second of several ways to train, and to get the batches, relative to the plain one."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from symlab.plots.panels import need_columns
from symlab.plots.style import (
    COLOURS,
    COLUMN_WIDTH_IN,
    DPI,
    GREY,
    LINE_IN,
    SMALL_PT,
    TITLE_PT,
    label_axes,
    plain,
    wrapped,
)

BAR_IN = 0.24  # height of one bar with its gap
HEADINGS = {"training": "training", "data": "data pipeline alone"}


def speed_bars(
    table: pd.DataFrame, references: Mapping[str, float], *, title: str, width_in: float = COLUMN_WIDTH_IN
) -> Figure:
    """Median over repeats of rate(way) / rate(plain way of its part), each ratio taken within one repeat; one panel,
    with a scale of its own, for each part.

    `table`: rows with part, way, repeat, images_per_s, timed in turns. Whiskers: quartiles. Beside a bar: the ratio and
    the median rate. `references`: way -> the ratio that is aimed at, a mark on its bar; other names are left out.

    Raises ValueError for an empty table, a missing column, a part without a way called plain..., a repeat that lacks a
    way, or a width that is not positive.
    """
    if not width_in > 0:
        raise ValueError(f"width_in must be positive, got {width_in}")
    parts = relative_rates(table)
    counts = [len(rows) for rows in parts.values()]
    handles: list[Artist] = [Line2D([], [], color="black", linewidth=0.8, marker="|", markersize=4, label="quartiles")]
    if any(name in references for rows in parts.values() for name in rows.index):
        handles.append(Line2D([], [], color=COLOURS[1], linewidth=1.5, label="aim"))
    heading = wrapped(title, width_in - 0.2, TITLE_PT)
    height = BAR_IN * sum(counts) + 0.5 * len(counts) + LINE_IN * (heading.count("\n") + 2)
    figure = Figure(figsize=(width_in, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(heading, fontsize=TITLE_PT)
    grid = figure.subplots(len(parts), 1, squeeze=False, height_ratios=counts)[:, 0]
    for axes, (part, rows) in zip(grid, parts.items(), strict=True):
        _draw_part(axes, HEADINGS.get(part, part), rows, references)
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=SMALL_PT, frameon=False)
    return figure


def _draw_part(axes: Axes, heading: str, rows: pd.DataFrame, references: Mapping[str, float]) -> None:
    axes.set_title(heading, fontsize=SMALL_PT)
    axes.tick_params(labelsize=SMALL_PT)
    axes.grid(True, axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    colours = [GREY if place == 0 else COLOURS[0] for place in range(len(rows))]
    axes.barh(range(len(rows)), rows["ratio"], height=0.65, color=colours, linewidth=0)
    whiskers = [rows["ratio"] - rows["low"], rows["high"] - rows["ratio"]]
    axes.errorbar(rows["ratio"], range(len(rows)), xerr=whiskers, fmt="none", ecolor="black", elinewidth=0.8, capsize=2)
    axes.set_yticks(range(len(rows)), [plain(str(name)).replace("_", " ") for name in rows.index])
    axes.invert_yaxis()
    aims = [references[name] for name in rows.index if name in references]
    end = max([float(rows["high"].max()), *aims])
    for place, (name, row) in enumerate(zip(map(str, rows.index), rows.to_dict("records"), strict=True)):
        if name in references:
            axes.plot([references[name]] * 2, [place - 0.45, place + 0.45], color=COLOURS[1], linewidth=1.5)
        right = max(row["high"], references.get(name, 0.0))
        text = f"{row['ratio']:.3g}  ({_rounded(row['rate'])} / s)"
        axes.text(right + 0.02 * end, place, text, va="center", fontsize=SMALL_PT)
    axes.set_xlim(0, 1.6 * end)
    label_axes(axes, f"images per second / {str(rows.index[0]).replace('_', ' ')}'s", "")


def relative_rates(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Part -> per way, the plain one first, then the slower before the faster: ratio (the median within repeats), low,
    high (its quartiles), rate (median images per second).

    Raises ValueError as `speed_bars` does.
    """
    need_columns(table, ["part", "way", "repeat", "images_per_s"], "benchmark-training")
    found = {}
    for part in sorted(dict.fromkeys(table["part"]), reverse=True):  # training, then data
        rows = table[table["part"] == part]
        rates = rows.pivot(index="repeat", columns="way", values="images_per_s").astype(float)
        if rates.isna().to_numpy().any():
            raise ValueError("every repeat must have a rate for each way: ratios are taken within a repeat")
        first = next((name for name in rates if str(name).startswith("plain")), None)
        if first is None:
            raise ValueError(f"part {part} has no way whose name begins with plain, which the others are compared with")
        names = [first, *rates.median().drop(first).sort_values().index]
        ratios = rates[names].div(rates[first], axis=0)
        found[str(part)] = pd.DataFrame(
            {
                "ratio": ratios.median(),
                "low": ratios.quantile(0.25),
                "high": ratios.quantile(0.75),
                "rate": rates[names].median(),
            }
        )
    return found


def _rounded(rate: float) -> str:
    """Three digits: 76,200."""
    return f"{float(f'{rate:.3g}'):,.0f}"
