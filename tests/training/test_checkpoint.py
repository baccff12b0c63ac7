"""Best weights, and checkpoints that keep every dtype and refuse what is not theirs."""

import math

import pytest
import torch
from torch import nn

from symlab.rundir import BadInput, RunDir
from symlab.training.best import Best
from symlab.training.checkpoint import capture, restore
from symlab.training.fit import Training
from symlab.training.losses import auto
from symlab.training.update import update
from tests.training.problems import OPTIMIZERS, assert_same_state, regression, small_net


def offer_all(best, values, losses=None, first_step=0):
    model = nn.Linear(1, 1)
    taken = []
    for step, value in enumerate(values):
        with torch.no_grad():
            model.weight.fill_(first_step + step)
        row = {"step": first_step + step, "test_loss": 1.0, best.metric: value}
        if losses is not None:
            row["test_loss"] = losses[step]
        taken.append(best.offer(row, model))
    return taken


def test_nan_is_never_best_and_the_weights_are_those_of_the_best_step():
    best = Best("test_accuracy")
    assert offer_all(best, [math.nan, 0.5, 0.7, math.nan, 0.6]) == [False, True, True, False, False]
    assert (best.value, best.step) == (0.7, 2)
    assert best.unsaved_weights["weight"].item() == 2  # a copy: the model has moved on to 4


def test_ties_keep_the_earlier_and_loss_counts_downwards():
    best = Best("test_loss")
    assert offer_all(best, [0.5, 0.5, 0.7, 0.4, math.inf, -math.inf]) == [True, False, False, True, False, False]
    assert (best.value, best.step) == (0.4, 3)


def test_a_finite_accuracy_of_a_diverged_evaluation_does_not_count():
    best = Best("test_accuracy")
    assert offer_all(best, [0.5, 0.9], losses=[1.0, math.nan]) == [True, False]


def test_all_nan_has_no_best():
    best = Best("test_accuracy")
    assert offer_all(best, [math.nan] * 3) == [False] * 3
    assert best.value is best.step is best.unsaved_weights is None


def trained(name, dtype, steps=3, state=None):
    """A training state after `steps` updates, or continued from `state`."""
    data = regression().to("cpu", dtype)
    model = small_net((4,), 3, torch.Generator().manual_seed(0), dropout=0.3).to(dtype).train()
    training = Training(model, OPTIMIZERS[name](model, data.train_inputs[:4]))
    best = Best("test_loss", value=0.5, step=1)
    torch.manual_seed(0)
    if state is not None:
        restore(state, training, best, seed=0, steps_per_epoch=2)
    for step in range(steps):
        update(model, training.optimizer, auto, data.train_inputs, data.train_targets, step)
    return training, best


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_five_and_five_updates_are_ten(tmp_path, name, dtype):
    """Through the disk: statistics keep dtype and value, dropout goes on, the file holds plain types only."""
    run = RunDir.create(tmp_path)
    halfway, best = trained(name, dtype, steps=5)
    run.save_checkpoint("last", capture(halfway, best, seed=0, steps_per_epoch=2))
    continued, found = trained(name, dtype, steps=5, state=run.load_checkpoint("last"))
    straight, _ = trained(name, dtype, steps=10)
    assert (found.value, found.step) == (0.5, 1)
    assert_same_state(continued.model.state_dict(), straight.model.state_dict())
    assert_same_state(continued.optimizer.state_dict(), straight.optimizer.state_dict())
    assert continued.base_rates == straight.base_rates


@pytest.mark.parametrize("changes", [{"seed": 1}, {"steps_per_epoch": 3}])
def test_a_checkpoint_of_another_run_is_refused(changes):
    training, best = trained("adam", torch.float64)
    state = capture(training, best, **({"seed": 0, "steps_per_epoch": 2} | changes))
    with pytest.raises(BadInput, match=rf"checkpoint has {next(iter(changes))}"):
        trained("adam", torch.float64, state=state)


def test_another_model_is_refused_with_both_shapes():
    training, best = trained("adam", torch.float64)
    state = capture(training, best, seed=0, steps_per_epoch=2)
    state["model"] = state["model"] | {"0.weight": torch.zeros(6, 4)}
    with pytest.raises(BadInput, match=r"0.weight of shape \[6, 4\], this model \[5, 4\]"):
        trained("adam", torch.float64, state=state)


def test_another_optimizer_or_setting_is_refused_with_both():
    training, best = trained("adam", torch.float64)
    state = capture(training, best, seed=0, steps_per_epoch=2)
    with pytest.raises(BadInput, match="checkpoint has optimizer_type=Adam, this run has optimizer_type=SGD"):
        trained("sgd", torch.float64, state=state)
    state["optimizer"]["param_groups"][0]["eps"] = 0.5
    with pytest.raises(BadInput, match=r"checkpoint has eps=0.5, this run's optimizer eps=1e-08"):
        trained("adam", torch.float64, state=state)


def test_a_checkpoint_without_a_part_is_refused_by_its_name():
    training, best = trained("adam", torch.float64)
    state = capture(training, best, seed=0, steps_per_epoch=2)
    for name in state:
        with pytest.raises(BadInput, match=f"checkpoint has (no )?{name}"):
            trained("adam", torch.float64, state={key: value for key, value in state.items() if key != name})


def test_statistics_that_change_their_dtype_are_refused():
    """torch's loader casts a float32 statistic of a bfloat16 weight: that must not pass unnoticed."""
    training, best = trained("adam", torch.bfloat16)
    state = capture(training, best, seed=0, steps_per_epoch=2)
    state["optimizer"]["state"][0]["exp_avg"] = state["optimizer"]["state"][0]["exp_avg"].float()
    with pytest.raises(BadInput, match=r"state/0/exp_avg: saved torch.float32 .* loaded torch.bfloat16"):
        trained("adam", torch.bfloat16, state=state)
