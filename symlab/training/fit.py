"""The training loop: one page, yields what happens, writes nothing."""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from symlab.training.evaluate import never
from symlab.training.evaluations import Evaluations
from symlab.training.factories import Loss, Stop
from symlab.training.order import BatchSource
from symlab.training.place import wait_for
from symlab.training.rates import Rates
from symlab.training.state import Training
from symlab.training.update import DivergedError, check_weights, update

__all__ = ["Evaluations", "Event", "Training", "advance", "fit"]


class Event(NamedTuple):
    """One update, or one evaluation when `row` is given."""

    step: int  # updates done
    batch_loss: float | None = None
    seconds: float | None = None  # of this update
    row: Mapping[str, Any] | None = None


def fit(
    training: Training,
    batches: BatchSource,
    loss: Loss,
    rates: Rates,
    evaluations: Evaluations,
    stop: Stop = never,
    *,
    max_steps: int | None = None,
) -> Iterator[Event]:
    """w_{t+1} = optimizer(w_t, grad of the loss of batch t, rate t) for t = training.step .. rates.total_steps - 1.

    Yields an Event after every update, and one with a metrics row before the first update, after every
    `evaluations.every`-th and after the last. `training` changes in place and is complete at every yield: a checkpoint
    taken there continues exactly. Ends early, between updates or evaluation batches, once `stop()` is true.
    `max_steps` (None: all) ends the run after that many updates, whose rates are those of the whole run.

    Raises DivergedError at the first loss, gradient or weight that is not finite; the bad update is not made.
    """
    training.model.train()
    total = min(rates.total_steps, max_steps or rates.total_steps)
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
        value = advance(training, batches, loss)
        elapsed = time.perf_counter() - began

        training.step += 1
        training.loss_sum += value
        training.loss_count += 1
        training.seconds += elapsed
        yield Event(training.step, batch_loss=value, seconds=elapsed)


def advance(training: Training, batches: BatchSource, loss: Loss) -> float:
    """The update on the batch of step `training.step`, and the averages of the weights; returns the batch's loss."""
    step, how = training.step, training.how
    inputs, targets = batches.at(step)
    how.processes.reseed(batches.order.seed, step)
    value = update(training.model, training.optimizer, loss, inputs, targets, step, how, batches.rows_in(step))
    if training.average is not None:
        training.average.take(training.model)
    wait_for(inputs.device)
    return value


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
