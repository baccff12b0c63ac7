"""Does the runs of a comparison that are not on record yet, in parallel, and puts each on record as it ends."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
Tick = Callable[[int], object]
"""Told of every run that is done or found on record: 1."""


def place_of(setting: Setting, seed: int) -> Row:
    """Where a tuning run belongs and what it was worth."""
    return {"round": setting.round, "trial": setting.number, "value": setting.values[seed]}


def _nobody(runs: int) -> None:
    """The tick that nobody counts."""


class Ticker:
    """Counts runs, and says once a minute in the log how far it is: a log file has no bar."""

    def __init__(self, total: int, update: Tick) -> None:
        self._total, self._update = total, update
        self._count, self._fresh = 0, 0
        self._began = self._said = time.monotonic()

    def __call__(self, runs: int) -> None:
        self._count += runs
        self._fresh += runs == 1
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
        open_runs: dict[int, tuple[Family, Setting]] = {}  # by id of the trial

        def next_trial() -> Trial | None:
            for family in families:
                while (found := family.next()) is not None:
                    setting, trial = found
                    known = self.ledger.trial(self.key(trial))
                    if known is None:
                        open_runs[id(trial)] = family, setting
                        return trial
                    self.known += 1
                    family.record(setting, trial.seed, known)
                    self.places[self.key(trial)] = place_of(setting, trial.seed)
                    self.tick(1)
            return None

        def proceed(trial: Trial, row: Row) -> bool:
            family, setting = open_runs[id(trial)]
            return family.proceed(setting, row)

        for trial, result in self._run(next_trial, proceed):
            family, setting = open_runs.pop(id(trial))
            family.record(setting, trial.seed, result)
            self.places[self.key(trial)] = place_of(setting, trial.seed)
            self.ledger.add_trial(self.key(trial), place_of(setting, trial.seed), trial, result)

    def report(self, trials: Sequence[Trial]) -> None:
        """All trials that are not on record; returns early when stopped."""
        missing = [trial for trial in trials if self.ledger.result(self.key(trial)) is None]
        self.known += len(trials) - len(missing)
        self.tick(len(trials) - len(missing))
        waiting = iter(missing)
        for trial, result in self._run(lambda: next(waiting, None), lambda trial, row: True):
            self.ledger.add_result(self.key(trial), trial, result)

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
            self.tick(1)
