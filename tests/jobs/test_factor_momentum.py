"""The job factor-momentum, against gradient descent and factors by hand."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from symlab.cli.validation import Factory
from symlab.data.teacher_student import teacher_student
from symlab.jobs.factor_momentum import factor_momentum, number_names
from symlab.models.mlp import mlp
from symlab.plots.factor_momentum import factor_momentum as figure
from symlab.plots.loss import loss as loss_figure
from symlab.rundir import BadInput, RunDir
from symlab.training.losses import auto
from tests import reference, reference_momentum

DATA = partial(teacher_student, num_train=30, num_test=5, input_size=4, hidden=(3,), output_size=2)
MODEL = partial(mlp, hidden=(6,))


def run_job(run, **changes):
    settings = {"model": MODEL, "data": DATA, "loss": auto, "plot": figure, "models": 4, "steps": 7, "every": 3}
    settings |= {"report": (0, 6), "betas": (0.0, 0.8), "lr": 0.5, "dtype": "float64", "device": "cpu", "threads": 1}
    return factor_momentum(run, **(settings | changes))


def by_hand(weights, steps, lr, normalise=False):
    """The factors of each net [S, F] at each step, by gradient descent written out."""
    data = DATA()
    X, Y = data.train_inputs.numpy(), data.train_targets.numpy()
    history = []
    for _ in range(steps + 1):
        rows = []
        for net in weights:
            dW, _ = reference.mlp_gradient(net, None, np.tanh, lambda z: 1 - np.tanh(z) ** 2, X, Y)
            norm = sum((d**2).sum() for d in dW) if normalise else 1.0
            rows.append(reference_momentum.factors(*dW) / norm)
            for W, d in zip(net, dW, strict=True):
                W -= lr * d
        history.append(rows)
    return np.array(history)


def start_of(monkeypatch):
    """The weights that the job draws, as numpy arrays, filled when it runs."""
    import symlab.jobs.factor_momentum as job

    drawn, draw = {}, job.draw

    def spy(*arguments):
        drawn.update(draw(*arguments))
        return dict(drawn)

    monkeypatch.setattr(job, "draw", spy)
    return drawn


@pytest.mark.parametrize("normalise", [False, True])
def test_rows_are_those_of_a_loop_over_nets(tmp_path, monkeypatch, normalise):
    drawn = start_of(monkeypatch)
    run = RunDir.create(tmp_path)
    outcome = run_job(run, normalise=normalise)
    weights = [[w[i].numpy().copy() for w in drawn.values()] for i in range(4)]
    assert not np.allclose(weights[0][0], weights[1][0])
    history = by_hand(weights, 7, 0.5, normalise)  # [8, S, F]
    rows = {(row["step"], row["beta"]): row for row in run.read_rows() if row["part"] == "all"}
    assert [step for step, beta in rows if beta == 0.8] == [0, 3, 6, 7]
    for (step, beta), row in rows.items():
        averages = np.array([reference_momentum.running_average(history[: step + 1, i], beta) for i in range(4)])
        assert (row["pairwise"], row["pairwise_std"]) == pytest.approx(reference_momentum.pairwise(averages), abs=1e-9)
        assert row["pairwise_error"] == pytest.approx(reference_momentum.pairwise_error(averages), abs=1e-9)
        assert row["gain"] == pytest.approx(row["pairwise"] - rows[step, 0.0]["pairwise"], abs=1e-12)
        for name, truth in (("", history[step]), ("_average", averages), ("_start", history[0])):
            expected = reference_momentum.with_others(averages, truth)
            assert row[f"agreement{name}"] == pytest.approx(expected.mean(), abs=1e-9)
            assert row[f"agreement{name}_std"] == pytest.approx(expected.std(ddof=1), abs=1e-9)
        drift = np.corrcoef(averages.mean(0), history[0].mean(0))[0, 1]
        assert row["drift_start"] == pytest.approx(drift, abs=1e-9)
    assert outcome.summary["numbers"]["pairwise_beta0_8_step6"]["value"] == rows[6, 0.8]["pairwise"]
    assert list(outcome.summary["numbers"]) == number_names((0.0, 0.8), (0, 6))


def test_drift_since_the_last_recorded_step(tmp_path, monkeypatch):
    drawn = start_of(monkeypatch)
    run = RunDir.create(tmp_path)
    run_job(run)
    history = by_hand([[w[i].numpy().copy() for w in drawn.values()] for i in range(4)], 7, 0.5)
    rows = [row for row in run.read_rows() if row["part"] == "all" and row["beta"] == 0]
    assert [row["drift_recent"] is None for row in rows] == [True, False, False, False]
    for before, row in pairwise(rows):
        expected = np.corrcoef(history[before["step"]].mean(0), history[row["step"]].mean(0))[0, 1]
        assert row["drift_recent"] == pytest.approx(expected, abs=1e-9)


def test_parts_losses_and_files(tmp_path):
    run = RunDir.create(tmp_path)
    outcome = run_job(run, expected={"gain_beta0_step6": [0.0, 0.0], "pairwise_beta0_8_step0": [-3, -2]})
    rows = run.read_rows()
    names = ["layers.0.weight", "layers.2.weight"]
    parts = ["all", f"{names[0]} x {names[0]}", f"{names[0]} x {names[1]}", f"{names[1]} x {names[1]}"]
    assert list(dict.fromkeys(row["part"] for row in rows)) == parts
    losses = {row["step"]: row["loss"] for row in rows}
    assert losses[7] < losses[0]
    verdicts = {key: found["verdict"] for key, found in outcome.summary["expected"].items()}
    assert verdicts == {"gain_beta0_step6": "within", "pairwise_beta0_8_step0": "outside"}
    assert (outcome.summary["parameters"], outcome.summary["factors"]) == (36, 21)
    assert (run.path / "figures" / "factor_momentum.png").stat().st_size > 10_000
    assert outcome.exit_code == 0


def test_the_result_is_the_same_again_and_leaves_torchs_state_alone(tmp_path):
    before = torch.get_rng_state()
    numbers = [run_job(RunDir.create(tmp_path)).summary["numbers"] for _ in range(2)]
    assert numbers[0] == numbers[1]
    assert torch.equal(before, torch.get_rng_state())
    other = run_job(RunDir.create(tmp_path), seed=1).summary["numbers"]
    assert other["pairwise_beta0_step6"] != numbers[0]["pairwise_beta0_step6"]


def test_divergence_keeps_the_rows(tmp_path):
    run = RunDir.create(tmp_path)
    outcome = run_job(run, lr=1e200, every=1)
    assert (outcome.status, outcome.exit_code) == ("diverged", 3)
    assert "not finite" in outcome.summary["message"]
    assert {row["step"] for row in run.read_rows()} == {0}
    assert outcome.summary["numbers"] == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": 1}, "models must be at least 2"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"lr": float("nan")}, "lr must be positive and finite, got nan"),
        ({"betas": (0.9, 0.90000001)}, "each once"),
        ({"betas": (0.0, 1.0)}, r"betas=\[0.0, 1.0\]"),
        ({"betas": ()}, r"betas=\[\]"),
        ({"report": (0, 8)}, r"report=\[0, 8\]: steps between 0 and steps=7"),
        ({"memory_gib": 1e-6}, "28 entries of the factors of 4 nets, 2 averages each, need 5.84e-06 GiB"),
        ({"expected": {"gain_beta0_9_step6": [0, 1]}}, "expected.gain_beta0_9_step6"),
        ({"expected": {"gain_beta0_8_step6": [1, 0]}}, "a band is"),
        ({"dtype": "float16"}, "dtype must be one of"),
        ({"device": "tpu"}, "device must be"),
        ({"threads": 0}, "threads must be at least 1, or null .*, got 0"),
        ({"plot": Factory("plot", loss_figure, {})}, "^plot=loss: the metrics have no column test_loss"),
        ({"seed": -1}, "seed must be at least 0 and below 2.63, got -1"),
    ],
)
def test_bad_input(tmp_path, changes, message):
    run = RunDir.create(tmp_path)
    with pytest.raises(BadInput, match=message):
        run_job(run, **changes)
    assert run.read_rows() == []


@pytest.mark.slow
def test_published_momentum(tmp_path):
    """Bernacchia (ICML 2025): at step 100 averages with beta .95 and .98 correlate by .15 more, at 999 no more."""
    data = partial(teacher_student, num_test=10)
    job = partial(run_job, model=mlp, data=data, models=10, steps=999, every=111, report=(100, 999), lr=0.8)
    outcome = job(RunDir.create(tmp_path), betas=(0.0, 0.9, 0.95, 0.98), dtype="float32")
    values = {name: number["value"] for name, number in outcome.summary["numbers"].items()}
    assert all(values[f"gain_beta{beta}_step100"] >= 0.15 for beta in ("0_95", "0_98"))
    assert all(abs(values[f"gain_beta{beta}_step999"]) <= 0.03 for beta in ("0_9", "0_95", "0_98"))
    assert 0.43 < values["pairwise_beta0_step999"] < 0.55
