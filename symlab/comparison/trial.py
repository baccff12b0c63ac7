"""One run of a comparison, described so completely that its description is its identity."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch

from symlab.comparison.settings import SCHEDULE, described, function_of, plain, split_settings, with_values
from symlab.data.dataset import Dataset
from symlab.rundir import BadInput
from symlab.training.factories import DataFactory, Loss, ModelFactory, OptimizerFactory, Schedule, name_of
from symlab.training.order import mix
from symlab.training.sources import in_memory

Split = Literal["validation", "test"]
VALIDATION_STREAM = 17  # tells the hold-out's random order from other uses of the same seed


@dataclass(frozen=True)
class Task:
    """What all runs of a comparison share: the problem and the length of a run."""

    model: ModelFactory
    data: DataFactory
    loss: Loss
    steps: int
    batch_size: int | None
    warmup_steps: int
    eval_batch_size: int
    dtype: str
    vary_data: bool  # the data's seed is that of the run
    validation_fraction: float
    deterministic: bool

    def dataset(self, seed: int, split: Split) -> Dataset:
        """The data of a run. For validation the test rows are left alone: a part of the training rows is held out."""
        factory = with_values(self.data, {"seed": seed}) if self.vary_data else self.data
        dataset = in_memory(factory())
        return dataset if split == "test" else held_out(dataset, self.validation_fraction)

    def check_data(self) -> None:
        """Raises BadInput where every run is to have its own data, but the data set has no seed, and for a fraction of
        validation rows that is none."""
        if not 0 < self.validation_fraction < 1:
            raise BadInput(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction}")
        if self.vary_data and "seed" not in inspect.signature(function_of(self.data)).parameters:
            raise BadInput(f"vary_data=true: data {name_of(self.data)} has no seed; use vary_data=false")

    def description(self) -> dict[str, Any]:
        """All of it as plain values."""
        named = {"model": described(self.model), "data": described(self.data), "loss": described(self.loss)}
        return {item.name: named.get(item.name, plain(getattr(self, item.name))) for item in fields(self)}


@dataclass(frozen=True)
class Trial:
    """One optimizer with one choice of values, from one seed."""

    label: str
    optimizer: OptimizerFactory
    schedule: Schedule
    schedule_label: str
    seed: int
    split: Split
    eval_every: int  # updates
    eval_train_size: int | None  # training rows for train_loss; None: all, 0: none
    settings: Mapping[str, Any] = field(default_factory=dict)  # lr, schedule.final, ...: in place of the factories' own

    @property
    def own_optimizer(self) -> OptimizerFactory:
        """The optimizer's factory with the trial's values in place."""
        return with_values(self.optimizer, split_settings(self.settings)[0])

    @property
    def own_schedule(self) -> Schedule:
        """The schedule with the trial's values in place."""
        return with_values(self.schedule, split_settings(self.settings)[1])

    def effective_settings(self) -> dict[str, Any]:
        """The values of optimizer and schedule that the run uses, under the names of `settings`."""
        of_schedule = described(self.own_schedule)["keywords"]
        return (
            described(self.own_optimizer)["keywords"]
            | {SCHEDULE: self.schedule_label}
            | {f"schedule.{key}": value for key, value in of_schedule.items()}
        )

    def key(self, task: Task, device: str) -> str:
        """t and 16 hex digits: equal for trials of one label that compute the same thing.

        The letter keeps a table from reading digits as a number.
        """
        content = {
            "label": self.label,
            "task": task.description(),
            "optimizer": described(self.own_optimizer),
            "schedule": described(self.own_schedule),
            "seed": self.seed,
            "split": self.split,
            "eval_every": self.eval_every,
            "eval_train_size": self.eval_train_size,
            "device": device,
        }
        text = json.dumps(content, sort_keys=True)
        return f"t{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def held_out(dataset: Dataset, fraction: float) -> Dataset:
    """round(`fraction` N) of the N training rows, chosen at random (always the same), as test rows; no references.

    Raises BadInput where either part would be empty.
    """
    rows = len(dataset.train_inputs)
    count = round(fraction * rows)
    if not 0 < count < rows:
        raise BadInput(f"validation_fraction={fraction} of {rows} training rows leaves {count} rows for validation")
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(mix(rows, VALIDATION_STREAM)))
    kept, held = order[count:].sort().values, order[:count].sort().values
    return replace(
        dataset,
        train_inputs=dataset.train_inputs[kept],
        train_targets=dataset.train_targets[kept],
        test_inputs=dataset.train_inputs[held],
        test_targets=dataset.train_targets[held],
        references={},
    )
