"""Which runs a comparison consists of: the tuning of every optimizer, and the runs that are reported."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from symlab.comparison.settings import keywords_of, space_of
from symlab.comparison.trial import Split, Trial
from symlab.comparison.tuning import Family, Objective, Search, SearchFactory, Tuner, round_counts
from symlab.rundir import BadInput
from symlab.search.space import Space
from symlab.training.factories import OptimizerFactory, Schedule
from symlab.training.order import mix
from symlab.training.ranges import check_at_least

EVALUATIONS = 50  # of a reported run, where the configuration does not say
TUNING_EVALUATIONS = 10


@dataclass(frozen=True)
class Plan:
    """Everything that decides which trials there are; see `symlab.jobs.compare.compare` for the keys."""

    optimizers: Mapping[str, OptimizerFactory]
    schedules: Mapping[str, Schedule]
    schedule_of: Mapping[str, str]
    steps: int
    eval_every: int  # updates; of the reported runs
    eval_train_size: int | None
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    trials: int
    rounds: int
    objective: Objective
    search: SearchFactory

    def schedules_for(self, label: str) -> dict[str, Schedule]:
        """The schedules that an optimizer is tried with: all, or the one that is its own."""
        own = self.schedule_of.get(label)
        return dict(self.schedules) if own is None else {own: self.schedules[own]}

    def fixed(self, label: str, seed: int, split: Split = "test") -> Trial:
        """The optimizer as its configuration has it, with its own schedule, or the first of all."""
        name, schedule = next(iter(self.schedules_for(label).items()))
        every, rows = self.eval_every, self.eval_train_size
        return Trial(label, self.optimizers[label], schedule, name, seed, split, every, rows)

    def tuners(self) -> list[Tuner]:
        """One per optimizer; none where nothing is tuned."""
        return [self._tuner(label) for label in self.optimizers] if self.trials else []

    def _tuner(self, label: str) -> Tuner:
        every = max(self.steps // TUNING_EVALUATIONS, 1)
        rows = self.eval_train_size if self.objective == "train_loss" else 0
        schedules = self.schedules_for(label)
        counts = round_counts(self.trials, len(schedules), self.rounds)
        families = []
        for number, (name, schedule) in enumerate(schedules.items()):
            seed = self.tuning_seeds[0]
            template = Trial(label, self.optimizers[label], schedule, name, seed, "validation", every, rows)
            own = Search(self.search, counts[number], mix(seed, number), self.steps // 3)
            families.append(Family(template, own, self.tuning_seeds, self.objective))
        return Tuner(label, families)

    def reported(self, tuners: Sequence[Tuner]) -> list[Trial]:
        """Seed after seed, every optimizer with its best values; an optimizer without any keeps its own."""
        best = {tuner.label: tuner.best() for tuner in tuners}
        trials = []
        for seed in self.seeds:
            for label in self.optimizers:
                trial, found = self.fixed(label, seed), best.get(label)
                if found is not None:
                    family, setting = found
                    own = family.template
                    trial = replace(
                        trial, settings=setting.point, schedule=own.schedule, schedule_label=own.schedule_label
                    )
                trials.append(trial)
        return trials

    @property
    def tuning_runs(self) -> int:
        return self.trials * len(self.optimizers) * len(self.tuning_seeds)

    @property
    def reported_runs(self) -> int:
        return len(self.seeds) * len(self.optimizers)


def evaluation_interval(steps: int, report_steps: Sequence[int]) -> int:
    """The largest number of updates that goes into `steps` and all `report_steps` and gives at least 50 evaluations."""
    common = math.gcd(steps, *report_steps)
    return max(d for d in range(1, common + 1) if common % d == 0 and d <= max(steps // EVALUATIONS, 1))


def check_plan(plan: Plan) -> None:
    """Raises BadInput, naming the key, for a plan that cannot be carried out."""
    if not plan.optimizers:
        raise BadInput("optimizers is empty: name at least one, e.g. 'optimizers=[gd,adam]'")
    if not plan.schedules:
        raise BadInput("schedules is empty: name at least one, e.g. 'schedules=[geometric]'")
    for label in (*plan.optimizers, *plan.schedules):
        if not re.fullmatch(r"[A-Za-z][\w.-]*", label) or label.lower() in ("nan", "inf", "infinity", "true", "false"):
            raise BadInput(
                f"{label}: a label begins with a letter, has letters, digits and . _ - only, and is no number"
            )
    check_at_least(1, steps=plan.steps, rounds=plan.rounds, eval_every=plan.eval_every)
    check_at_least(0, trials=plan.trials, eval_train_size=plan.eval_train_size)
    for label, schedule in plan.schedule_of.items():
        _known("schedule_of", label, plan.optimizers, "an optimizer")
        _known(f"schedule_of.{label}", schedule, plan.schedules, "one of the schedules")
    _check_seeds(plan)
    if plan.trials:
        _check_spaces(plan)


def _known(key: str, name: str, known: Mapping[str, object], what: str) -> None:
    if name not in known:
        near = get_close_matches(name, list(known), 3, 0.5)
        hint = f"; near it: {', '.join(near)}" if near else f": {', '.join(known)}"
        raise BadInput(f"{key}={name}: expected {what}{hint}")


def _check_seeds(plan: Plan) -> None:
    for key in ("seeds", "tuning_seeds"):
        seeds = getattr(plan, key)
        if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= seed < math.inf for seed in seeds):
            raise BadInput(f"{key} must be different whole numbers of at least 0, at least one, got {list(seeds)}")
    both = sorted(set(plan.seeds) & set(plan.tuning_seeds))
    if plan.trials and both:
        raise BadInput(f"tuning_seeds and seeds must have nothing in common, both have {both}: values would be chosen "
                       "on the runs that are reported")  # fmt: skip
    if plan.objective == "train_loss" and plan.trials and plan.eval_train_size == 0:
        raise BadInput("objective=train_loss needs the training loss: eval_train_size must not be 0")


def _check_spaces(plan: Plan) -> None:
    """Spaces that can be read, and with something in them."""
    for name, schedule in plan.schedules.items():
        _space(f"schedules.{name}", schedule)
    for label, factory in plan.optimizers.items():
        space = _space(f"optimizers.{label}", factory)
        unknown = [d.key for d in space.dimensions if d.key not in keywords_of(factory)]
        if unknown:
            raise BadInput(f"optimizers.{label}._tune_.{unknown[0]}: the optimizer has no key {unknown[0]}")
        if not space.dimensions:
            example = "{low: 1e-3, high: 1, scale: log}"
            raise BadInput(
                f"optimizers.{label} declares no _tune_: add one, e.g. '+optimizers.{label}._tune_.lr={example}', "
                "or trials=0"
            )
        round_counts(plan.trials, len(plan.schedules_for(label)), plan.rounds)


def _space(key: str, factory: OptimizerFactory | Schedule) -> Space:
    """The space that a factory declares. Raises BadInput, naming the key."""
    try:
        return Space.of(space_of(factory))
    except ValueError as error:
        raise BadInput(f"{key}._tune_: {error}") from error
