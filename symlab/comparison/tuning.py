"""Choosing an optimizer's values on validation data, with the same number of runs for each.

A family is one optimizer with one schedule. Its share of the optimizer's settings is spent in rounds: half of them, the
configured values first, over the declared space; the others over ever smaller boxes around the best so far. A box may
reach beyond the declared range, so a best value at an edge moves the search there; nobody gets more runs for it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from symlab.comparison.run_trial import TrialResult
from symlab.comparison.settings import SCHEDULE, keywords_of, space_of
from symlab.comparison.trial import Trial
from symlab.rundir import BadInput
from symlab.search.sampler import Sampler
from symlab.search.space import Space
from symlab.training.order import mix

Objective = Literal["validation_loss", "validation_accuracy", "train_loss"]
COLUMNS = {"validation_loss": "test_loss", "validation_accuracy": "test_accuracy", "train_loss": "train_loss"}
Row = Mapping[str, Any]
Point = dict[str, Any]


class SearchFactory(Protocol):
    """Builds the sampler that spends `trials` settings in a space."""

    def __call__(self, space: Space, trials: int, seed: int) -> Sampler: ...


def objective_value(row: Row, objective: Objective) -> float | None:
    """What is made small: the loss, or for accuracy the share of errors; None where it is not finite."""
    value = row.get(COLUMNS[objective])
    if value is None or not math.isfinite(value):
        return None
    return 1.0 - value if objective == "validation_accuracy" else float(value)


@dataclass
class Setting:
    """One point of a family's space and what its runs came to; `value` is the mean over the tuning seeds."""

    number: int
    round: int
    point: Point
    asked: bool  # of the sampler; False for the configured values
    results: dict[int, TrialResult] = field(default_factory=dict)  # by seed
    values: dict[int, float | None] = field(default_factory=dict)

    def value(self, seeds: Sequence[int]) -> float | None:
        """None unless the runs of all seeds completed with a finite objective."""
        found = [self.values.get(seed) for seed in seeds]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if len(known) == len(seeds) else None


@dataclass(frozen=True)
class Search:
    """How a family is searched: settings per round, seed of the points, the update from which on runs may be pruned."""

    factory: SearchFactory
    counts: Sequence[int]
    seed: int
    no_pruning_before: int = 0


class Family:
    """The search over one optimizer with one schedule."""

    def __init__(self, template: Trial, search: "Search", seeds: Sequence[int], objective: Objective) -> None:
        self.template, self.search, self.seeds = template, search, seeds
        self.objective: Objective = objective
        own = Space.of(space_of(template.optimizer))
        of_schedule = Space.of(space_of(template.schedule), prefix=f"{SCHEDULE}.")
        self.space = Space((*own.dimensions, *of_schedule.dimensions))
        self.settings: list[Setting] = []
        self._round = 0
        self._sampler: Sampler | None = None
        self._left = 0
        self._open: dict[tuple[int, int], Setting] = {}  # (number of the setting, seed) -> runs that are out
        self._waiting: list[tuple[Setting, int]] = []

    @property
    def finished(self) -> bool:
        return not self._open and not self._waiting and self._left == 0 and self._round == len(self.search.counts)

    def next(self) -> tuple[Setting, Trial] | None:
        """The next run, or None while others have to end first (or nothing is left)."""
        if not self._waiting:
            self._ask()
        if not self._waiting:
            return None
        setting, seed = self._waiting.pop(0)
        self._open[setting.number, seed] = setting
        return setting, replace(self.template, seed=seed, settings=self.settings_of(setting))

    def settings_of(self, setting: Setting) -> dict[str, Any]:
        """The setting's values, and the schedule's label."""
        return {**setting.point, SCHEDULE: self.template.schedule_label}

    def _ask(self) -> None:
        if self._left == 0 and not self._open and self._round < len(self.search.counts):
            self._begin_round()
        if self._left == 0 or self._sampler is None:
            return
        configured = None if self.settings else self._configured()
        point = self._sampler.ask() if configured is None else configured
        if point is None:
            self._left = 0
            return
        self._left -= 1
        setting = Setting(len(self.settings), self._round, point, asked=configured is None)
        self.settings.append(setting)
        self._waiting += [(setting, seed) for seed in self.seeds]

    def _begin_round(self) -> None:
        best = self.best
        space = self.space if best is None else self.space.around(best.point, 0.5**self._round)
        self._left = self.search.counts[self._round]
        self._sampler = self.search.factory(space, self._left, mix(self.search.seed, self._round))
        self._round += 1

    def _configured(self) -> Point | None:
        """The point of the values as they are configured; None where one of them is not in the space's scales."""
        keywords = keywords_of(self.template.optimizer)
        keywords |= {f"{SCHEDULE}.{key}": value for key, value in keywords_of(self.template.schedule).items()}
        point = {dimension.key: keywords.get(dimension.key) for dimension in self.space.dimensions}
        try:
            self.space.to_unit(point)
        except ValueError:
            return None
        return point

    def proceed(self, setting: Setting, row: Row) -> bool:
        """Whether a run should go on; only the sampler's pruning ends one early, after a third of the updates."""
        value = objective_value(row, self.objective)
        if (
            not setting.asked
            or self._sampler is None
            or not self._sampler.prunes
            or value is None
            or row["step"] < self.search.no_pruning_before
        ):
            return True
        return not self._sampler.should_stop(setting.point, int(row["step"]), value)

    def record(self, setting: Setting, seed: int, result: TrialResult) -> None:
        """Take the result of a run; the sampler is told once all seeds of the setting are in."""
        self._open.pop((setting.number, seed), None)
        setting.results[seed] = result
        completed = result.status == "completed" and result.rows
        setting.values[seed] = objective_value(result.rows[-1], self.objective) if completed else None
        asked = setting.round == self._round and setting.asked
        if len(setting.results) == len(self.seeds) and self._sampler is not None and asked:
            self._sampler.tell(setting.point, setting.value(self.seeds))

    @property
    def best(self) -> Setting | None:
        """The setting with the smallest value; of equal ones the first."""
        known = [(s.value(self.seeds), s.number, s) for s in self.settings]
        return min(((v, n, s) for v, n, s in known if v is not None), default=(0, 0, None))[2]

    def edges(self) -> list[str]:
        """Tuned values whose best is at the edge of all that was tried."""
        return [] if self.best is None else self.space.edges([s.point for s in self.settings], self.best.point)


def round_counts(trials: int, families: int, rounds: int) -> list[list[int]]:
    """Settings per family and round: equal shares of the families, half of each in the first round.

    Raises BadInput when a family would get nothing.
    """
    if not trials >= families:
        raise BadInput(
            f"trials={trials} is less than one for each of the {families} schedules; use at least {families}"
        )
    counts = []
    for share in shares(trials, families):
        used = min(rounds, share)
        first = share if used == 1 else math.ceil(share / 2)
        rest = shares(share - first, used - 1) if used > 1 else []
        counts.append([first, *filter(None, rest)])
    return counts


def shares(total: int, parts: int) -> list[int]:
    """`total` in `parts` whole numbers that differ by at most one, larger ones first."""
    return [total // parts + (i < total % parts) for i in range(parts)]


@dataclass
class Tuner:
    """All families of one optimizer."""

    label: str
    families: list[Family]

    @property
    def finished(self) -> bool:
        return all(family.finished for family in self.families)

    def best(self) -> tuple[Family, Setting] | None:
        """The family and the setting with the smallest value, None where no setting completed."""
        found = [(family, family.best) for family in self.families]
        known = [(family, setting) for family, setting in found if setting is not None]
        return min(known, key=lambda pair: pair[1].value(pair[0].seeds) or 0.0, default=None)

    def summary(self) -> dict[str, Any]:
        """The row of tuned.csv."""
        found = self.best()
        every = [(family, setting) for family in self.families for setting in family.settings]
        statuses = [_status(setting) for _, setting in every]
        best = None if found is None else found[1].value(found[0].seeds)
        settings = {} if found is None else found[0].settings_of(found[1])
        return {
            "optimizer": self.label,
            "settings": json.dumps(settings),
            "value": best,
            "trials": len(every),
            "runs": sum(len(setting.results) for _, setting in every),
            **{name: statuses.count(name) for name in ("diverged", "failed", "pruned")},
            "edges": ",".join(found[0].edges()) if found is not None else "",
        }


def _status(setting: Setting) -> str:
    """The worst that happened to a setting's runs."""
    statuses = {result.status for result in setting.results.values()}
    return next((name for name in ("failed", "diverged", "pruned") if name in statuses), "completed")
