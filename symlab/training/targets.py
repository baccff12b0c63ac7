"""When a run first reached given test losses."""

from collections.abc import Mapping, Sequence
from typing import Any

REFERENCE_FACTOR = 1.3


def target_levels(levels: Sequence[float], references: Mapping[str, float]) -> dict[str, float]:
    """Name -> test loss to reach: each absolute level, and 1.3 x the loss of each of the data's reference models."""
    absolute = {f"{level:g}": float(level) for level in levels}
    relative = {f"{REFERENCE_FACTOR:g} x {name}": REFERENCE_FACTOR * loss for name, loss in references.items()}
    return absolute | relative


def first_reached(rows: Sequence[Mapping[str, Any]], levels: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """For each level the first evaluation with test_loss <= level: its `step` and `seconds`, None if there is none."""
    reached = {}
    for name, level in levels.items():
        hits = [row for row in rows if row["test_loss"] is not None and row["test_loss"] <= level]
        first = hits[0] if hits else {"step": None, "time_s": None}
        reached[name] = {"level": level, "step": first["step"], "seconds": first["time_s"]}
    return reached
