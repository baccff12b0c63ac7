"""The job local-curvature: limits in which the optimizer's step is known, and what it writes."""

import math
from functools import partial

import pytest
import torch

from symlab.cli.validation import Factory
from symlab.curvature.local_step import REFERENCES
from symlab.jobs.local_curvature import local_curvature, number_names
from symlab.models.mlp import mlp
from symlab.optim.adam import adam
from symlab.optim.gd import gd
from symlab.optim.symo import symo
from symlab.plots.local_curvature import local_curvature as figure
from symlab.plots.loss import loss as loss_figure
from symlab.rundir import BadInput, RunDir
from symlab.schedules.constant import constant
from symlab.training.losses import auto
from tests.training.problems import classification, regression, small_net
from tests.training.problems import run_job as train_job


def run_job(run, **changes):
    settings = {"model": small_net, "data": regression, "optimizer": partial(gd, lr=0.01), "schedule": constant}
    settings |= {"loss": auto, "plot": figure, "steps": 5, "every": 2, "seeds": (0, 1), "device": "cpu", "threads": 1}
    return local_curvature(run, **(settings | changes))


def rows_of(run, reference):
    return [row for row in run.read_rows() if row["reference"] == reference]


def test_rows_and_summary(tmp_path):
    run = RunDir.create(tmp_path)
    outcome = run_job(run, expected={"cosine_gradient": [0.99, 1.0], "share_step": [2, 3]})
    rows = run.read_rows()
    assert len(rows) == 2 * 3 * (1 + len(REFERENCES))
    assert [row["step"] for row in rows if row["reference"] == "step"] == [0, 2, 4, 0, 2, 4]
    numbers = outcome.summary["numbers"]
    assert list(numbers) == number_names()
    for name in ("cosine_ggn_root", "share_structured_hessian"):
        column, _, reference = name.partition("_")
        means = [sum(row[column] for row in rows_of(run, reference) if row["seed"] == seed) / 3 for seed in (0, 1)]
        assert numbers[name]["value"] == pytest.approx(sum(means) / 2)
        assert numbers[name]["spread"] == pytest.approx(abs(means[0] - means[1]) / math.sqrt(2))
        assert numbers[name]["error"] == pytest.approx(abs(means[0] - means[1]) / 2)
    gains = [
        sum(structured["cosine"] - exact["cosine"] for structured, exact in pairs) / 3
        for pairs in (
            [
                (structured, exact)
                for structured, exact in zip(rows_of(run, "structured_ggn"), rows_of(run, "ggn"), strict=True)
                if exact["seed"] == seed
            ]
            for seed in (0, 1)
        )
    ]
    assert numbers["gain_ggn"]["value"] == pytest.approx(sum(gains) / 2)
    assert numbers["gain_ggn"]["spread"] == pytest.approx(abs(gains[0] - gains[1]) / math.sqrt(2))
    assert numbers["share_hessian"]["value"] == pytest.approx(1.0)
    assert {k: v["verdict"] for k, v in outcome.summary["expected"].items()} == {
        "cosine_gradient": "within",
        "share_step": "outside",
    }
    assert (run.path / "figures" / "local_curvature.png").stat().st_size > 10_000
    assert outcome.summary["parameters"] == 4 * 5 + 5 + 5 * 3 + 3


def test_gradient_descent_steps_along_the_gradient(tmp_path):
    """And the decrease that the Hessian predicts is right to third order in the step."""
    run = RunDir.create(tmp_path)
    run_job(run)
    steps, gradients = rows_of(run, "step"), rows_of(run, "gradient")
    for taken, gradient in zip(steps, gradients, strict=True):
        assert gradient["cosine"] == pytest.approx(1.0, abs=1e-9)
        assert taken["share"] == pytest.approx(gradient["share"], abs=1e-9)
        assert taken["decrease"] == pytest.approx(taken["predicted_decrease"], rel=0.02)
        assert taken["decrease"] > 0


def test_symo_without_a_memory_is_its_own_reference(tmp_path):
    run = RunDir.create(tmp_path)
    run_job(run, optimizer=partial(symo, lr=0.01, beta=0.0), damping=1e-12, seeds=(0,))
    assert all(row["cosine"] == pytest.approx(1.0, abs=1e-6) for row in rows_of(run, "structured_gradient_root"))
    assert all(row["cosine"] < 0.99 for row in rows_of(run, "gradient"))


def test_measuring_does_not_change_the_run(tmp_path):
    """Mini-batches, dropout and batch norm: the losses are those of rarer measurements, and of the job train."""
    model = partial(small_net, dropout=0.3, batch_norm=True)
    settings = {"model": model, "data": classification, "optimizer": partial(adam, lr=0.05), "batch_size": 4}
    losses = []
    for every in (1, 3):
        run = RunDir.create(tmp_path)
        run_job(run, **settings, every=every, steps=6, seeds=(3,))
        losses.append({row["step"]: row["loss"] for row in run.read_rows()})
    assert losses[1] == {step: loss for step, loss in losses[0].items() if step in (0, 3, 5)}
    trained = RunDir.create(tmp_path)
    train_job(trained, **settings, seed=3, epochs=2, eval_every=1, schedule=constant, eval_train_size=None)
    expected = {row["step"]: row["train_loss"] for row in trained.read_rows()}
    assert losses[0] == pytest.approx({step: expected[step] for step in range(6)}, rel=1e-9)  # Adam magnifies rounding


def test_rows_at_a_time_do_not_matter(tmp_path):
    tables = []
    for row_batch in (3, None):
        run = RunDir.create(tmp_path)
        run_job(run, row_batch=row_batch, seeds=(0,))
        tables.append([(row["reference"], row["step"], row["share"]) for row in run.read_rows()])
    assert [row[:2] for row in tables[0]] == [row[:2] for row in tables[1]]
    assert [row[2] for row in tables[0]] == pytest.approx([row[2] for row in tables[1]], rel=1e-8)


def test_one_seed_has_no_spread(tmp_path):
    numbers = run_job(RunDir.create(tmp_path), seeds=(4,)).summary["numbers"]
    assert numbers["cosine_ggn"]["value"] is not None
    assert (numbers["cosine_ggn"]["error"], numbers["cosine_ggn"]["spread"]) == (None, None)


def test_a_step_of_zero_has_no_cosine(tmp_path):
    run = RunDir.create(tmp_path)
    outcome = run_job(run, schedule=lambda step, total_steps: 0.0, seeds=(0,))
    assert {row["cosine"] for row in run.read_rows()} == {None}
    assert outcome.summary["numbers"]["cosine_ggn"]["value"] is None
    assert outcome.summary["numbers"]["share_ggn"]["value"] > 0


def test_divergence_keeps_the_rows(tmp_path):
    run = RunDir.create(tmp_path)
    outcome = run_job(run, optimizer=partial(gd, lr=100.0), model=partial(mlp, activation="relu"), steps=500, every=499)
    assert (outcome.status, outcome.exit_code) == ("diverged", 3)
    assert outcome.summary["message"].startswith("seed 0, step ")
    assert {row["step"] for row in run.read_rows()} == {0}
    assert run.read_summary()["status"] == "diverged"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"row_batch": 0}, "row_batch must be at least 1, got 0"),
        ({"damping": 0.0}, "damping must be positive and finite, got 0.0"),
        ({"damping": float("nan")}, "damping must be positive and finite, got nan"),
        ({"max_parameters": 42}, "the model has 43 weights, more than max_parameters=42: each of several matrices"),
        ({"seeds": ()}, r"seeds=\[\]"),
        ({"seeds": (1, 1)}, r"seeds=\[1, 1\]: at least one whole number from 0 on, each once"),
        ({"batch_size": 11}, "batch_size=11 does not fit the 10 training rows"),
        ({"expected": {"cosine_gradients": [0, 1]}}, "expected.cosine_gradients.*near it: cosine_gradient"),
        ({"device": "tpu"}, "device must be"),
        ({"threads": 0}, "threads must be at least 1, or null .*, got 0"),
        ({"plot": Factory("plot", loss_figure, {})}, "^plot=loss: the metrics have no column test_loss"),
    ],
)
def test_bad_input(tmp_path, changes, message):
    run = RunDir.create(tmp_path)
    with pytest.raises(BadInput, match=message):
        run_job(run, **changes)
    assert run.read_rows() == []


def test_the_global_random_state_is_left_alone(tmp_path):
    before = torch.get_rng_state()
    run_job(RunDir.create(tmp_path), seeds=(0,))
    assert torch.equal(before, torch.get_rng_state())
