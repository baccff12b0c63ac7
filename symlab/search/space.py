"""The box in which settings are searched: one dimension per key, each on its own scale.

A value x of a continuous dimension has the scaled coordinate s(x): x (linear), ln x (log), or -ln(1 - x)
(log_complement: for decays near 1, such as beta and gamma, that matter by their distance to 1). Unit coordinates are
0 at s(low), 1 at s(high), and linear in s between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

SCALES = {  # scale -> (the values it can hold, as text; the least and the greatest of them that are ever proposed)
    "linear": ("at most 1e300 in size", -1e300, 1e300),
    "log": ("positive", 1e-300, 1e300),
    "log_complement": ("in (0, 1)", 1e-3, 1.0 - 1e-12),
}
CHOICES = "choices"
RANGE_KEYS = ("low", "high", "scale", "min", "max")
NEGLIGIBLE = 0.05  # part of the range of what was tried, in scaled coordinates


@dataclass(frozen=True)
class Dimension:
    """One key with its range [low, high] on a scale, or with its choices (`scale` is then "choices").

    `min` and `max`, if any, are the key's own limits, which no extension of the range passes.
    """

    key: str
    low: float | None
    high: float | None
    scale: str
    choices: tuple[Any, ...] | None
    min: float | None = None
    max: float | None = None

    def to_unit(self, value: Any) -> float:
        """u = (s(value) - s(low)) / (s(high) - s(low)), below 0 or above 1 for a value outside the range.

        Of choices: the middle of the value's interval among equal ones. Raises ValueError for a value that the scale
        or the choices do not have.
        """
        if self.choices is not None:
            return (self._index(value) + 0.5) / len(self.choices)
        lowest, highest = self.bounds
        return (self.scaled(value) - lowest) / (highest - lowest)

    def from_unit(self, unit: float) -> Any:
        """The value at u in [0, 1]: exactly low at 0, exactly high at 1; of choices, the one whose interval holds u.

        Raises ValueError for u outside [0, 1].
        """
        if not 0 <= unit <= 1:
            raise ValueError(f"{self.key}: a unit coordinate is in [0, 1], got {unit}")
        if self.choices is not None:
            return self.choices[min(int(unit * len(self.choices)), len(self.choices) - 1)]
        assert self.low is not None
        assert self.high is not None
        lowest, highest = self.bounds
        value = _unscaled(self.scale, lowest + unit * (highest - lowest))
        if unit in (0, 1):
            return self.high if unit else self.low
        return min(max(value, self.low), self.high)

    @property
    def bounds(self) -> tuple[float, float]:
        """Scaled coordinates of low and high."""
        return self.scaled(self.low), self.scaled(self.high)

    def scaled(self, value: Any) -> float:
        """s(value). Raises ValueError for a value that the scale does not have."""
        _check_number(self.key, value)
        if not _in_domain(self.scale, value):
            raise ValueError(f"{self.key}={value}: on the scale {self.scale} a value is {SCALES[self.scale][0]}")
        match self.scale:
            case "log":
                return math.log(value)
            case "log_complement":
                return -math.log1p(-value)
        return float(value)

    def around(self, value: Any, factor: float) -> Dimension:
        """The same dimension with a range `factor` times as wide and `value` in its middle; choices stay.

        It may reach beyond the old range, not beyond what the scale can hold nor `min` and `max`: there it is cut.
        """
        if self.choices is not None:
            return self
        least, greatest = self._limits()
        if not least <= value <= greatest:
            raise ValueError(f"{self.key}={value}: the range stays within [{least}, {greatest}]")
        lowest, highest = self.bounds
        middle, half = self.scaled(value), factor * (highest - lowest) / 2
        low = _extended(self.scale, middle - half, least, greatest)
        high = _extended(self.scale, middle + half, least, greatest)
        return replace(self, low=low, high=high)

    def at_edge(self, values: Sequence[Any], best: Any) -> bool:
        """Whether at most 5 % of the range of `values`, in scaled coordinates, lies beyond `best` on one side.

        False for choices, and on a side where the range has arrived at `min` or `max`: nothing more can lie there.
        """
        if self.choices is not None:
            return False
        tried = [self.scaled(value) for value in (*values, best)]
        lowest, highest, place = min(tried), max(tried), self.scaled(best)
        slack = NEGLIGIBLE * (highest - lowest)
        below = self.min is None or lowest > self._limit(self.min) + slack
        above = self.max is None or highest < self._limit(self.max) - slack
        return (below and place - lowest <= slack) or (above and highest - place <= slack)

    def _limits(self) -> tuple[float, float]:
        """The least and the greatest value that an extended range may hold."""
        assert self.low is not None
        assert self.high is not None
        _, least, greatest = SCALES[self.scale]
        least, greatest = min(least, self.low), max(greatest, self.high)
        return (
            least if self.min is None else max(least, self.min),
            greatest if self.max is None else min(greatest, self.max),
        )

    def _limit(self, value: float) -> float:
        """s of `min` or `max`, which may lie at the end of what the scale holds (1 for a decay)."""
        return self.scaled(value) if _in_domain(self.scale, value) else math.copysign(math.inf, value - 0.5)

    def _index(self, value: Any) -> int:
        assert self.choices is not None
        for index, choice in enumerate(self.choices):
            if type(choice) is type(value) and choice == value:
                return index
        raise ValueError(f"{self.key}={value}: the choices are {', '.join(map(str, self.choices))}")


@dataclass(frozen=True)
class Space:
    """Dimensions with different keys. A point is a dict with one plain value per key."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def of(cls, mapping: Mapping[str, Any], prefix: str = "") -> Space:
        """The space of `{key: {low, high, scale} or {choices: [...]}}`; `prefix` is put before each key.

        A range may add `min` and `max`, the limits that no extension passes. Raises ValueError, naming the key, for
        anything else.
        """
        return cls(tuple(_dimension(f"{prefix}{key}", entry) for key, entry in mapping.items()))

    def from_unit(self, units: Sequence[float]) -> dict[str, Any]:
        """The point at unit coordinates, one per dimension in order."""
        pairs = zip(self.dimensions, units, strict=True)
        return {dimension.key: dimension.from_unit(float(unit)) for dimension, unit in pairs}

    def to_unit(self, point: Mapping[str, Any]) -> list[float]:
        """Unit coordinates, one per dimension. Raises ValueError for a value that its scale does not have."""
        return [dimension.to_unit(point[dimension.key]) for dimension in self.dimensions]

    def around(self, point: Mapping[str, Any], factor: float) -> Space:
        """The box of `factor` times the widths, in scaled coordinates, with `point` in its middle.

        It may reach beyond the declared ranges, not beyond what a scale can hold nor a key's `min` and `max`.
        Raises ValueError for a factor that is not positive or a point without one of the keys.
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"factor must be positive and finite, got {factor}")
        missing = [dimension.key for dimension in self.dimensions if dimension.key not in point]
        if missing:
            raise ValueError(f"the point has no value for {', '.join(missing)}")
        return Space(tuple(dimension.around(point[dimension.key], factor) for dimension in self.dimensions))

    def edges(self, points: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[str]:
        """Keys whose best value is at the edge of all that was tried, so that a better one may lie beyond.

        At the edge: of the range of the values tried in `points`, in scaled coordinates, at most 5 % lies beyond the
        best value on one side. Keys with choices, and keys that `best` does not hold, never are; nor is a key at its
        own `min` or `max`.
        """
        held = [dimension for dimension in self.dimensions if dimension.key in best]
        tried = {d.key: [point[d.key] for point in points if d.key in point] for d in held}
        return [d.key for d in held if d.at_edge(tried[d.key], best[d.key])]


def _dimension(key: str, entry: Any) -> Dimension:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{key}={entry}: a dimension is {{low, high, scale}} or {{choices: [...]}}")
    allowed = (CHOICES,) if CHOICES in entry else RANGE_KEYS
    unknown = [name for name in entry if name not in allowed]
    if unknown:
        raise ValueError(f"{key}.{unknown[0]}: a dimension has no such key here; its keys: {', '.join(allowed)}")
    if CHOICES in entry:
        return Dimension(key, None, None, CHOICES, _choices(key, entry[CHOICES]))
    missing = [name for name in ("low", "high", "scale") if name not in entry]
    if missing:
        raise ValueError(f"{key}.{missing[0]} is missing: a dimension is {{low, high, scale}} or {{choices: [...]}}")
    scale = entry["scale"]
    if scale not in SCALES:
        raise ValueError(f"{key}.scale={scale}: expected one of {', '.join(SCALES)}")
    limits = {name: entry[name] for name in ("min", "max") if entry.get(name) is not None}
    _check_range(key, entry, limits, scale)
    low, high, least, greatest = (_optional(entry.get(name)) for name in ("low", "high", "min", "max"))
    return Dimension(key, low, high, scale, None, least, greatest)


def _choices(key: str, choices: Any) -> tuple[Any, ...]:
    if not isinstance(choices, (list, tuple)) or not choices:
        raise ValueError(f"{key}.choices={choices}: expected a list of at least one value")
    plain = [choice for choice in choices if choice is None or isinstance(choice, (bool, int, float, str))]
    if len(plain) < len(choices):
        raise ValueError(f"{key}.choices={choices}: a choice is a number, a text, true, false or null")
    if len({(type(choice), choice) for choice in plain}) < len(plain):
        raise ValueError(f"{key}.choices={choices}: a choice stands twice")
    return tuple(plain)


def _check_range(key: str, entry: Mapping[str, Any], limits: Mapping[str, Any], scale: str) -> None:
    """Raises ValueError for a bound that is not finite, outside the scale or the limits, or in the wrong order."""
    low, high = entry["low"], entry["high"]
    for name, value in (("low", low), ("high", high), *limits.items()):
        _check_number(f"{key}.{name}", value)
        if name in ("low", "high") and not _in_domain(scale, value):
            raise ValueError(f"{key}.{name}={value}: on the scale {scale} it must be {SCALES[scale][0]}")
    if not low < high:
        raise ValueError(f"{key}: low must be below high, got low={low}, high={high}")
    if not limits.get("min", low) <= low or not high <= limits.get("max", high):
        raise ValueError(f"{key}: [low, high] = [{low}, {high}] must lie within min and max, got {dict(limits)}")


def _check_number(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{key}={value}: expected a finite number")


def _in_domain(scale: str, value: float) -> bool:
    match scale:
        case "log":
            return value > 0
        case "log_complement":
            return 0 < value < 1
    return abs(value) <= SCALES["linear"][2]


def _unscaled(scale: str, coordinate: float) -> float:
    """s^-1."""
    match scale:
        case "log":
            return math.exp(coordinate)
        case "log_complement":
            return -math.expm1(-coordinate)
    return coordinate


def _extended(scale: str, coordinate: float, least: float, greatest: float) -> float:
    """The value at a scaled coordinate, cut to [least, greatest]."""
    if scale == "log" and coordinate > math.log(greatest):
        return greatest  # before exp overflows
    if scale == "log_complement" and coordinate < 0:
        return least
    return min(max(_unscaled(scale, coordinate), least), greatest)


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
