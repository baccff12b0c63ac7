"""Mean and spread over the runs of each group, as rows of tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def group_rows(finals: Mapping[str, Sequence[Mapping[str, Any]]], columns: Sequence[str]) -> list[Row]:
    """One row per group: n, and for each column of the runs' last metrics rows its mean, std, least, greatest.

    `finals`: group -> last row of each of its runs. Cells without a number (None, nan) are left out, and `<column>_n`
    counts those that remain; inf stays. std has n - 1 in the divisor and is None for a single run.
    """
    rows = []
    for group, last_rows in finals.items():
        row: Row = {"group": group, "runs": len(last_rows)}
        for column in columns:
            row |= _spread(column, [last.get(column) for last in last_rows])
        rows.append(row)
    return rows


def target_rows(summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Row]:
    """One row per group and target loss: how many runs reached it, and after how many steps and seconds.

    `summaries`: group -> summary.json of each of its runs, with target_losses, steps_to_target, seconds_to_target
    (name -> value, None if never reached). Medians and ranges are over the runs that reached the target, `reached`
    of `runs`; the levels of a target may differ from run to run (they follow each run's own reference).
    """
    rows = []
    for group, members in summaries.items():
        names = dict.fromkeys(name for summary in members for name in summary.get("target_losses", {}))
        for name in names:
            own = [summary for summary in members if name in summary.get("target_losses", {})]
            rows.append({"group": group, "target": name} | _target_spread(name, own))
    return rows


def _target_spread(name: str, summaries: Sequence[Mapping[str, Any]]) -> Row:
    levels = [summary["target_losses"][name] for summary in summaries]
    steps = _numbers(summary["steps_to_target"][name] for summary in summaries)
    seconds = _numbers(summary["seconds_to_target"][name] for summary in summaries)
    return {
        "level_min": min(levels),
        "level_max": max(levels),
        "runs": len(summaries),
        "reached": len(steps),
        "steps_median": statistics.median(steps) if steps else None,
        "steps_min": min(steps, default=None),
        "steps_max": max(steps, default=None),
        "seconds_median": statistics.median(seconds) if seconds else None,
    }


def _spread(column: str, cells: Iterable[Any]) -> Row:
    values = _numbers(cells)
    return {
        f"{column}_n": len(values),
        f"{column}_mean": sum(values) / len(values) if values else None,
        f"{column}_std": _std(values),
        f"{column}_min": min(values, default=None),
        f"{column}_max": max(values, default=None),
    }


def _std(values: Sequence[float]) -> float | None:
    """Square root of sum (x - mean)^2 / (n - 1); None for n < 2, nan where a value is infinite."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    scale = max(abs(value - mean) for value in values)
    if not 0 < scale < float("inf"):
        return 0.0 if scale == 0 else float("nan")
    return scale * (sum(((value - mean) / scale) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def _numbers(cells: Iterable[Any]) -> list[float]:
    return [cell for cell in cells if isinstance(cell, (int, float)) and cell == cell]
