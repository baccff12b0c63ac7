"""The job as a plain function: interruption and resume, files, settings, and input that cannot work."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from symlab.data.dataset import Dataset
from symlab.plots.accuracy import accuracy
from symlab.rundir import BadInput, RunDir
from symlab.schedules.constant import constant
from symlab.schedules.cosine import cosine
from symlab.schedules.exponential import exponential
from symlab.schedules.step_decay import step_decay
from symlab.training.losses import auto, cross_entropy, half_mean_squared_error
from symlab.training.signals import STOPPING, stop_on_signals
from tests.jobs.slow_run import slow_run
from tests.training.problems import (
    OPTIMIZERS,
    assert_same_state,
    classification,
    regression,
    rows_without_time,
    run_job,
    small_net,
)

ROOT = Path(__file__).parents[2]
SCHEDULES = {
    "constant": constant,
    "exponential": partial(exponential, gamma=0.9),
    "step": partial(step_decay, every=4, factor=0.3),
    "cosine": cosine,
}


class SignalAt:
    """auto, but the `call`-th loss (of the updates, or of all) first sends this process a signal."""

    def __init__(self, call, number=signal.SIGTERM, evaluations=False):
        self.left, self.number, self.evaluations = call, number, evaluations

    def __call__(self, outputs, targets):
        if torch.is_grad_enabled() != self.evaluations:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(self.number)
        return auto(outputs, targets)


def assert_same_runs(one, other):
    assert rows_without_time(one) == rows_without_time(other)
    for name in ("last", "best"):
        left, right = one.load_checkpoint(name), other.load_checkpoint(name)
        assert_same_state(
            {key: value for key, value in left.items() if key != "seconds"},
            {key: value for key, value in right.items() if key != "seconds"},
        )


KINDS = {
    "full batch": {"epochs": 6},
    "mid-epoch": {"batch_size": 3, "epochs": 2},  # 10 rows: batches of 3, 3 and 4
    "dropout": {"batch_size": 4, "epochs": 2, "model": partial(small_net, dropout=0.4, batch_norm=True)},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_interrupted_and_resumed_is_bit_for_bit_the_uninterrupted_run(tmp_path, name, kind, dtype):
    settings = {"optimizer": OPTIMIZERS[name], "dtype": dtype, "plot": no_plot, **KINDS[kind]}
    straight, stopped = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, **settings)
    outcome = run_job(stopped, loss=SignalAt(2), **settings)
    assert (outcome.status, outcome.exit_code) == ("interrupted", 143)
    assert outcome.summary["step"] == 2
    outcome = run_job(stopped, **settings)
    assert (outcome.status, outcome.exit_code) == ("completed", 0)
    assert_same_runs(stopped, straight)


def no_plot(table, references, *, title):
    from matplotlib.figure import Figure

    return Figure(figsize=(0.1, 0.1))


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 8])  # inside warm-up, its last update, a milestone, after it
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_rates_after_a_resume_are_those_of_the_uninterrupted_run(tmp_path, name, cut):
    settings = {"schedule": SCHEDULES[name], "warmup_steps": 3, "epochs": 12, "plot": no_plot}
    straight, stopped = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, **settings)
    run_job(stopped, loss=SignalAt(cut), **settings)
    run_job(stopped, **settings)
    rates = [row["lr"] for row in stopped.read_rows()]
    factors = [0.25, 0.5, 0.75] + [SCHEDULES[name](step, 9) for step in range(9)]
    assert rates == [None, *(0.01 * factor for factor in factors)]
    assert_same_runs(stopped, straight)


@pytest.mark.parametrize(("call", "steps"), [(1, 0), (2, 0), (3, 0), (4, 1), (9, 3)])
def test_a_signal_during_evaluation_loses_nothing(tmp_path, call, steps):
    """Call 1 is the check at the start, 2 and 3 are train and test loss before the first update, and so on."""
    settings = {"plot": no_plot, "epochs": 4, "eval_batch_size": 100}
    straight, stopped = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, **settings)
    outcome = run_job(stopped, loss=SignalAt(call, signal.SIGUSR1, evaluations=True), **settings)
    assert (outcome.status, outcome.exit_code) == ("interrupted", 138)
    assert outcome.summary["step"] == steps
    run_job(stopped, **settings)
    assert_same_runs(stopped, straight)


def test_rows_beyond_the_checkpoint_are_made_again(tmp_path):
    """As after SIGKILL: the table knows more than the checkpoint, and its last line is cut."""
    settings = {"batch_size": 3, "plot": no_plot}
    straight, killed = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, **settings)
    run_job(killed, loss=SignalAt(5), **settings)
    killed.append_rows([{"step": 6, "epoch": 2.0, "test_loss": -1.0}, {"step": 9, "epoch": 3.0, "test_loss": -1.0}])
    with (killed.path / "metrics.csv").open("a") as file:
        file.write("12,4.0,0.0")
    (killed.path / "checkpoints" / ".last.pt.0000.tmp").write_bytes(b"half a checkpoint")
    run_job(killed, **settings)
    assert_same_runs(killed, straight)


def test_killed_before_the_first_checkpoint_starts_again(tmp_path):
    straight, killed = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, plot=no_plot)
    killed.append_rows([straight.read_rows()[0] | {"test_loss": -1.0}, straight.read_rows()[1]])
    run_job(killed, plot=no_plot)
    assert_same_runs(killed, straight)


def test_more_epochs_continue_a_finished_run(tmp_path):
    straight, grown = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, plot=no_plot, epochs=6, batch_size=4)
    run_job(grown, plot=no_plot, epochs=3, batch_size=4)
    run_job(grown, plot=no_plot, epochs=6, batch_size=4)
    assert_same_runs(grown, straight)
    with pytest.raises(BadInput, match="checkpoint has 18 updates, more than the 6"):
        run_job(grown, plot=no_plot, epochs=2, batch_size=4)


def test_a_worse_resumed_run_leaves_the_best_checkpoint_alone(tmp_path):
    run = RunDir.create(tmp_path)
    run_job(run, data=classification, plot=no_plot, epochs=3)
    before = run.load_checkpoint("best")
    assert before["metric"] == "test_accuracy"
    value = before["value"]
    constant_answer = partial(scaled_loss, factor=-1.0)  # climbs: the accuracy falls
    outcome = run_job(run, data=classification, plot=no_plot, epochs=60, loss=constant_answer)
    assert outcome.summary["final"]["test_accuracy"] < value
    assert_same_state(run.load_checkpoint("best"), before)
    assert outcome.summary["best"] == {"metric": "test_accuracy", "value": value, "step": before["step"]}


def scaled_loss(outputs, targets, factor):
    return factor * auto(outputs, targets)


def test_a_signal_after_the_last_evaluation_does_not_undo_the_run(tmp_path):
    """All is done; but whoever started it, a sweep for one, learns of the signal from the exit code."""

    def plot(table, references, *, title):
        if len(table) > 1:  # not the trial before the run
            signal.raise_signal(signal.SIGINT)
        return no_plot(table, references, title=title)

    run = RunDir.create(tmp_path)
    outcome = run_job(run, plot=plot)
    assert (outcome.status, outcome.exit_code) == ("completed", 130)
    assert run.read_summary()["status"] == "completed"
    assert (run.path / "figures" / "plot.png").exists()


def test_handlers_are_put_back_and_a_second_interrupt_is_obeyed_at_once():
    before = [signal.getsignal(number) for number in STOPPING]
    with stop_on_signals() as stop:
        assert (stop(), stop.exit_code) == (False, 0)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert (stop(), stop.exit_code) == (True, 143)  # the first one counts
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_an_error_made_of_a_second_interrupt_is_the_interrupt():
    """A half-imported module, for example, fails in its own way while KeyboardInterrupt passes through."""

    def interrupted(times):
        with stop_on_signals():
            try:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            finally:
                raise AttributeError("of a library")

    with pytest.raises(KeyboardInterrupt):
        interrupted(times=2)
    with pytest.raises(AttributeError):
        interrupted(times=1)


def test_the_job_runs_in_another_thread(tmp_path):
    run, outcomes = RunDir.create(tmp_path), []
    thread = threading.Thread(target=lambda: outcomes.append(run_job(run, plot=no_plot)))
    thread.start()
    thread.join()
    assert outcomes[0].status == "completed"


# ---- processes


def start_process(run, *options):
    command = [sys.executable, "-W", "error", "-m", "tests.jobs.slow_run", str(run.path), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, stderr=subprocess.PIPE)


def wait_for_step(run, process, step):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(row["step"] >= step for row in run.read_rows()):
            return
        if process.poll() is not None:
            pytest.fail(f"ended with {process.returncode}: {process.stderr.read().decode()}")
        time.sleep(0.005)
    process.kill()
    pytest.fail(f"step {step} was not reached")


def kill(run, step, number, times=1):
    """Start a process on the run, signal its group once it has written the row of `step`; returns its exit code."""
    process = start_process(run, "--pause", "0.02")
    wait_for_step(run, process, step)
    for _ in range(times):
        os.killpg(process.pid, number)
    code = process.wait(30)
    process.stderr.close()
    return code


def test_a_process_killed_in_mid_epoch_resumes_exactly(tmp_path):
    """A checkpoint at every update; SIGKILL falls wherever it falls, often into the writing of one."""
    straight, killed = RunDir.create(tmp_path), RunDir.create(tmp_path)
    assert kill(killed, 4, signal.SIGKILL) == -signal.SIGKILL
    assert 4 <= killed.read_rows()[-1]["step"] < 30
    assert slow_run(killed).exit_code == slow_run(straight).exit_code == 0
    assert_same_runs(killed, straight)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.parametrize("times", [1, 2])
def test_signals_to_a_process_end_it_with_the_stated_code(tmp_path, number, times):
    straight, killed = RunDir.create(tmp_path), RunDir.create(tmp_path)
    code = kill(killed, 2, number, times)
    # of two SIGINT in a row the second may join the first or raise KeyboardInterrupt, which Python ends as -SIGINT
    assert code in ({130, -2} if (number, times) == (signal.SIGINT, 2) else {128 + number})
    assert slow_run(killed).exit_code == slow_run(straight).exit_code == 0
    assert_same_runs(killed, straight)


@pytest.mark.slow
def test_killed_again_and_again(tmp_path):
    straight, killed = RunDir.create(tmp_path), RunDir.create(tmp_path)
    for step in (1, 5, 11, 17, 25):
        assert kill(killed, step, signal.SIGKILL) == -signal.SIGKILL
    assert slow_run(killed).exit_code == slow_run(straight).exit_code == 0
    assert_same_runs(killed, straight)


# ---- what a run leaves behind


def test_files_and_summary(tmp_path):
    run = RunDir.create(tmp_path)
    outcome = run_job(
        run, epochs=40, optimizer=partial(OPTIMIZERS["adam"].func, lr=0.05), targets=[1.0, 1e-9], threads=1
    )
    rows = run.read_rows()
    summary = run.read_summary()
    assert {name: summary[name] for name in outcome.summary} == dict(outcome.summary)
    assert [row["step"] for row in rows] == list(range(41))
    assert summary["final"] == rows[-1]
    losses = [row["test_loss"] for row in rows]
    assert summary["best"] == {"metric": "test_loss", "value": min(losses), "step": losses.index(min(losses))}
    levels = {"1": 1.0, "1e-09": 1e-9, "1.3 x zero": 2.6}
    assert summary["target_losses"] == pytest.approx(levels)
    for name, level in levels.items():
        first = next((row for row in rows if row["test_loss"] <= level), None)
        assert summary["steps_to_target"][name] == (first and first["step"])
        assert summary["seconds_to_target"][name] == (first and first["time_s"])
    assert summary["steps_to_target"]["1"] > 0
    assert summary["references"] == {"zero": 2.0}
    assert (summary["parameters"], summary["evaluations"]) == (4 * 5 + 5 + 5 * 3 + 3, 41)
    assert summary["step_time_ms"] > 0
    assert summary["peak_memory_mib"] > 10
    assert run.read_environment()[0]["threads"] == 1
    for name in ("figures/loss.png", "figures/loss.pdf", "checkpoints/last.pt", "checkpoints/best.pt"):
        assert (run.path / name).stat().st_size > 0


def test_the_figure_is_drawn_from_the_rows_on_disk(tmp_path):
    seen = {}

    def plot(table, references, *, title):
        seen.update(table=table, references=references, title=title)
        return no_plot(table, references, title=title)

    run = RunDir.create(tmp_path)
    run_job(run, plot=plot, seed=3)
    assert seen["title"] == "small_net with adam on toy regression, full batch, seed 3"
    assert seen["references"] == {"zero": 2.0}
    assert (run.path / "figures" / "plot.png").exists()  # the figure has the plot's name
    assert seen["table"]["test_loss"].tolist() == [row["test_loss"] for row in run.read_rows()]


def test_references_in_another_loss_are_left_out(tmp_path):
    run = RunDir.create(tmp_path)
    outcome = run_job(run, plot=no_plot, loss=partial(scaled_loss, factor=2.0))
    assert outcome.summary["references"] == outcome.summary["steps_to_target"] == {}


def test_every_optimizer_starts_alike_and_sees_the_same_batches(tmp_path):
    """Also dropout: the first batch loss is the same whatever the factory drew from the global generator."""

    def greedy(model, inputs):
        torch.rand(100)
        return OPTIMIZERS["gd"](model, inputs)

    first = []
    for optimizer in (OPTIMIZERS["adam"], OPTIMIZERS["gd"], greedy):
        run = RunDir.create(tmp_path)
        model = partial(small_net, dropout=0.5)
        run_job(run, optimizer=optimizer, model=model, batch_size=4, eval_every=1, plot=no_plot)
        first.append([run.read_rows()[0]["test_loss"], run.read_rows()[1]["batch_loss"]])
    assert first[0] == first[1] == first[2]


def test_a_notebook_is_left_as_it_was(tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    seen = []

    def schedule(step, total_steps):
        seen.append((torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()))
        return 1.0

    run_job(RunDir.create(tmp_path), threads=threads + 1, deterministic=True, schedule=schedule, plot=no_plot)
    assert set(seen) == {(threads + 1, True)}
    assert torch.get_num_threads() == threads
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert torch.equal(torch.rand(3), expected)


def test_seed_moves_weights_and_order(tmp_path):
    losses = set()
    for seed in (0, 0, 1):
        run = RunDir.create(tmp_path)
        run_job(run, seed=seed, batch_size=4, plot=no_plot)
        losses.add(tuple(row["test_loss"] for row in run.read_rows()))
    assert len(losses) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtypes(tmp_path, dtype):
    run = RunDir.create(tmp_path)
    outcome = run_job(run, dtype=dtype, epochs=30, plot=no_plot)
    weights = run.load_checkpoint("last")["model"].values()
    assert {tensor.dtype for tensor in weights} == {getattr(torch, dtype)}
    assert outcome.summary["final"]["test_loss"] < run.read_rows()[0]["test_loss"]


def test_batch_norm_with_a_rest_of_one(tmp_path):
    """9 rows, batches of 8: the ninth row joins the batch, so no norm sees a single row; 9 rows an epoch."""
    run = RunDir.create(tmp_path)
    data = partial(regression, rows=9)
    run_job(run, model=partial(small_net, batch_norm=True), data=data, batch_size=8, plot=no_plot)
    state = run.load_checkpoint("last")
    assert (state["step"], state["steps_per_epoch"]) == (4, 1)
    assert state["model"]["1.num_batches_tracked"] == 4


# ---- input that cannot work


def test_batch_norm_on_single_rows_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"batches of one row cannot train batch norm \(1\)"):
        run_job(RunDir.create(tmp_path), model=partial(small_net, batch_norm=True), batch_size=1)


def test_a_figure_that_does_not_fit_the_data_is_refused_before_the_first_row(tmp_path):
    run = RunDir.create(tmp_path)
    with pytest.raises(ValueError, match="accuracy"):
        run_job(run, plot=accuracy)
    assert run.read_rows() == []


def wrong_outputs(input_shape, output_size, generator, outputs):
    return nn.Linear(input_shape[0], outputs)


@pytest.mark.parametrize("outputs", [2, 10])
def test_a_head_that_does_not_fit_is_refused_with_both_numbers(tmp_path, outputs):
    message = rf"shape \[2, {outputs}\], but data toy classes has 3 classes: expected \[2, 3\]"
    with pytest.raises(BadInput, match=message):
        run_job(RunDir.create(tmp_path), data=classification, model=partial(wrong_outputs, outputs=outputs))
    with pytest.raises(BadInput, match=rf"\[2, {outputs}\], but data toy regression has 3 target columns"):
        run_job(RunDir.create(tmp_path), model=partial(wrong_outputs, outputs=outputs))


def test_channels_that_do_not_fit_are_refused_with_both_numbers(tmp_path):
    def images():
        inputs, labels = torch.zeros(4, 1, 6, 6), torch.tensor([0, 1, 0, 1])
        return Dataset("grey", inputs, labels, inputs, labels, num_classes=2, references={})

    def colour_net(input_shape, output_size, generator):
        return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.LazyLinear(output_size))

    with pytest.raises(BadInput, match=r"(?s)data grey \(shape \[1, 6, 6\].*3 channels.*1 channels"):
        run_job(RunDir.create(tmp_path), data=images, model=colour_net)


def test_a_model_without_anything_to_train_is_refused(tmp_path):
    def frozen(input_shape, output_size, generator):
        return small_net(input_shape, output_size, generator).requires_grad_(False)

    with pytest.raises(BadInput, match="no trainable parameter"):
        run_job(RunDir.create(tmp_path), model=frozen)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 11}, "batch_size=11 does not fit the 10 training rows"),
        ({"batch_size": 0}, "batch_size=0 does not fit"),
        ({"epochs": 0}, "epochs must be finite and at least 1, got 0"),
        ({"eval_every": 0}, "eval_every must be"),
        ({"eval_batch_size": 0}, "eval_batch_size must be"),
        ({"eval_train_size": -1}, "eval_train_size must be"),
        ({"checkpoint_every_s": float("nan")}, "checkpoint_every_s must be"),
        ({"targets": [0.1, -1.0]}, r"targets\[1\] must be"),
        ({"threads": 0}, "threads must be"),
        ({"seed": -1}, "seed must be"),
        ({"warmup_steps": 4}, r"warmup_steps must be in 0..3 \(the run has 4 updates\), got 4"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64, bfloat16, got 'float16'"),
        ({"device": "gpu"}, "device must be auto, cpu, cuda or cuda:<number>, got 'gpu'"),
        ({"device": "cuda:99"}, "device=cuda:99 is not there: this machine has [0-9]+ CUDA devices"),
        ({"schedule": partial(exponential, gamma=2.0)}, "gamma must be in"),
        ({"loss": cross_entropy}, "loss=half_mean_squared_error"),
        ({"loss": lambda outputs, targets: (outputs - targets) ** 2}, "mean over the batch"),
    ],
)
def test_settings_that_cannot_work_stop_before_the_first_row(tmp_path, changes, message):
    run = RunDir.create(tmp_path)
    with pytest.raises(ValueError, match=message):
        run_job(run, **changes)
    assert run.read_rows() == []
    assert not run.has_checkpoint("last")


@pytest.mark.parametrize("loss", [auto, half_mean_squared_error])
def test_classes_train_with_either_loss(tmp_path, loss):
    outcome = run_job(RunDir.create(tmp_path), data=classification, loss=loss, epochs=60, plot=no_plot)
    assert outcome.summary["final"]["train_accuracy"] > 0.8


@pytest.mark.gpu
def test_resume_on_cuda(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    settings = {"device": "cuda", "dtype": "float32", "batch_size": 4, "plot": no_plot}
    settings["model"] = partial(small_net, dropout=0.4, batch_norm=True)
    straight, stopped = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, **settings)
    assert run_job(stopped, loss=SignalAt(2), **settings).exit_code == 143
    run_job(stopped, **settings)
    assert_same_runs(stopped, straight)
