"""One policy for every optimizer: a number that is not finite ends the run before it touches anything."""

import copy
import math

import pytest
import torch
from torch import nn

from symlab.rundir import RunDir
from symlab.schedules.constant import constant
from symlab.training.losses import auto
from symlab.training.update import DivergedError, check_weights, largest, update
from tests.training.problems import OPTIMIZERS, assert_same_state, regression, rows_without_time, run_job, small_net


class Scaled(nn.Module):
    """A net whose first weight sees the gradient times `factor`: one bad entry on demand."""

    def __init__(self):
        super().__init__()
        self.net = small_net((4,), 3, torch.Generator().manual_seed(0), batch_norm=True, dropout=0.3).double()
        self.factor = 1.0
        self.net[0].weight.register_hook(self._scale)

    def _scale(self, gradient):
        gradient = gradient.clone()
        gradient[0, 0] *= self.factor
        return gradient

    def forward(self, inputs):
        return self.net(inputs)


def snapshot(model, optimizer):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    return copy.deepcopy(state)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_one_bad_gradient_changes_nothing_and_is_named(name, bad):
    data = regression()
    model = Scaled().train()
    optimizer = OPTIMIZERS[name](model, data.train_inputs[:4])
    for step in range(3):
        update(model, optimizer, auto, data.train_inputs, data.train_targets, step)
    before = snapshot(model, optimizer)
    model.factor = bad
    with pytest.raises(DivergedError, match=r"step 3: .*gradient of 'net.0.weight' is not finite") as caught:
        update(model, optimizer, auto, data.train_inputs, data.train_targets, 3)
    assert caught.value.step == 3
    assert_same_state(before, snapshot(model, optimizer))

    model.factor = 1.0
    update(model, optimizer, auto, data.train_inputs, data.train_targets, 3)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def test_a_bad_batch_leaves_the_running_statistics_alone():
    data = regression()
    model = Scaled().train()
    optimizer = OPTIMIZERS["adam"](model, data.train_inputs[:4])
    before = snapshot(model, optimizer)
    inputs = data.train_inputs.clone()
    inputs[2, 1] = math.nan
    with pytest.raises(DivergedError, match="the loss of the batch is nan"):
        update(model, optimizer, auto, inputs, data.train_targets, 0)
    assert_same_state(before, snapshot(model, optimizer))


def test_largest_entry_neither_overflows_nor_hides_a_nan():
    assert largest([torch.full((5,), 3e38), torch.zeros(0)]).item() == pytest.approx(3e38)
    many = [torch.zeros(3) for _ in range(20)]
    many[7][1] = math.nan
    assert math.isnan(largest(many).item())


def test_a_dead_unit_does_not_hide_an_infinite_bias():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].bias.fill_(-math.inf)
    assert bool(torch.isfinite(model(torch.ones(1, 2))).all())  # the loss alone would look fine
    with pytest.raises(DivergedError, match=r"step 9: the weights of '0.bias'"):
        check_weights(model, 9)


def test_a_dead_unit_with_an_infinite_bias_does_not_finish(tmp_path):
    """Loss and gradients are finite to the end; the weights are not."""

    def dead(input_shape, output_size, generator):
        model = nn.Sequential(nn.Linear(input_shape[0], 2), nn.ReLU(), nn.Linear(2, output_size))
        with torch.no_grad():
            model[0].bias[0] = -math.inf
        return model

    outcome = run_job(RunDir.create(tmp_path), model=dead, optimizer=OPTIMIZERS["gd"])
    assert (outcome.status, outcome.exit_code) == ("diverged", 3)
    assert outcome.summary["message"].startswith("step 0: the weights of '0.bias' are not finite")
    assert outcome.summary["final"] is None


class BrokenLater:
    """auto, but the 6th loss with gradients (the second of epoch 1, 4 steps an epoch) is infinite."""

    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, targets):
        self.calls += torch.is_grad_enabled()
        value = auto(outputs, targets)
        return value * math.inf if torch.is_grad_enabled() and self.calls == 6 else value


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_job_ends_with_status_diverged_and_keeps_what_it_has(tmp_path, name):
    straight, broken = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, optimizer=OPTIMIZERS[name], batch_size=3, eval_every=1)
    outcome = run_job(broken, optimizer=OPTIMIZERS[name], batch_size=3, eval_every=1, loss=BrokenLater())
    assert (outcome.status, outcome.exit_code) == ("diverged", 3)
    assert outcome.summary["message"].startswith("step 5: the loss of the batch is inf")
    summary = broken.read_summary()
    assert summary["status"] == "diverged"
    assert summary["step"] == 5
    assert rows_without_time(broken) == rows_without_time(straight)[:6]
    assert (broken.path / "figures" / "loss.png").exists()
    weights = broken.load_checkpoint("last")["model"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())


def test_too_large_a_rate_ends_as_diverged_not_as_finished(tmp_path):
    """The run ends where the loss overflows, with every row until then and the start as its best evaluation."""
    run = RunDir.create(tmp_path)
    rate = {"optimizer": OPTIMIZERS["gd"], "schedule": lambda step, total_steps: 1e3, "epochs": 400}
    outcome = run_job(run, model=linear, dtype="float32", **rate)
    assert (outcome.status, outcome.exit_code) == ("diverged", 3)
    rows = run.read_rows()
    assert 5 < len(rows) < 400
    assert outcome.summary["best"] == {"metric": "test_loss", "value": rows[0]["test_loss"], "step": 0}


def linear(input_shape, output_size, generator):
    model = nn.Linear(input_shape[0], output_size)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def test_an_evaluation_that_is_not_finite_ends_the_run(tmp_path):
    """Only the test loss is bad: the row is kept, and the run is not taken for a finished one."""

    def loss(outputs, targets):
        value = auto(outputs, targets)
        return value * math.nan if len(targets) == 7 and not torch.is_grad_enabled() else value

    run = RunDir.create(tmp_path)
    outcome = run_job(run, loss=loss, schedule=constant)
    assert (outcome.status, outcome.exit_code, outcome.summary["message"]) == (
        "diverged",
        3,
        "step 0: test_loss is nan",
    )
    assert [row["step"] for row in run.read_rows()] == [0]
    assert outcome.summary["best"]["value"] is None
    assert not run.has_checkpoint("best")
