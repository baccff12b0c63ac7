"""Pieces, clipping, averages, label smoothing, early ends and estimates, against recursions written out here."""

import math
import signal
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from symlab.rundir import BadInput, RunDir
from symlab.schedules.cosine import cosine
from symlab.training.execution import Execution
from symlab.training.losses import auto, cross_entropy, reported
from symlab.training.update import DivergedError, update
from symlab.training.weight_average import WeightAverage
from tests.jobs.test_train import SignalAt, assert_same_runs, no_plot
from tests.training.problems import (
    OPTIMIZERS,
    assert_same_state,
    classification,
    regression,
    rows_without_time,
    run_job,
    small_net,
)
from tests.training.test_processes import assert_close

DATA = regression()
BATCH = (DATA.train_inputs, DATA.train_targets)
SETTINGS = {"batch_size": 4, "epochs": 3, "eval_every": 2, "plot": no_plot}
UNEVEN = {"model": partial(small_net, dropout=0.4, batch_norm=True), "drop_last": True}


def net(**options):
    return small_net((4,), 3, torch.Generator().manual_seed(0), **options).double().train()


# ---- pieces


@pytest.mark.parametrize("pieces", [2, 3, 10])
def test_a_batch_in_pieces_is_the_whole_batch(pieces):
    """10 rows in unequal pieces: loss, gradients and Adam's statistics to rounding."""
    states = []
    for how in (Execution(), Execution(accumulate=pieces)):
        model = net()
        optimizer = OPTIMIZERS["adam"](model, BATCH[0])
        losses = [update(model, optimizer, auto, *BATCH, step, how) for step in range(3)]
        states.append((losses, [p.detach() for p in model.parameters()]))
    assert states[1][0] == pytest.approx(states[0][0], rel=1e-12)
    torch.testing.assert_close(states[1][1], states[0][1], rtol=1e-9, atol=1e-12)


def test_batch_norm_sees_each_piece_by_itself():
    """Statistics of the piece, and running ones that move once per piece: r <- 0.9 r + 0.1 mean of the piece."""
    model = net(batch_norm=True)
    expected = torch.zeros(5, dtype=torch.float64)
    for piece in (BATCH[0][:5], BATCH[0][5:]):
        expected = 0.9 * expected + 0.1 * model[0](piece).mean(0).detach()
    update(model, OPTIMIZERS["gd"](model, BATCH[0]), auto, *BATCH, 0, Execution(accumulate=2))
    torch.testing.assert_close(model[1].running_mean, expected)
    assert int(model[1].num_batches_tracked) == 2


def test_a_bad_piece_leaves_everything_as_before_the_batch():
    model = net(batch_norm=True, dropout=0.3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    inputs = BATCH[0].clone()
    inputs[7] = math.nan  # in the second piece
    with pytest.raises(DivergedError, match="the loss of the batch is nan"):
        update(model, OPTIMIZERS["adam"](model, BATCH[0]), auto, inputs, BATCH[1], 0, Execution(accumulate=2))
    assert_same_state(before, dict(model.state_dict()))
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accumulate": 3}, "accumulate=3: the smallest batch of an epoch has 2 rows"),
        ({"accumulate": 4, **UNEVEN}, "accumulate=4: .* single row, which cannot train batch norm .* fewer pieces"),
        ({"accumulate": 0}, "accumulate must be finite and at least 1, got 0"),
        ({"clip_norm": 0.0}, "clip_norm must be positive and finite, or null, got 0"),
        ({"clip_norm": math.nan}, "clip_norm must be positive"),
        ({"ema": 1.0}, "ema must be at least 0 and below 1"),
        ({"ema": -0.1}, "ema must be at least 0 and below 1"),
        ({"ema": 0.9, "dtype": "bfloat16"}, "ema=0.9: averages of bfloat16 weights stand still.* use dtype=float32"),
        ({"max_steps": 0}, "max_steps must be finite and at least 1, got 0"),
        ({"loss": partial(cross_entropy, label_smoothing=1.0), "data": classification}, "label_smoothing must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, changes, message):
    run = RunDir.create(tmp_path)
    with pytest.raises(ValueError, match=message):
        run_job(run, **SETTINGS | changes)
    assert run.read_rows() == []


# ---- clipping


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_gradients_are_scaled_down_to_the_limit(limit):
    model, free = net(), net()
    update(free, OPTIMIZERS["gd"](free, BATCH[0]), auto, *BATCH, 0)
    gradients = [p.grad.numpy() for p in free.parameters()]
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
    assert 0.01 < norm < 1e6
    update(model, OPTIMIZERS["gd"](model, BATCH[0]), auto, *BATCH, 0, Execution(clip_norm=limit))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        np.testing.assert_allclose(parameter.grad.numpy(), gradient * min(1, limit / norm), rtol=1e-12)


def test_a_norm_that_overflows_is_divergence_and_not_a_step_of_zero():
    """Every entry is finite in float32, their 2-norm is not."""
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    inputs, targets = BATCH[0].float(), BATCH[1].float()
    how = Execution(clip_norm=1.0)
    with pytest.raises(DivergedError, match="the 2-norm of its gradients overflows"):
        update(
            model, torch.optim.SGD(model.parameters(), lr=0.1), lambda o, t: 1e25 * auto(o, t), inputs, targets, 0, how
        )
    assert torch.equal(model.weight, before)


def test_pieces_are_clipped_together_and_not_one_by_one():
    whole, pieces = net(), net()
    update(whole, OPTIMIZERS["gd"](whole, BATCH[0]), auto, *BATCH, 0, Execution(clip_norm=0.05))
    update(pieces, OPTIMIZERS["gd"](pieces, BATCH[0]), auto, *BATCH, 0, Execution(clip_norm=0.05, accumulate=3))
    torch.testing.assert_close([*pieces.parameters()], [*whole.parameters()], rtol=1e-12, atol=1e-14)


# ---- averages of the weights


def test_averages_follow_the_recursion():
    """e <- d e + (1 - d) w for weights and running statistics; the count of batches is copied."""
    model = net(batch_norm=True)
    average = WeightAverage(model, 0.8)
    optimizer = OPTIMIZERS["adam"](model, BATCH[0])
    expected = {name: value.double().numpy().copy() for name, value in model.state_dict().items()}
    for step in range(4):
        update(model, optimizer, auto, *BATCH, step)
        average.take(model)
        for name, value in model.state_dict().items():
            expected[name] = 0.8 * expected[name] + 0.2 * value.double().numpy()
    expected["1.num_batches_tracked"] = 4
    for name, value in average.model.state_dict().items():
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-12, err_msg=name)
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_a_run_reports_its_averages_and_trains_the_same_weights(tmp_path):
    plain, averaged = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(plain, **SETTINGS)
    run_job(averaged, ema=0.9, **SETTINGS)
    one, other = plain.load_checkpoint("last"), averaged.load_checkpoint("last")
    assert_same_state(one["model"], other["model"])
    model = net()
    model.load_state_dict(other["weight_average"])
    test = float(auto(model(DATA.test_inputs), DATA.test_targets).detach())
    assert averaged.read_rows()[-1]["test_loss"] == pytest.approx(test, rel=1e-12)
    assert averaged.read_rows()[-1]["test_loss"] != plain.read_rows()[-1]["test_loss"]
    best = averaged.load_checkpoint("best")
    model.load_state_dict(best["model"])
    assert best["value"] == pytest.approx(float(auto(model(DATA.test_inputs), DATA.test_targets).detach()), rel=1e-12)


def test_a_run_with_everything_resumes_exactly(tmp_path):
    settings = SETTINGS | UNEVEN | {"ema": 0.7, "clip_norm": 0.3, "accumulate": 2, "amp": "bf16", "dtype": "float32"}
    straight, stopped = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, **settings)
    assert run_job(stopped, loss=SignalAt(5), **settings).exit_code == 143
    run_job(stopped, **settings)
    assert_same_runs(stopped, straight)


# ---- label smoothing


def test_smoothed_targets_are_a_mixture_with_the_uniform_law():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 3, 1, 1, 2])
    scores = outputs.log_softmax(1)
    expected = 0.0
    for row, label in enumerate(labels.tolist()):
        for c in range(4):
            expected -= (0.9 * (c == label) + 0.1 / 4) * float(scores[row, c]) / 5
    assert float(cross_entropy(outputs, labels, label_smoothing=0.1)) == pytest.approx(expected, rel=1e-12)
    assert reported(cross_entropy) is cross_entropy
    plain = reported(partial(cross_entropy, label_smoothing=0.1))
    assert float(plain(outputs, labels)) == float(cross_entropy(outputs, labels))


def test_what_a_run_reports_is_the_loss_without_smoothing(tmp_path):
    run = RunDir.create(tmp_path)
    data = classification()
    loss = partial(cross_entropy, label_smoothing=0.2)
    run_job(run, data=classification, loss=loss, epochs=2, eval_every=1, plot=no_plot)
    model = net()
    model.load_state_dict(run.load_checkpoint("last")["model"])
    rows = run.read_rows()
    plain = float(cross_entropy(model(data.test_inputs), data.test_targets).detach())
    assert rows[-1]["test_loss"] == pytest.approx(plain, rel=1e-12)
    start = net()  # seed 0, as the job draws it
    smoothed = float(loss(start(data.train_inputs), data.train_targets).detach())
    assert rows[1]["batch_loss"] == pytest.approx(smoothed, rel=1e-12)
    assert rows[0]["train_loss"] != pytest.approx(smoothed, rel=1e-3)


# ---- early ends


def test_max_steps_is_the_beginning_of_the_run_and_can_be_continued(tmp_path):
    settings = SETTINGS | UNEVEN | {"schedule": cosine, "warmup_steps": 1}
    straight, short = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, **settings)
    outcome = run_job(short, max_steps=4, **settings)
    assert (outcome.status, outcome.summary["step"], outcome.summary["total_steps"]) == ("completed", 4, 4)
    rows = rows_without_time(straight)
    assert rows_without_time(short) == [row for row in rows if row["step"] <= 4]
    run_job(short, **settings)
    assert_same_runs(short, straight)


def test_max_steps_beyond_the_epochs_changes_nothing(tmp_path):
    straight, other = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, **SETTINGS)
    run_job(other, max_steps=10**6, **SETTINGS)
    assert_same_runs(straight, other)


def test_a_checkpoint_beyond_max_steps_is_refused(tmp_path):
    run = RunDir.create(tmp_path)
    run_job(run, **SETTINGS)
    with pytest.raises(BadInput, match="the checkpoint has 9 updates, more than the 5"):
        run_job(run, max_steps=5, **SETTINGS)


# ---- estimates


def test_an_estimate_trains_nothing_and_adds_up(tmp_path):
    run, straight = RunDir.create(tmp_path), RunDir.create(tmp_path)
    outcome = run_job(run, estimate=True, **SETTINGS)
    cost = outcome.summary["estimate"]
    assert (outcome.status, run.read_summary()["estimate"]) == ("completed", cost)
    assert (cost["steps"], cost["evaluations"], cost["timed_steps"]) == (9, 6, 30)  # before, 2, 4, 6, 8 and 9
    step = cost["step_time_s"]
    assert 0 < step["low"] <= step["median"] <= step["high"]
    assert cost["evaluation_time_s"] > 0
    assert cost["hours"] == pytest.approx((9 * step["mean"] + 6 * cost["evaluation_time_s"]) / 3600)
    assert run.read_rows() == []
    assert not run.has_checkpoint("last")
    run_job(run, **SETTINGS)  # the run itself, afterwards, in the same place
    run_job(straight, **SETTINGS)
    assert_same_runs(run, straight)


def test_an_estimate_leaves_a_run_as_it_was(tmp_path):
    run = RunDir.create(tmp_path)
    run_job(run, **SETTINGS)
    rows, state = run.read_rows(), run.load_checkpoint("last")
    run_job(run, estimate=True, **SETTINGS)
    assert run.read_rows() == rows
    assert_same_state(run.load_checkpoint("last"), state)


def test_an_estimate_of_a_run_that_diverges_says_so(tmp_path):
    outcome = run_job(RunDir.create(tmp_path), estimate=True, loss=lambda o, t: auto(o, t) * math.nan, **SETTINGS)
    assert (outcome.status, outcome.exit_code) == ("diverged", 3)
    assert "the loss of the batch is nan" in outcome.summary["message"]


# ---- compiling


class SignalAtStep:
    """A constant schedule that asks for a stop during one update; code that is compiled cannot send a signal."""

    def __init__(self, step):
        self.step = step

    def __call__(self, step, total_steps):
        if step == self.step:
            signal.raise_signal(signal.SIGTERM)
        return 1.0


@pytest.mark.slow
def test_a_compiled_run_is_the_plain_one_to_rounding_and_resumes_exactly(tmp_path):
    settings = SETTINGS | {"model": partial(small_net, batch_norm=True)}
    plain, straight, stopped = (RunDir.create(tmp_path) for _ in range(3))
    run_job(plain, **settings)
    run_job(straight, compile=True, **settings)
    assert run_job(stopped, compile=True, schedule=SignalAtStep(4), **settings).exit_code == 143
    run_job(stopped, compile=True, **settings)
    assert_close(rows_without_time(plain), rows_without_time(straight))
    assert_same_runs(stopped, straight)


@pytest.mark.slow
def test_what_cannot_be_compiled_is_said_before_the_first_step(tmp_path, monkeypatch):
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    run = RunDir.create(tmp_path)
    with pytest.raises(BadInput, match=r"^compile=true: .*use compile=false$"):
        run_job(run, compile=True, model=lambda input_shape, output_size, generator: nn.Linear(4, 3), **SETTINGS)
    assert run.read_rows() == []
