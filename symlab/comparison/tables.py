"""The tables of a report: rows of statistics as rows of short texts, and those as aligned Markdown or HTML.

A cell that stands for no number is "–"; a spread has the digits of its mean.
"""

from __future__ import annotations

import html
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Cells = dict[str, str]
NOTHING = "–"
DIGITS = 3
WORDS = {"e", "of", "to", "lost", "diverged", "failed", "pruned"}  # that stand beside numbers
PLAIN = (1e-3, 1e5)  # numbers outside have an exponent


def summary_table(rows: Sequence[Row], reference: str, *, confidence: float = 0.95) -> list[Cells]:
    """Rows of `summary_rows`: mean ± std, interval, median with range, ratio to the reference, p and its correction."""
    interval = f"{100 * confidence:g} % interval"
    return [
        {
            "optimizer": str(row["optimizer"]),
            "runs": _runs(row),
            "mean ± std": spread(row["mean"], row["std"]),
            interval: span(row["low"], row["high"]),
            "median [min, max]": f"{_or_lost(row['median'])} [{_or_lost(row['min'])}, {_or_lost(row['max'])}]",
            f"ratio to {reference}": _ratio(row, "ratio"),
            "p": p_value(row["p"]),
            "p (Holm)": p_value(row["p_holm"]),
        }
        for row in rows
    ]


def target_table(rows: Sequence[Row]) -> list[Cells]:
    """Rows of `target_rows`: how many runs got there, median [range] of steps and of seconds among those."""
    return [
        {
            "target": str(row["target"]),
            "test loss": _levels(row),
            "optimizer": str(row["optimizer"]),
            "reached by": f"{row['reached']} of {row['runs']}",
            "steps": _median_and_range(row, "steps"),
            "seconds": _median_and_range(row, "seconds"),
        }
        for row in rows
    ]


def cost_table(rows: Sequence[Row], reference: str) -> list[Cells]:
    """Rows of `cost_rows`: ms of a step and of its update, ratios with quartiles, MiB."""
    return [
        {
            "optimizer": str(row["optimizer"]),
            "step, ms": number(row["step_ms"]),
            "update, ms": number(row["update_ms"]),
            f"step / {reference}'s": _ratio(row, "step_ratio"),
            f"update / {reference}'s": _ratio(row, "update_ratio"),
            "state, MiB": number(row["state_mib"]),
            "peak memory, MiB": number(row["peak_mib"]),
        }
        for row in rows
    ]


def tuning_table(tuned: Sequence[Row]) -> list[Cells]:
    """Rows of tuned.csv: best settings and value, what became of the trials, sensitivity, keys at an edge."""
    return [
        {
            "optimizer": str(row["optimizer"]),
            "best settings": settings_text(row["settings"]),
            "objective": number(row["value"]),
            "trials": _trials(row),
            "within 10 % of the best": number(row["within_10_percent"]),
            "at an edge": f"EDGE: {row['edges'].replace(',', ', ')}" if row["edges"] else "no",
        }
        for row in tuned
    ]


def coverage_table(coverage: Sequence[Row]) -> list[Cells]:
    """Rows of coverage.csv, one per optimizer and rule: how many tensors and weights it touched, and which."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in coverage:
        groups.setdefault((str(row["optimizer"]), str(row["rule"])), []).append(row)
    totals = {name: sum(int(row["weights"]) for row in coverage if row["optimizer"] == name) for name, _ in groups}
    return [
        {
            "optimizer": name,
            "rule": rule,
            "weights": f"{(weights := sum(int(row['weights']) for row in rows)):,}",
            "share": f"{100 * weights / totals[name]:.3g} %" if totals[name] else NOTHING,
            "tensors": _listed([str(row["tensor"]) for row in rows]),
        }
        for (name, rule), rows in groups.items()
    ]


# ---- numbers


def number(value: Any, digits: int = DIGITS) -> str:
    """A number with `digits` significant ones, whole numbers in full; – for None and nan."""
    if value is None or value != value:
        return NOTHING
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < PLAIN[1] and value):
        return f"{int(value):,}" if abs(value) >= PLAIN[1] else str(int(value))
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞"
    if value == 0 or PLAIN[0] <= abs(value) < PLAIN[1]:
        return f"{value:.{_decimals(value, digits)}f}"
    return _exponent(f"{value:.{digits - 1}e}")


def spread(mean: float | None, std: float | None) -> str:
    """mean ± std, both to the second significant digit of std (at least that of 3 of the mean)."""
    if mean is None or std is None:
        return number(mean)
    exponent = 0 if mean == 0 or PLAIN[0] <= abs(mean) < PLAIN[1] else math.floor(math.log10(abs(mean)))
    scaled_mean, scaled_std = mean / 10.0**exponent, std / 10.0**exponent
    smallest = min((abs(value) for value in (scaled_mean, scaled_std) if value), default=1.0)
    decimals = min(_decimals(smallest, 2), _decimals(scaled_mean or 1.0, 5))
    text = f"{scaled_mean:.{decimals}f} ± {scaled_std:.{decimals}f}"
    return f"({text})e{exponent}" if exponent else text


def span(low: float | None, high: float | None) -> str:
    """[low, high], – where there is none."""
    return NOTHING if low is None or high is None else f"[{number(low)}, {number(high)}]"


def p_value(p: float | None) -> str:
    """Two significant digits; from 0.0001 down only that."""
    if p is None:
        return NOTHING
    return "≤ 0.0001" if p <= 1e-4 else f"{p:.{max(2, _decimals(p, 2))}f}"


def settings_text(settings: str | Mapping[str, Any]) -> str:
    """key=value, ... of a setting or of its JSON text."""
    mapping = json.loads(settings) if isinstance(settings, str) else settings
    return ", ".join(f"{key}={value if isinstance(value, str) else _short(value)}" for key, value in mapping.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def _decimals(value: float, digits: int) -> int:
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else digits - 1


def _exponent(text: str) -> str:
    """1.20e-07 as 1.20e-7."""
    return re.sub(r"e([+-])0*(\d)", lambda match: f"e{match[1].replace('+', '')}{match[2]}", text)


def _or_lost(value: float) -> str:
    return number(value) if math.isfinite(value) else "lost"


def _runs(row: Row) -> str:
    lost = [f"{row[word]} of {row['runs']} {word}" for word in ("diverged", "failed") if row[word]]
    return ", ".join(lost) or str(row["runs"])


def _trials(row: Row) -> str:
    lost = [f"{row[word]} {word}" for word in ("diverged", "failed", "pruned") if row[word]]
    return f"{row['trials']} ({', '.join(lost)})" if lost else str(row["trials"])


def _ratio(row: Row, key: str) -> str:
    value, low, high = row[key], row[f"{key}_low"], row[f"{key}_high"]
    return f"{number(value)} {span(low, high)}" if low is not None else number(value)


def _levels(row: Row) -> str:
    low, high = number(row["level_min"]), number(row["level_max"])
    return low if low == high else f"{low} to {high}"


def _median_and_range(row: Row, name: str) -> str:
    if row[f"{name}_median"] is None:
        return NOTHING
    return f"{number(row[f'{name}_median'])} {span(row[f'{name}_min'], row[f'{name}_max'])}"


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


# ---- Markdown and HTML


def markdown_table(rows: Sequence[Row]) -> str:
    """GitHub's tables, padded so that they also read in a terminal; numbers to the right. "" without rows."""
    if not rows:
        return ""
    columns = list(rows[0])
    lines = [[escaped(str(row.get(column, ""))) for column in columns] for row in rows]
    right = _numeric_columns(rows, columns)
    headings = [escaped(column) for column in columns]
    widths = [max(3, *(_width(line[i]) for line in [headings, *lines])) for i in range(len(columns))]
    rule = ["-" * (width - 1) + ":" if numeric else "-" * width for width, numeric in zip(widths, right, strict=True)]
    padded = [
        [_padded(cell, width, numeric) for cell, width, numeric in zip(line, widths, right, strict=True)]
        for line in [headings, *lines]
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])


def html_table(rows: Sequence[Row]) -> str:
    """A table with escaped cells, in a box that scrolls by itself on a narrow screen. "" without rows."""
    if not rows:
        return ""
    columns = list(rows[0])
    kinds = [' class="number"' if numeric else "" for numeric in _numeric_columns(rows, columns)]
    head = "".join(f'<th scope="col"{kind}>{html.escape(c)}</th>' for c, kind in zip(columns, kinds, strict=True))
    body = "\n".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{html.escape(str(row.get(column, '')))}</td>"
            for column, kind in zip(columns, kinds, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def escaped(text: str) -> str:
    """`text` in one line that Markdown, also inside a table, shows as it is."""
    line = " ".join(text.split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*|~]|(?<!\w)_|_(?!\w)|\](?=[(\[]))", r"\\\1", line)


def _numeric_columns(rows: Sequence[Row], columns: Sequence[str]) -> list[bool]:
    """Whether every cell of a column is a number, with what belongs to one, or stands for none."""
    return [all(_is_numeric(str(row.get(column, ""))) for row in rows) for column in columns]


def _is_numeric(cell: str) -> bool:
    words = re.findall(r"[^\W\d_]+", cell)
    return cell == NOTHING or (bool(re.match(r"\W*\d|∞|-∞", cell)) and set(words) <= WORDS) or cell == "lost"


def _width(text: str) -> int:
    return sum(not unicodedata.combining(letter) for letter in text)


def _padded(cell: str, width: int, right: bool) -> str:
    room = " " * (width - _width(cell))
    return room + cell if right else cell + room
