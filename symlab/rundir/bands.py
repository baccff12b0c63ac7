"""Expected bands of a run's numbers: is each number inside?"""

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any


def check_bands(expected: Mapping[str, Sequence[float]], known: Iterable[str]) -> None:
    """Raises ValueError for a key that the summary will not have and for a band that is not [low, high]."""
    names = list(known)
    for key, band in expected.items():
        if key not in names:
            close = get_close_matches(key, names, 3, 0.5)
            hint = f"; near it: {', '.join(close)}" if close else f"; for instance {names[0]}"
            raise ValueError(f"expected.{key}: the summary of this run has no number of that name{hint}")
        if len(band) != 2 or not band[0] <= band[1]:
            raise ValueError(f"expected.{key}={list(band)}: a band is [low, high] with low <= high")


def judge(
    expected: Mapping[str, Sequence[float]], numbers: Mapping[str, Mapping[str, float | None]]
) -> dict[str, dict[str, Any]]:
    """For each expected key the number, its band, and the verdict: within, outside, or unknown (there is no number).

    `numbers`: key -> {"value": ..., "error": ...}.
    """
    found = {}
    for key, (low, high) in expected.items():
        value = numbers[key]["value"]
        known = value is not None and math.isfinite(value)
        verdict = "unknown" if not known else "within" if low <= value <= high else "outside"  # type: ignore[operator]
        found[key] = {**numbers[key], "low": low, "high": high, "verdict": verdict}
    return found


def over_data(values: Sequence[float | None], errors: Sequence[float | None]) -> dict[str, float | None]:
    """Mean over the data sets, with the standard deviation over them; of a single one its own value and error.

    value and error None where a data set has none; spread (standard deviation) None for a single one.
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return {"value": None, "error": None, "spread": None}
    mean = sum(known) / len(known)
    if len(known) == 1:
        return {"value": mean, "error": errors[0], "spread": None}
    spread = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))
    return {"value": mean, "error": spread / math.sqrt(len(known)), "spread": spread}


def verdict_lines(verdicts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What `judge` found, one line per key, for the console."""
    lines = []
    for key, found in verdicts.items():
        value = "no number" if found["value"] is None else f"{found['value']:.4g}"
        lines.append(f"{key}: {value}, expected {found['low']:g} to {found['high']:g}: {found['verdict']}")
    return lines
