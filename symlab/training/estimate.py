"""What a run will cost, from a few of its updates and evaluation batches."""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

from symlab.training.evaluate import totals
from symlab.training.evaluations import Evaluations
from symlab.training.factories import Loss, Stop
from symlab.training.fit import advance
from symlab.training.order import BatchSource
from symlab.training.rates import Rates
from symlab.training.sources import dataset_batches
from symlab.training.state import Training

WARM_UP = 3
"""Updates that are not timed: the first ones allocate memory and choose algorithms."""

FEWEST, MOST, LIMIT_S = 3, 30, 60.0
"""Timed updates: as many as fit into the limit, within these bounds."""

EVALUATION_BATCHES = 3


def cost_of_run(
    training: Training,
    batches: BatchSource,
    loss: Loss,
    rates: Rates,
    evaluations: Evaluations,
    steps: int,
    stop: Stop,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """hours = (steps x mean seconds of an update + evaluations x seconds of one) / 3600, measured on this device.

    Makes a few updates, which `training` is spoiled by, and evaluates a few batches, from which a whole evaluation is
    reckoned by its rows. Figures and checkpoints are left out. The mean holds for optimizers that do more at some
    updates than at others if the timed ones are typical: `step_time_s` has the quartiles too.
    """
    seconds = _time_updates(training, batches, loss, rates, steps, stop, clock)
    evaluation_s = _time_evaluation(training, evaluations, clock)
    count = len({*range(0, steps + 1, evaluations.every), steps})
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    mean = statistics.fmean(seconds)
    return {
        "steps": steps,
        "step_time_s": {"mean": mean, "median": median, "low": low, "high": high},
        "timed_steps": len(seconds),
        "evaluations": count,
        "evaluation_time_s": evaluation_s,
        "hours": (steps * mean + count * evaluation_s) / 3600,
    }


def _time_updates(
    training: Training,
    batches: BatchSource,
    loss: Loss,
    rates: Rates,
    steps: int,
    stop: Stop,
    clock: Callable[[], float],
) -> list[float]:
    training.model.train()
    seconds: list[float] = []
    for number in range(WARM_UP + MOST):
        spent = sum(seconds[WARM_UP:]) > LIMIT_S and number >= WARM_UP + FEWEST
        if training.how.processes.first(spent):
            break
        began = clock()
        training.step = number % steps
        rates.set(training.optimizer, training.base_rates, training.step)
        advance(training, batches, loss)
        seconds.append(clock() - began)
        if stop() and number >= WARM_UP + 1:
            break
    return seconds[WARM_UP:]


def _time_evaluation(training: Training, evaluations: Evaluations, clock: Callable[[], float]) -> float:
    """Seconds for all rows of an evaluation, each process its share."""
    share, data = training.how.processes.share, evaluations.dataset
    batches = dataset_batches(data, "test", evaluations.batch_size, share=share)
    began = clock()
    some = itertools.islice(batches, EVALUATION_BATCHES)
    found = totals(training.evaluated_model, some, evaluations.loss, how=training.how)
    elapsed = clock() - began
    assert found is not None  # nothing stops it
    rows = data.num_test + min(evaluations.train_rows, data.num_train)
    return elapsed * share.count(rows) / found.rows if found.rows else 0.0
