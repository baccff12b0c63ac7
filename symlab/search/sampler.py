"""What every search is: it is asked for points and told what they were worth."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final


class Sampler(ABC):
    """Ask for a point, try it, tell its value; smaller is better.

    Several points may be asked for before the first is told, and told in any order, so that workers can try them at
    the same time. A search that learns from values gives the same points again only if the same points were told
    between the same calls of `ask`: for repeatable results ask in batches of a fixed size and tell a whole batch
    before the next.
    """

    @abstractmethod
    def ask(self) -> dict[str, Any] | None:
        """The next point, as plain numbers and text by key; None when all trials were given out."""

    @abstractmethod
    def tell(self, point: Mapping[str, Any], value: float | None) -> None:
        """What a point of `ask` was worth; None (diverged, failed, stopped early) counts as worse than any number.

        Raises ValueError for a point that was not asked for or was told already.
        """

    @abstractmethod
    def should_stop(self, point: Mapping[str, Any], step: int, value: float) -> bool:
        """Whether to give this point up, after it has `value` at update `step`. Never, for a search without pruning.

        Raises ValueError for a point that was not asked for or was told already.
        """

    @property
    @abstractmethod
    def prunes(self) -> bool:
        """Whether `should_stop` can be true at all, so that it is worth a call."""


@final
class Listed(Sampler):
    """Points that are known beforehand, in their order; values change nothing."""

    def __init__(self, points: Sequence[Mapping[str, Any]]) -> None:
        self._points = [dict(point) for point in points]
        self._given = 0
        self._open: list[str] = []

    def ask(self) -> dict[str, Any] | None:
        if self._given == len(self._points):
            return None
        point = dict(self._points[self._given])
        self._given += 1
        self._open.append(point_key(point))
        return point

    def tell(self, point: Mapping[str, Any], value: float | None) -> None:
        self._open.remove(check_open(point, self._open))

    def should_stop(self, point: Mapping[str, Any], step: int, value: float) -> bool:
        check_open(point, self._open)
        return False

    @property
    def prunes(self) -> bool:
        return False


def point_key(point: Mapping[str, Any]) -> str:
    """One text per point, whatever the order of its keys."""
    return json.dumps(dict(point), sort_keys=True)


def check_open(point: Mapping[str, Any], opened: Sequence[str]) -> str:
    """The point's key. Raises ValueError if it is not among those that were asked for and not yet told."""
    key = point_key(point)
    if key not in opened:
        raise ValueError(f"the point {key} was not asked for, or was told already")
    return key


def check_trials(trials: int) -> None:
    """Raises ValueError for a budget below 1."""
    if isinstance(trials, bool) or not isinstance(trials, int) or not trials >= 1:
        raise ValueError(f"trials must be a whole number, at least 1, got {trials}")
