"""Optuna's tree-structured Parzen estimator, which learns from the values, with median pruning (needs optuna)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from symlab.search.sampler import Listed, Sampler, check_open, check_trials, point_key
from symlab.search.space import Space

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial


def optuna(space: Space, trials: int, seed: int, *, startup_trials: int = 10, prune: bool = True) -> Sampler:
    """TPE (Bergstra et al., 2011) in scaled coordinates, in memory, after `startup_trials` random points.

    With `prune` a trial is given up when its best value so far is worse than the median of the earlier trials at the
    same update (once `startup_trials` of them have been completed). A trial that was given up counts as worse than
    all that were completed, one that diverged as worse than any number. An empty space has the one point {}.

    The same seed gives the same points if the same values come in the same batches (see `Sampler`). Which trials are
    given up depends on what has been reported so far, so with several workers only `prune=False` is repeatable.

    Raises ImportError without the package optuna, ValueError for a number out of range.
    """
    check_trials(trials)
    if not startup_trials >= 1:
        raise ValueError(f"startup_trials must be at least 1, got {startup_trials}")
    if not space.dimensions:
        return Listed([{}])
    try:
        import optuna as library
    except ImportError as error:
        raise ImportError("search optuna needs optuna: pip install 'symlab[optuna]'") from error
    library.logging.set_verbosity(library.logging.WARNING)
    short_seed = int(np.random.SeedSequence(seed).generate_state(1)[0])  # of 32 bits, as optuna takes it
    sampler = library.samplers.TPESampler(seed=short_seed, n_startup_trials=startup_trials)
    pruner = library.pruners.MedianPruner(n_startup_trials=startup_trials) if prune else library.pruners.NopPruner()
    study = library.create_study(direction="minimize", sampler=sampler, pruner=pruner)
    distributions = {
        d.key: library.distributions.FloatDistribution(0.0, 1.0)
        if d.choices is None
        else library.distributions.CategoricalDistribution(d.choices)
        for d in space.dimensions
    }
    return Parzen(study, space, distributions, trials, prune)


@final
class Parzen(Sampler):
    """A study of optuna, asked and told."""

    def __init__(self, study: Study, space: Space, distributions: Mapping[str, Any], trials: int, prunes: bool) -> None:
        self._study = study
        self._space = space
        self._distributions = dict(distributions)
        self._left = trials
        self._prunes = prunes
        self._open: dict[str, list[Trial]] = {}  # point -> its trials, the oldest first
        self._stopped: set[int] = set()  # numbers of the trials that were given up
        self._reported: dict[int, int] = {}  # number of a trial -> its last reported update

    def ask(self) -> dict[str, Any] | None:
        if self._left == 0:
            return None
        self._left -= 1
        trial = self._study.ask(self._distributions)
        point = {
            d.key: d.from_unit(trial.params[d.key]) if d.choices is None else trial.params[d.key]
            for d in self._space.dimensions
        }
        self._open.setdefault(point_key(point), []).append(trial)
        return point

    def tell(self, point: Mapping[str, Any], value: float | None) -> None:
        from optuna.trial import TrialState

        key = check_open(point, [*self._open])
        trial = self._open[key].pop(0)
        if not self._open[key]:
            del self._open[key]
        if value is None and trial.number in self._stopped:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, math.inf if value is None or math.isnan(value) else value)

    def should_stop(self, point: Mapping[str, Any], step: int, value: float) -> bool:
        trial = self._open[check_open(point, [*self._open])][0]
        if not self._prunes:
            return False
        if step > self._reported.get(trial.number, -1):  # a repeated update says nothing new
            trial.report(value, step)
            self._reported[trial.number] = step
        if trial.should_prune():
            self._stopped.add(trial.number)
            return True
        return False

    @property
    def prunes(self) -> bool:
        return self._prunes
