"""What a protocol's keys must be: one message with key, value and remedy (ValueError)."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Sequence


def check_whole(key: str, value: int, *, least: int) -> None:
    """A whole number, `least` or more."""
    if not value >= least:
        raise ValueError(f"{key} must be a whole number from {least} on, got {value}")


def check_positive(key: str, value: float) -> None:
    """Above 0 and finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"{key} must be positive and finite, got {value}")


def check_not_negative(key: str, value: float) -> None:
    """0 or more, and finite."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{key} must be finite and at least 0, got {value}")


def check_inside(key: str, value: float) -> None:
    """Above 0 and below 1."""
    if not 0 < value < 1:
        raise ValueError(f"{key} must lie strictly between 0 and 1, got {value}")


def check_share(key: str, value: float) -> None:
    """Above 0 and at most 1. `key` may go on, behind a comma, to say what it is."""
    if not 0 < value <= 1:
        raise ValueError(f"{key} must lie in (0, 1], got {value}")


def check_momentum(momentum: float) -> None:
    """0 or more, and below 1."""
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")


def check_axis(key: str, values: Sequence[float], *, positive: bool = False) -> None:
    """Values of a sweep: at least one, finite, ascending, not negative (with `positive`: above 0)."""
    if not values:
        raise ValueError(f"{key}: a sweep needs at least one value, got []")
    low = "positive" if positive else "0 or more"
    for value in values:
        if not (0 < value < math.inf if positive else 0 <= value < math.inf):
            raise ValueError(f"{key} must be {low} and finite, got {value}")
    if not all(a < b for a, b in itertools.pairwise(values)):
        raise ValueError(f"{key} must ascend, each value once, got {list(values)}")


def check_member(key: str, value: float, axis: str, values: Sequence[float]) -> None:
    """One of the values of a sweep."""
    if value not in values:
        raise ValueError(f"{key} must be one of {axis}, {list(values)}, got {value}")


def check_step_sizes(axis: str, values: Sequence[float], other: str, rates: Sequence[float]) -> None:
    """1 - rate value must not be negative: decay that overshoots zero is no decay."""
    if not max(values) * max(rates) <= 1:
        raise ValueError(f"{axis} times {other} must be at most 1, got {max(values)} and {max(rates)}")


def check_time(time: float, lrs: Sequence[float]) -> None:
    """time = lr x steps: finite, and at least two steps of the largest rate."""
    least = 2 * max(lrs)
    if not least <= time < math.inf:
        raise ValueError(
            f"time = lr x steps must be finite and at least two steps of the largest lr, {least:g}, got {time}"
        )


def check_lasso(lasso: bool) -> None:
    """The comparison with scikit-learn, if `lasso` asks for it, needs scikit-learn."""
    if lasso and importlib.util.find_spec("sklearn") is None:
        raise ValueError("lasso=true compares with scikit-learn, which is not installed: pip install 'symlab[digits]'")
