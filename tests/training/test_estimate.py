"""What an estimate says of runs whose batches are loaded ahead, on a clock that only loading moves."""

import pytest
import torch

from symlab.schedules.constant import constant
from symlab.training import estimate
from symlab.training.batches import Batches
from symlab.training.evaluations import Evaluations
from symlab.training.losses import auto
from symlab.training.rates import Rates
from symlab.training.state import Training
from symlab.training.streamed_batches import AHEAD
from tests.training.problems import OPTIMIZERS, regression, small_net

START, LOAD = 20.0, 8.0  # seconds until workers are up, and of a worker for one batch
ROWS = 200


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class LoadedAhead(Batches):
    """Batches of which `workers` make one each every LOAD seconds; before the first is asked for, all that may be ready
    are."""

    def __init__(self, clock, workers, data):
        super().__init__(data.train_inputs, data.train_targets, 2, 0)
        self.clock, self.workers, self.asked = clock, workers, 0

    @property
    def ahead(self):
        return AHEAD * self.workers

    def at(self, step):
        self.asked += 1
        turns = max(0, -(-(self.asked - self.ahead) // self.workers))
        self.clock.now = max(self.clock.now, LOAD * turns)
        return super().at(step)


def cost(monkeypatch, workers):
    clock, data = Clock(), regression(rows=ROWS, test_rows=ROWS)
    model = small_net((4,), 3, torch.Generator().manual_seed(0)).double()
    training = Training(model, OPTIMIZERS["gd"](model, data.train_inputs))
    batches = LoadedAhead(clock, workers, data)

    def loaded(dataset, split, batch_size, *, share):
        began = clock.now
        for number, first in enumerate(range(0, ROWS, batch_size)):
            clock.now = max(clock.now, began + START + LOAD * (1 + number // workers))
            yield data.test_inputs[first : first + batch_size], data.test_targets[first : first + batch_size]

    monkeypatch.setattr(estimate, "dataset_batches", loaded)
    evaluations = Evaluations(data, auto, 100, 2, 0)
    rates = Rates(constant, 0, 1000)
    return estimate.cost_of_run(training, batches, auto, rates, evaluations, 1000, lambda: False, clock=clock)


@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16])
def test_a_run_that_waits_for_its_images_is_not_timed_on_those_that_lay_ready(monkeypatch, workers):
    """A batch every LOAD / workers seconds, in bursts of one per worker."""
    monkeypatch.setattr(estimate, "LIMIT_S", 1e9)
    found = cost(monkeypatch, workers)
    assert found["step_time_s"]["mean"] == pytest.approx(LOAD / workers)
    assert found["timed_steps"] % workers == 0
    assert 30 <= found["timed_steps"] <= 60


@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16])
def test_the_start_of_workers_counts_once_in_an_evaluation(monkeypatch, workers):
    """100 batches: START, then turns of one batch per worker."""
    found = cost(monkeypatch, workers)
    assert found["evaluation_time_s"] == pytest.approx(START + LOAD * -(-100 // workers), rel=0.03)


def test_few_slow_updates_are_enough(monkeypatch):
    monkeypatch.setattr(estimate, "LIMIT_S", 2.5 * LOAD)
    found = cost(monkeypatch, 1)
    assert found["timed_steps"] == 3
    assert found["step_time_s"]["mean"] == pytest.approx(LOAD)
