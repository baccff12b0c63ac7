"""Running sums over independent groups of models: of every size base * ratio^j, and over a few folds, in one pass.

Models are counted in the order in which they come, whatever the chunks: group g of size N holds the models g N ...
(g + 1) N - 1. Groups of one size share no model, so numbers computed from them are independent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar


class Sums(Protocol):
    """Running sums over models."""

    count: int

    def add(self, other: Any) -> None: ...
    def empty(self) -> Any: ...


T = TypeVar("T", bound=Sums)


@dataclass
class ModelGroups(Generic[T]):
    """The sums of all models seen, kept by fold and by unfinished group.

    Fold f holds every base group whose number is f modulo `folds`. When a group of size base * ratio^j is complete,
    `finished(j, sums)` is called, and the sums go on into the group of the next size. Without `finished` there are no
    groups but the base ones.
    """

    base: int
    folds: list[T]
    ratio: int = 2
    finished: Callable[[int, T], None] | None = None
    levels: list[T] = field(default_factory=list)  # the unfinished group of each size
    base_groups: int = 0

    def room(self, count: int) -> Iterator[tuple[int, int]]:
        """Cuts (start, stop) of a chunk of `count` models at the borders of base groups."""
        start = 0
        while start < count:
            open_count = self.levels[0].count if self.levels else 0
            stop = min(count, start + self.base - open_count)
            yield start, stop
            start = stop

    def add(self, sums: T) -> None:
        """Take in a part of the open base group."""
        self._at(0).add(sums)
        if self.levels[0].count < self.base:
            return
        self.folds[self.base_groups % len(self.folds)].add(self.levels[0])
        self.base_groups += 1
        self._finish(0)

    @property
    def count(self) -> int:
        """All models seen."""
        return sum(fold.count for fold in self.folds) + (self.levels[0].count if self.levels else 0)

    def total(self) -> T:
        """The sums of all models."""
        whole = self.folds[0].empty()
        for fold in self.folds:
            whole.add(fold)
        if self.levels:
            whole.add(self.levels[0])
        return whole

    def _at(self, level: int) -> T:
        while len(self.levels) <= level:
            self.levels.append(self.folds[0].empty())
        return self.levels[level]

    def _finish(self, level: int) -> None:
        group = self.levels[level]
        if self.finished is None:
            self.levels[level] = group.empty()
            return
        self.finished(level, group)
        above = self._at(level + 1)
        above.add(group)
        self.levels[level] = group.empty()
        if above.count == self.base * self.ratio ** (level + 1):
            self._finish(level + 1)


def check_groups(base: int, folds: int, ratio: int = 2) -> None:
    """Raises ValueError for sizes of groups that cannot be."""
    if not base >= 2:
        raise ValueError(f"base must be at least 2 models, got {base}")
    if not ratio >= 2:
        raise ValueError(f"ratio must be at least 2, got {ratio}")
    if not folds >= 1:
        raise ValueError(f"folds must be at least 1, got {folds}")
