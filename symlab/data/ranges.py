"""Checks of the numbers that a data set is asked for; a failure names the key and the value."""

from __future__ import annotations

import math


def whole_number(key: str, value: int, *, least: int) -> int:
    """`value` if it is an int (not a bool) of at least `least`; TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{key} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{key} must be at least {least}, got {value}")
    return value


def finite_number(key: str, value: float, *, least: float = -math.inf) -> float:
    """`value` as a float if it is finite and at least `least`; TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{key} must be a number, got {value!r}")
    if not math.isfinite(value) or value < least:
        bound = "finite" if least == -math.inf else f"finite and at least {least:g}"
        raise ValueError(f"{key} must be {bound}, got {value}")
    return float(value)
