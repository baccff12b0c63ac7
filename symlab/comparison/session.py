"""Does the runs of a comparison that are not on record yet, in parallel, and puts each on record as it ends."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from symlab.comparison.ledger import Ledger
from symlab.comparison.run_trial import TrialResult, TrialRunner
from symlab.comparison.trial import Task, Trial
from symlab.comparison.tuning import Family, Setting, Tuner
from symlab.comparison.workers import run_trials, run_trials_here
from symlab.training.factories import Stop

logger = logging.getLogger("symlab")
SAY_EVERY_S = 60.0
Row = Mapping[str, Any]


def place_of(setting: Setting, seed: int) -> Row:
    """Where a tuning run belongs and what it was worth."""
    return {"round": setting.round, "trial": setting.number, "value": setting.values[seed]}


class Tick(Protocol):
    """Told how many runs there are more: done just now (`fresh`), or found on record."""

    def __call__(self, runs: int, *, fresh: bool) -> object: ...


def _nobody(runs: int, *, fresh: bool) -> None:
    """The tick that nobody counts."""


class Ticker:
    """Counts runs, and says once a minute in the log how far it is: a log file has no bar."""

    def __init__(self, total: int, update: Callable[[int], object]) -> None:
        self._total, self._update = total, update
        self._count, self._fresh = 0, 0
        self._began = self._said = time.monotonic()

    def __call__(self, runs: int, *, fresh: bool) -> None:
        self._count += runs
        self._fresh += runs if fresh else 0
        self._update(runs)
        now = time.monotonic()
        if now - self._said >= SAY_EVERY_S and self._fresh:
            self._said = now
            left = (self._total - self._count) * (now - self._began) / self._fresh / 60
            logger.info("%d of %d runs, about %.0f minutes left", self._count, self._total, math.ceil(left))


@dataclass
class Session:
    """One start of a comparison: where its runs are done, and where they are put."""

    task: Task
    ledger: Ledger
    device: torch.device  # its kind is part of a trial's identity
    devices: Sequence[str]  # one per worker process; none: runs are done in this process
    threads: int
    stop: Stop
    tick: Tick = _nobody
    used: set[str] = field(default_factory=set)  # keys of all trials that the configuration asks for
    places: dict[str, Row] = field(default_factory=dict)  # key of a tuning run -> its round, number and value
    done: int = 0  # runs of this start
    known: int = 0  # runs found on record
    seconds: float = 0.0  # that these took, each by itself

    def key(self, trial: Trial) -> str:
        """The trial's identity, which counts as used from now on."""
        key = trial.key(self.task, self.device.type)
        self.used.add(key)
        return key

    def tune(self, tuners: Sequence[Tuner]) -> None:
        """All settings of all tuners; returns early when stopped."""
        families = [family for tuner in tuners for family in tuner.families]
        open_runs: dict[int, tuple[str, Family, Setting]] = {}  # by id of the trial

        def next_trial() -> Trial | None:
            for family in families:
                while (found := family.next()) is not None:
                    setting, trial = found
                    key = self.key(trial)
                    known = self.ledger.trial(key)
                    if known is None:
                        open_runs[id(trial)] = key, family, setting
                        return trial
                    family.record(setting, trial.seed, known)
                    self.places[key] = place_of(setting, trial.seed)
                    self._found(1)
            return None

        def proceed(trial: Trial, row: Row) -> bool:
            _, family, setting = open_runs[id(trial)]
            return family.proceed(setting, row)

        for trial, result in self._run(next_trial, proceed):
            key, family, setting = open_runs.pop(id(trial))
            family.record(setting, trial.seed, result)
            self.places[key] = place_of(setting, trial.seed)
            self.ledger.add_trial(key, self.places[key], trial, result)

    def report(self, trials: Sequence[Trial]) -> None:
        """All trials that are not on record; returns early when stopped."""
        missing = [trial for trial in trials if self.ledger.result(self.key(trial)) is None]
        self._found(len(trials) - len(missing))
        waiting = iter(missing)
        for trial, result in self._run(lambda: next(waiting, None), lambda trial, row: True):
            self.ledger.add_result(self.key(trial), trial, result)

    def _found(self, runs: int) -> None:
        """Runs that are on record already."""
        self.known += runs
        self.tick(runs, fresh=False)

    def _run(
        self, next_trial: Callable[[], Trial | None], proceed: Callable[[Trial, Row], bool]
    ) -> Iterator[tuple[Trial, TrialResult]]:
        if self.devices:
            runs = run_trials(self.task, self.devices, self.threads, next_trial, proceed, self.stop)
        else:
            runner = TrialRunner(self.task, self.device, self.threads)
            runs = run_trials_here(runner, next_trial, proceed, self.stop)
        for trial, result in runs:
            self.done += 1
            self.seconds += result.duration_s
            yield trial, result
            self.tick(1, fresh=True)
