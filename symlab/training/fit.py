"""The training loop: one page, yields what happens, writes nothing."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from symlab.data.dataset import Dataset
from symlab.training.batches import Batches
from symlab.training.evaluate import Evaluation, evaluate, never
from symlab.training.execution import PLAIN, Execution
from symlab.training.factories import Loss, Stop
from symlab.training.rates import Rates
from symlab.training.update import DivergedError, check_weights, update


@dataclass
class Training:
    """Everything that training changes, so everything that a checkpoint holds (beside the random state)."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    how: Execution = PLAIN  # of its updates and evaluations; its loss scale changes
    step: int = 0  # updates done
    evaluated: int = -1  # step of the last metrics row; -1: none yet
    loss_sum: float = 0.0  # batch losses since that row, in float64
    loss_count: int = 0
    seconds: float = 0.0  # spent in updates

    def __post_init__(self) -> None:
        # taken when built, before a checkpoint is loaded: loading writes scheduled rates into the groups
        self.base_rates = [float(group["lr"]) for group in self.optimizer.param_groups]


@dataclass(frozen=True)
class Evaluations:
    """Loss (and accuracy) on the first `train_rows` training rows and on all test rows: what a metrics row holds."""

    dataset: Dataset
    loss: Loss
    every: int  # steps
    batch_size: int
    train_rows: int

    def measure(self, training: Training, steps_per_epoch: int, stop: Stop) -> dict[str, Any] | None:
        """The metrics row of the current weights; None when stopped on the way."""
        data = self.dataset
        on_rows = partial(
            evaluate, training.model, loss=self.loss, batch_size=self.batch_size, stop=stop, how=training.how
        )
        train = None
        if self.train_rows > 0:
            train = on_rows(data.train_inputs[: self.train_rows], data.train_targets[: self.train_rows])
        test = on_rows(data.test_inputs, data.test_targets)
        if test is None or (train is None and self.train_rows > 0):
            return None
        return _row(training, steps_per_epoch, train, test)


class Event(NamedTuple):
    """One update, or one evaluation when `row` is given."""

    step: int  # updates done
    batch_loss: float | None = None
    seconds: float | None = None  # of this update
    row: Mapping[str, Any] | None = None


def fit(
    training: Training, batches: Batches, loss: Loss, rates: Rates, evaluations: Evaluations, stop: Stop = never
) -> Iterator[Event]:
    """w_{t+1} = optimizer(w_t, grad of the loss of batch t, rate t) for t = training.step .. rates.total_steps - 1.

    Yields an Event after every update, and one with a metrics row before the first update, after every
    `evaluations.every`-th and after the last. `training` changes in place and is complete at every yield: a checkpoint
    taken there continues exactly. Ends early, between updates or evaluation batches, once `stop()` is true.

    Raises DivergedError at the first loss, gradient or weight that is not finite; the bad update is not made.
    """
    training.model.train()
    total = rates.total_steps
    while True:
        due = training.step % evaluations.every == 0 or training.step == total
        if due and training.evaluated < training.step:
            check_weights(training.model, training.step)
            row = evaluations.measure(training, batches.steps_per_epoch, stop)
            if row is None:
                return
            _accept(training, row)
            yield Event(training.step, row=row)
            _check_row(row)
        if training.step >= total or stop():
            return

        began = time.perf_counter()
        rates.set(training.optimizer, training.base_rates, training.step)
        inputs, targets = batches.at(training.step)
        value = update(training.model, training.optimizer, loss, inputs, targets, training.step, training.how)
        if inputs.is_cuda:
            torch.cuda.synchronize(inputs.device)
        elapsed = time.perf_counter() - began

        training.step += 1
        training.loss_sum += value
        training.loss_count += 1
        training.seconds += elapsed
        yield Event(training.step, batch_loss=value, seconds=elapsed)


def _row(training: Training, steps_per_epoch: int, train: Evaluation | None, test: Evaluation) -> dict[str, Any]:
    updated = training.step > 0
    row = {
        "step": training.step,
        "epoch": training.step / steps_per_epoch,
        "lr": training.optimizer.param_groups[0]["lr"] if updated else None,  # the rate that the last update used
        "train_loss": train.loss if train else None,
        "test_loss": test.loss,
    }
    if test.accuracy is not None:
        row |= {"train_accuracy": train.accuracy if train else None, "test_accuracy": test.accuracy}
    batch_loss = training.loss_sum / training.loss_count if training.loss_count else None
    return row | {"batch_loss": batch_loss, "time_s": training.seconds}


def _non_finite(row: Mapping[str, Any]) -> str | None:
    for name in ("train_loss", "test_loss"):
        if row[name] is not None and not math.isfinite(row[name]):
            return f"{name} is {row[name]}"
    return None


def _accept(training: Training, row: Mapping[str, Any]) -> None:
    """The row counts as done, unless the run ends with it: a resumed run then measures it again."""
    if _non_finite(row) is None:
        training.evaluated = training.step
        training.loss_sum, training.loss_count = 0.0, 0


def _check_row(row: Mapping[str, Any]) -> None:
    reason = _non_finite(row)
    if reason is not None:
        raise DivergedError(row["step"], reason)
