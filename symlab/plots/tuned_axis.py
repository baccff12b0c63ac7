"""One tuned value as an axis: its scale is found from the values that were tried."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator, NullLocator

from symlab.plots.style import SMALL_PT, plain

Settings = Sequence[Mapping[str, Any]]
NOTHING = "none"
SCHEDULE = "schedule"  # has no axis of its own: a shape tells it
SPAN = 8.0  # values that span this factor get a logarithmic axis
ROOM = 0.07  # of the axis, beside the outermost values
STRIP = 0.2  # of the axis, for settings that have no such value
MOST_TICKS = 4


@dataclass(frozen=True)
class TunedAxis:
    """Where the values of `key` stand: at the value (linear), its logarithm (log), minus the logarithm of 1 - value
    (log_complement), or by name (choice).

    `low`, `high`: the ends of what was tried, in those coordinates. `missing`: some setting has no such key.
    """

    key: str
    scale: str
    low: float
    high: float
    names: tuple[str, ...]
    missing: bool

    @property
    def width(self) -> float:
        return (self.high - self.low) or 1.0

    def place(self, value: Any) -> float:
        """Position of a value; None stands in a strip of its own below all values."""
        return self.low - STRIP * self.width if value is None else _scaled(value, self.scale, self.names)

    def prepare(self, axes: Axes, direction: str) -> None:
        """Limits, label and ticks of the x- or y-axis; the ticks are labelled with the values themselves."""
        axis: Axis = axes.xaxis if direction == "x" else axes.yaxis
        limits = (
            self.low - (STRIP + ROOM if self.missing else ROOM) * self.width,
            self.high + ROOM * self.width,
        )
        values = self.tick_values()
        places = [self.place(value) for value in values]
        labels = [_text(value) for value in values]
        if self.missing:
            places, labels = [self.place(None), *places], [NOTHING, *labels]
        axis.set_ticks(places, labels=labels, fontsize=SMALL_PT)
        axis.set_minor_locator(NullLocator())
        if direction == "x":
            axes.set_xlim(*limits)
        else:
            axes.set_ylim(*limits)

    def tick_values(self) -> list[Any]:
        """At most 4 values to label, within what was tried; all names of choices."""
        if self.scale == "choice":
            return list(self.names)
        if self.scale == "linear":
            found = MaxNLocator(MOST_TICKS - 1).tick_values(self.low, self.high)
            return [float(f"{value:.10g}") for value in found if self.low <= value <= self.high] or [self.low]
        sign = 1 if self.scale == "log" else -1
        ends = sorted((sign * self.low, sign * self.high))
        powers = _powers(10 ** ends[0], 10 ** ends[1])
        return powers if sign > 0 else [float(f"{1 - power:.10g}") for power in reversed(powers)]


def axis_of(key: str, settings: Settings) -> TunedAxis:
    """The axis of one key over all settings that have it.

    The scale is that in which the tried values span the larger factor, x or 1 - x, where that is 8 or more.
    """
    values = [setting[key] for setting in settings if setting.get(key) is not None]
    names: tuple[str, ...] = ()
    if all(_is_number(value) for value in values):
        scale = _scale(min(values), max(values))
    else:
        scale, names = "choice", tuple(dict.fromkeys(map(str, values)))
    places = [_scaled(value, scale, names) for value in values]
    return TunedAxis(key, scale, min(places), max(places), names, missing=len(values) < len(settings))


def chosen_keys(settings: Settings) -> list[str]:
    """The first two keys that took several values: numbers that all settings have, then numbers that some have, then
    choices; the schedule only where nothing else was tuned.
    """
    keys = dict.fromkeys(key for setting in settings for key in setting)
    tried = {key: [setting[key] for setting in settings if setting.get(key) is not None] for key in keys}
    several = [key for key in keys if len(set(map(str, tried[key]))) > 1]
    numbers = [key for key in several if all(map(_is_number, tried[key]))]
    everywhere = [key for key in numbers if len(tried[key]) == len(settings)]
    choices = [key for key in several if key not in numbers and key != SCHEDULE]
    ordered = [*everywhere, *(key for key in numbers if key not in everywhere), *choices]
    return ordered[:2] or [key for key in several if key == SCHEDULE]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _scale(low: float, high: float) -> str:
    factors = {
        "log": high / low if low > 0 else 0.0,
        "log_complement": (1 - low) / (1 - high) if low >= 0 and high < 1 else 0.0,
    }
    best = max(factors, key=lambda name: factors[name])
    return best if factors[best] >= SPAN else "linear"


def _scaled(value: Any, scale: str, names: Sequence[str]) -> float:
    match scale:
        case "log":
            return math.log10(value)
        case "log_complement":
            return -math.log10(1 - value)
        case "linear":
            return float(value)
    return float(names.index(str(value)))


def _powers(low: float, high: float) -> list[float]:
    """Round numbers in [low, high]: powers of 10, with 2 and 5 between them where there are fewer than 2."""
    slack = 1 + 1e-9
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)):
        found = [step * 10.0**e for e in exponents for step in steps if low / slack <= step * 10.0**e <= high * slack]
        if len(found) > 1:
            break
    return found[:: math.ceil(len(found) / MOST_TICKS)] if found else [low]


def _text(value: Any) -> str:
    if not _is_number(value):
        return plain(str(value))
    exponent = math.floor(math.log10(abs(value)) + 1e-9) if value else 0
    if -3 <= exponent <= 3:
        return f"{value:g}"
    factor = value / 10.0**exponent
    shown = "" if abs(factor - 1) < 1e-9 else f"{factor:g}\\cdot"
    return f"${shown}10^{{{exponent}}}$"
