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
"""Updates that are not timed: the first ones allocate memory and choose algorithms. So are those whose batches may have
been loaded meanwhile (`BatchSource.ahead`): a run that waits for its images does not wait for these."""

FEWEST, MOST, LIMIT_S = 3, 30, 60.0
"""Timed updates: as many as fit into the limit, within these bounds; of workers that take turns, whole turns."""

EVALUATION_BATCHES = 4


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
    evaluation_s = _time_evaluation(training, evaluations, batches.ahead, clock)
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
    numbers = itertools.count()

    def some(least: int, most: int) -> list[float]:
        seconds: list[float] = []
        while len(seconds) < most:
            spent = sum(seconds) > LIMIT_S and len(seconds) >= least
            if training.how.processes.first(spent) or (stop() and len(seconds) >= 2):
                break
            began = clock()
            training.step = next(numbers) % steps
            rates.set(training.optimizer, training.base_rates, training.step)
            advance(training, batches, loss)
            seconds.append(clock() - began)
        return seconds

    some(WARM_UP, WARM_UP + batches.ahead)
    turn = max(1, batches.ahead)
    return some(FEWEST, -(-MOST // turn) * turn)


def _time_evaluation(training: Training, evaluations: Evaluations, ahead: int, clock: Callable[[], float]) -> float:
    """Seconds for all rows of an evaluation, each process its share: those of the first batch, in which workers start,
    and the rest by its rows, after those of whole turns of the workers."""
    share, data = training.how.processes.share, evaluations.dataset
    batches = dataset_batches(data, "test", evaluations.batch_size, share=share)
    rows, times = [0], [clock()]
    for inputs, targets in itertools.islice(batches, 1 + max(EVALUATION_BATCHES - 1, ahead)):
        totals(training.evaluated_model, [(inputs, targets)], evaluations.loss, how=training.how)
        rows.append(rows[-1] + len(targets))
        times.append(clock())
    if len(rows) == 1:  # this process has no row
        return 0.0
    first = 1 if len(rows) > 2 else 0
    rest = share.count(data.num_test + min(evaluations.train_rows, data.num_train)) - rows[first]
    return times[first] - times[0] + rest * (times[-1] - times[first]) / (rows[-1] - rows[first])
