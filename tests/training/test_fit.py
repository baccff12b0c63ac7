"""The loop against recursions written out with numpy, and what it yields."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from symlab.schedules.constant import constant
from symlab.schedules.exponential import exponential
from symlab.schedules.step_decay import step_decay
from symlab.training.batches import Batches
from symlab.training.fit import Evaluations, Training, fit
from symlab.training.losses import auto
from symlab.training.rates import Rates
from tests.training.problems import OPTIMIZERS, classification, regression, small_net

COLUMNS = ["step", "epoch", "lr", "train_loss", "test_loss", "batch_loss", "time_s"]


def start(data, model, optimizer, *, steps, batch_size=None, every=1, warmup=0, schedule=constant, **options):
    """The generator and the training state behind it."""
    training = Training(model, optimizer)
    batches = Batches(data.train_inputs, data.train_targets, batch_size, 0)
    train_rows = options.pop("train_rows", len(data.train_inputs))
    evaluations = Evaluations(data, auto, every, options.pop("eval_batch_size", 1000), train_rows)
    return fit(training, batches, auto, Rates(schedule, warmup, steps), evaluations, **options), training


def linear_model():
    model = nn.Linear(4, 3, bias=False).double()
    nn.init.zeros_(model.weight)
    return model


def numpy_losses(data, weights):
    """Half mean squared errors of the linear map `weights` [3, 4] on both splits, by loops."""
    losses = []
    for inputs, targets in ((data.train_inputs, data.train_targets), (data.test_inputs, data.test_targets)):
        total = 0.0
        for x, y in zip(inputs.numpy(), targets.numpy(), strict=True):
            total += sum((weights @ x - y) ** 2) / 2
        losses.append(total / len(inputs))
    return losses


def test_full_batch_gradient_descent_is_the_recursion_on_the_quadratic():
    data, model = regression(), linear_model()
    schedule = partial(exponential, gamma=0.9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    events, _ = start(data, model, optimizer, steps=6, warmup=2, schedule=schedule)
    rows = [event.row for event in events if event.row is not None]

    x, y = data.train_inputs.numpy(), data.train_targets.numpy()
    rates = [0.3 / 3, 0.3 * 2 / 3, 0.3, 0.3 * 0.9, 0.3 * 0.81, 0.3 * 0.729]
    weights = np.zeros((3, 4))
    for step, row in enumerate(rows):
        train, test = numpy_losses(data, weights)
        assert list(row) == COLUMNS
        assert (row["step"], row["epoch"]) == (step, float(step))
        assert row["train_loss"] == pytest.approx(train, rel=1e-12)
        assert row["test_loss"] == pytest.approx(test, rel=1e-12)
        assert row["lr"] == (None if step == 0 else pytest.approx(rates[step - 1], rel=1e-12))
        if step < 6:
            weights = weights - rates[step] * (x @ weights.T - y).T @ x / len(x)
    assert len(rows) == 7
    assert model.weight.detach().numpy() == pytest.approx(weights, rel=1e-12)


def test_mini_batches_visit_the_rows_that_the_order_names():
    data, model = regression(rows=7), linear_model()
    order = Batches(data.train_inputs, data.train_targets, 3, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    events, _ = start(data, model, optimizer, steps=5, batch_size=3, every=2)
    batch_losses = [event.batch_loss for event in events if event.batch_loss is not None]

    weights = np.zeros((3, 4))
    for step in range(5):
        chosen = order.rows_at(step).numpy()
        x, y = data.train_inputs.numpy()[chosen], data.train_targets.numpy()[chosen]
        errors = x @ weights.T - y
        assert batch_losses[step] == pytest.approx((errors**2).sum() / (2 * len(x)), rel=1e-12)
        weights = weights - 0.1 * errors.T @ x / len(x)
    assert model.weight.detach().numpy() == pytest.approx(weights, rel=1e-12)


def test_rows_come_at_the_start_at_every_interval_and_at_the_end():
    data, model = regression(rows=7), linear_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    events, _ = start(data, model, optimizer, steps=5, batch_size=3, every=2)  # 2 steps an epoch: 3 and 4 rows
    events = list(events)
    rows = [event.row for event in events if event.row is not None]
    losses = [event.batch_loss for event in events if event.batch_loss is not None]
    assert [row["step"] for row in rows] == [0, 2, 4, 5]
    assert [row["epoch"] for row in rows] == [0, 1, 2, 2.5]
    assert rows[0]["batch_loss"] is None
    means = [(losses[0] + losses[1]) / 2, (losses[2] + losses[3]) / 2, losses[4]]
    assert [row["batch_loss"] for row in rows[1:]] == means
    times = [row["time_s"] for row in rows]
    assert times == sorted(times)
    assert times[0] == 0


@pytest.mark.parametrize(("train_rows", "expected"), [(0, None), (2, 2)])
def test_train_loss_on_the_first_rows_or_not_at_all(train_rows, expected):
    data, model = classification(), small_net((4,), 3, torch.Generator().manual_seed(0)).double()
    events, _ = start(data, model, OPTIMIZERS["gd"](model, data.train_inputs), steps=1, train_rows=train_rows)
    row = next(events).row
    if expected is None:
        assert row["train_loss"] is row["train_accuracy"] is None
    else:
        first = auto(model(data.train_inputs[:2]), data.train_targets[:2]).item()
        assert row["train_loss"] == pytest.approx(first, rel=1e-13)
        assert row["train_accuracy"] in (0, 0.5, 1)
    assert 0 <= row["test_accuracy"] <= 1


def test_the_rate_of_each_update_follows_warm_up_and_schedule():
    rates = Rates(partial(step_decay, every=2, factor=0.1), warmup_steps=3, total_steps=8)
    expected = [0.25, 0.5, 0.75, 1, 1, 0.1, 0.1, 0.01]
    assert [rates.factor(step) for step in range(8)] == pytest.approx(expected, rel=1e-12)


def test_the_schedule_is_told_the_steps_after_warm_up():
    seen = []

    def schedule(step, total_steps):
        seen.append((step, total_steps))
        return 1.0

    rates = Rates(schedule, warmup_steps=2, total_steps=5)
    assert [rates.factor(step) for step in range(5)] == [1 / 3, 2 / 3, 1, 1, 1]
    assert seen == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("warmup", [-1, 5, 9])
def test_warm_up_longer_than_the_run_is_refused(warmup):
    with pytest.raises(ValueError, match=rf"warmup_steps must be in 0..4 .*got {warmup}"):
        Rates(constant, warmup_steps=warmup, total_steps=5)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_schedule_without_a_rate_is_refused(value):
    with pytest.raises(ValueError, match="finite factor"):
        Rates(lambda step, total_steps: value, 0, 5).factor(0)


def test_groups_keep_their_own_base_rates():
    data = regression()
    model = small_net((4,), 3, torch.Generator().manual_seed(0)).double()
    optimizer = torch.optim.SGD([{"params": [model[0].weight], "lr": 1e-3}, {"params": [model[2].weight], "lr": 1e-2}])
    events, _ = start(data, model, optimizer, steps=2, schedule=partial(exponential, gamma=0.5))
    rows = [event.row for event in events if event.row is not None]
    assert [group["lr"] for group in optimizer.param_groups] == [0.5e-3, 0.5e-2]
    assert [row["lr"] for row in rows] == [None, 1e-3, 0.5e-3]


def test_stop_is_polled_at_every_step_and_inside_evaluation():
    data, model = regression(), linear_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = [0]

    def stop():
        calls[0] += 1
        return calls[0] > 3

    # polled before the batches of train and test loss, then before updates 0 and, true, 1
    events, training = start(data, model, optimizer, steps=9, every=100, stop=stop)
    assert [event.step for event in events] == [0, 1]
    assert (training.step, training.evaluated) == (1, 0)

    calls[0] = 3
    events, training = start(data, model, optimizer, steps=9, stop=stop)
    assert list(events) == []
    assert (training.step, training.evaluated) == (0, -1)
