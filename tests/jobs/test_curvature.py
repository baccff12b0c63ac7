"""The job curvature: its estimates against a plain loop over models, its tables, bands, refusals and resumption."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from symlab.cli.validation import Factory
from symlab.curvature import survey
from symlab.curvature.ensemble import draw
from symlab.curvature.problem import Problem
from symlab.curvature.survey import Plan, Survey
from symlab.curvature.tables import known_numbers
from symlab.data.teacher_student import teacher_student
from symlab.jobs.curvature import curvature
from symlab.models.mlp import mlp
from symlab.plots.loss import loss as loss_figure
from symlab.plots.matrix_panels import matrix_panels
from symlab.plots.reduced_matrix import reduced_matrix
from symlab.plots.residual import residual
from symlab.plots.spectrum import spectrum
from symlab.rundir import BadInput, RunDir
from symlab.symmetry import Group, WeightSymmetry
from symlab.training.losses import auto, cross_entropy, half_mean_squared_error

PLOTS = {"panels": matrix_panels, "spectrum": spectrum, "residual": residual, "reduced": reduced_matrix}
DATA = partial(teacher_student, seed=0, num_train=12, num_test=2, input_size=3, hidden=[2], output_size=2)
MODEL = partial(mlp, hidden=[2], activation="tanh", bias=True, bias_std=0.3)
LAYERS = {"layers.0.weight": 6, "layers.0.bias": 2, "layers.2.weight": 4, "layers.2.bias": 2}
EXPERIMENTS = sorted(Path(__file__).parents[2].glob("conf/experiment/icml2025_curvature_*.yaml"))


def launch(tmp_path, **changes):
    """The run and its outcome, at toy size."""
    run = RunDir.create(tmp_path)
    keys = {"model": MODEL, "data": DATA, "loss": auto, "models": 30, "steps": [0, 2], "smallest": 3, "singles": 4}
    return run, curvature(run, **{**keys, "device": "cpu", "threads": 1, "progress": False, **changes})


def single_net(i, data):
    """Net number i by itself, as the job draws it."""
    template = MODEL((3,), 2, torch.Generator().manual_seed(0)).double()
    problem = Problem.of(template, data.train_inputs, data.train_targets, half_mean_squared_error)
    weights = draw(lambda generator: MODEL((3,), 2, generator), problem, 0, i, 1)
    with torch.no_grad():
        for name, parameter in template.named_parameters():
            parameter.copy_(weights[name][0])
    return template


def loop_over_nets(count, steps, lr):
    """Gradients [N, P] and mean Hessian [P, P] with plain autograd, after `steps` steps of gradient descent."""
    data = DATA()
    gradients, hessians = [], []
    for i in range(count):
        net = single_net(i, data)
        weights = [p.detach().clone().requires_grad_() for p in net.parameters()]
        names = [name for name, _ in net.named_parameters()]

        def loss(*own, net=net, names=names):
            outputs = torch.func.functional_call(net, dict(zip(names, own, strict=True)), (data.train_inputs,))
            return ((outputs - data.train_targets) ** 2).sum() / (2 * len(outputs))

        for _ in range(steps):
            slopes = torch.autograd.grad(loss(*weights), weights)
            weights = [(w - lr * g).detach().requires_grad_() for w, g in zip(weights, slopes, strict=True)]
        slopes = torch.autograd.grad(loss(*weights), weights)
        gradients.append(torch.cat([g.flatten() for g in slopes]))
        parts = torch.autograd.functional.hessian(loss, tuple(weights))
        sizes = [w.numel() for w in weights]
        rows = [
            torch.cat([x.reshape(m, n) for x, n in zip(row, sizes, strict=True)], 1)
            for row, m in zip(parts, sizes, strict=True)
        ]
        hessians.append(torch.cat(rows))
    return torch.stack(gradients).numpy(), torch.stack(hessians).mean(0).numpy()


def test_estimates_equal_a_plain_loop_over_the_nets(tmp_path):
    run, outcome = launch(tmp_path, quantities=["mean_gradient", "second_moment", "covariance", "hessian"], lr=0.3)
    assert outcome.status == "completed"
    for step in (0, 2):
        gradients, hessian = loop_over_nets(30, step, 0.3)
        expected = {
            "mean_gradient": gradients.mean(0),
            "second_moment": gradients.T @ gradients / 30,
            "covariance": np.cov(gradients.T),
            "hessian": hessian,
        }
        for quantity, value in expected.items():
            arrays = run.read_arrays(f"{quantity}_step{step}")
            np.testing.assert_allclose(arrays["measured"], value, atol=1e-12)
    arrays = run.read_arrays("covariance_step2")
    symmetry = WeightSymmetry(
        {
            "layers.0.weight": ("h", "i"),
            "layers.0.bias": ("h",),
            "layers.2.weight": ("o", "h"),
            "layers.2.bias": ("o",),
        },
        {"layers.0.weight": (2, 3), "layers.0.bias": (2,), "layers.2.weight": (2, 2), "layers.2.bias": (2,)},
        {"h": Group.SIGNED_PERMUTATION},
    )
    fitted = symmetry.project_dense(torch.from_numpy(arrays["measured"]))
    np.testing.assert_allclose(arrays["fitted"], fitted.dense(), atol=1e-12)
    check_pair_errors(run, loop_over_nets(30, 2, 0.3)[0], symmetry)
    np.testing.assert_allclose(arrays["spectrum"], np.linalg.eigvalsh(arrays["measured"])[::-1], atol=1e-12)
    assert arrays["multiplicity"].sum() == 14
    spectrum_of_fit = np.sort(np.repeat(arrays["predicted"], arrays["multiplicity"]))
    np.testing.assert_allclose(spectrum_of_fit, np.linalg.eigvalsh(arrays["fitted"]), atol=1e-12)
    assert dict(zip(arrays["layer_names"].tolist(), arrays["layer_sizes"].tolist(), strict=True)) == LAYERS


def check_pair_errors(run, gradients, symmetry):
    """The jackknife over the ten folds of three nets, for the first weight with itself, of the covariance."""
    values = []
    for fold in range(10):
        rest = np.cov(np.delete(gradients, range(3 * fold, 3 * fold + 3), axis=0).T)
        fitted = symmetry.project_dense(torch.from_numpy(rest)).dense().numpy()[:6, :6]
        measured = rest[:6, :6]
        residual = np.linalg.norm(measured - fitted) / np.linalg.norm(measured)
        values.append((np.linalg.norm(fitted), residual, np.corrcoef(measured.ravel(), fitted.ravel())[0, 1]))
    expected = np.sqrt(0.9 * np.var(values, axis=0) * 10)
    row = next(r for r in run.read_rows("blocks") if (r["quantity"], r["step"]) == ("covariance", 2))
    found = [row[f"{name}_error"] for name in ("norm", "residual", "correlation")]
    assert (row["i"], row["j"]) == (1, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_tables_and_figures(tmp_path):
    state = torch.get_rng_state()
    run, outcome = launch(tmp_path, plots=PLOTS)
    torch.testing.assert_close(torch.get_rng_state(), state)
    rows = run.read_rows()
    assert [(row["quantity"], row["step"]) for row in rows] == [
        ("covariance", 0), ("hessian", 0), ("covariance", 2), ("hessian", 2),
    ]  # fmt: skip
    arrays = run.read_arrays("hessian_step2")
    measured, fitted = arrays["measured"], arrays["fitted"]
    last = rows[-1]
    assert last["factors"] == 6 * 7 / 2 + 2 * 3 / 2  # block {h}: 3 inputs, bias, 2 outputs; block {}: 2 output biases
    assert last["residual"] == pytest.approx(np.linalg.norm(measured - fitted) / np.linalg.norm(measured))
    assert last["fit_correlation"] == pytest.approx(np.corrcoef(measured.ravel(), fitted.ravel())[0, 1])
    covariance = run.read_arrays("covariance_step2")["measured"]
    assert last["correlation_covariance"] == pytest.approx(np.corrcoef(measured.ravel(), covariance.ravel())[0, 1])
    assert last["trace"] == pytest.approx(np.trace(measured))
    assert 0 < last["trace_error"] < abs(last["trace"])
    blocks = [row for row in run.read_rows("blocks") if (row["quantity"], row["step"]) == ("hessian", 2)]
    assert [(row["i"], row["j"]) for row in blocks] == [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3), (4, 4)]
    weights, biases = slice(0, 6), slice(6, 8)
    assert blocks[1]["norm"] == pytest.approx(np.linalg.norm(fitted[weights, biases]))
    outside = np.linalg.norm((measured - fitted)[weights, biases]) / np.linalg.norm(measured[weights, biases])
    assert blocks[1]["residual"] == pytest.approx(outside)
    sizes = {row["models"] for row in run.read_rows("residuals") if row["structure"] == "wrong"}
    assert sizes == {3, 9, 27, 30}
    names = {f"{quantity}_{name}.png" for quantity in ("covariance", "hessian") for name in PLOTS}
    assert names <= {path.name for path in (run.path / "figures").iterdir()}
    assert set(outcome.summary["numbers"]) <= set(known_names(["covariance", "hessian"], [0, 2]))


def known_names(quantities, steps):
    plan = Plan(dict.fromkeys(quantities, 30), steps, 0.1, True, 1.0, None, False, 1, 3, 4, 0)
    names = {f"t{i}": (2,) for i in range(4)}
    return known_numbers(plan, WeightSymmetry(dict.fromkeys(names, ("a",)), names, {}))


def test_the_right_structure_falls_and_the_wrong_one_levels_off(tmp_path):
    expected = {"slope_covariance_step0": [-0.6, -0.4], "wrong_slope_covariance_step0": [-1.0, -0.4]}
    changes = {"quantities": ["covariance"], "steps": [0], "models": 3000, "smallest": 30, "expected": expected}
    run, outcome = launch(tmp_path, **changes)
    (row,) = run.read_rows()
    assert row["slope"] == pytest.approx(-0.5, abs=0.1)
    assert row["wrong_slope"] > -0.25
    assert 0.6 < row["excess"] < 1.5
    assert row["wrong_excess"] > 3
    assert row["wrong_residual"] > 0.15
    verdicts = {key: found["verdict"] for key, found in outcome.summary["expected"].items()}
    assert verdicts == {"slope_covariance_step0": "within", "wrong_slope_covariance_step0": "outside"}
    assert (outcome.summary["within"], outcome.summary["outside"], outcome.exit_code) == (1, 1, 0)


def test_blocks_alone_equal_those_of_the_dense_matrices(tmp_path):
    quantities = ["mean_gradient", "covariance"]
    dense, _ = launch(tmp_path, quantities=quantities)
    blocks, outcome = launch(tmp_path, quantities=quantities, dense=False, plots=PLOTS)
    for step in (0, 2):
        whole, own = (run.read_arrays(f"covariance_step{step}") for run in (dense, blocks))
        for key in own:
            if key.startswith("block_") and key[-1].isdigit():
                np.testing.assert_allclose(own[key], whole[key], atol=1e-13)
        assert "measured" not in own
    last, same = blocks.read_rows()[-1], dense.read_rows()[-1]
    assert last["residual"] is None
    assert last["trace"] == pytest.approx(same["trace"])
    assert last["trace_error"] == pytest.approx(same["trace_error"])
    assert last["single_model"] == pytest.approx(same["single_model"])
    assert blocks.read_rows()[0]["residual"] == pytest.approx(dense.read_rows()[0]["residual"])
    assert outcome.status == "completed"


def test_probes_estimate_the_hessian_without_forming_it(tmp_path):
    changes = {"quantities": ["hessian"], "steps": [0], "models": 400, "smallest": 40}
    dense, _ = launch(tmp_path, **changes)
    probed, _ = launch(tmp_path, **changes, dense=False, probes=8)
    row = probed.read_rows()[0]
    exact, estimate = (run.read_arrays("hessian_step0")["block_1"] for run in (dense, probed))
    assert 0.001 < row["relative_error"] < 0.2
    assert np.linalg.norm(estimate - exact) < 4 * row["relative_error"] * np.linalg.norm(exact)


def test_groups_are_chosen_by_role(tmp_path):
    changes = {"quantities": ["covariance"], "steps": [0], "wrong_groups": None, "groups": {"hidden": "trivial"}}
    run, outcome = launch(tmp_path, **changes)
    assert run.read_rows()[0]["factors"] == 14 * 15 / 2
    assert run.read_rows()[0]["residual"] == pytest.approx(0, abs=1e-12)
    assert outcome.summary["groups"] == {}
    assert {row["structure"] for row in run.read_rows("residuals")} == {"right"}


def test_several_data_sets_give_mean_and_spread(tmp_path):
    run, outcome = launch(tmp_path, quantities=["covariance"], steps=[0], data_seeds=[3, 5])
    rows = run.read_rows()
    assert [row["data_seed"] for row in rows] == [3, 5]
    alone, _ = launch(tmp_path, quantities=["covariance"], steps=[0], data=partial(DATA, seed=5))
    assert {**alone.read_rows()[0], "data_seed": 5} == rows[1]
    found = outcome.summary["numbers"]["trace_covariance_step0"]
    traces = [row["trace"] for row in rows]
    assert found["value"] == pytest.approx(np.mean(traces))
    assert found["spread"] == pytest.approx(np.std(traces, ddof=1))
    assert run.array_names() == ["covariance_step0_data3", "covariance_step0_data5"]


def stopping_survey(monkeypatch, after):
    """The survey sends this process SIGTERM behind its chunk number `after`, with chunks of 7 nets."""
    advance, chunks = Survey.advance, survey._chunks
    calls = []

    def stopped(self):
        calls.append(1)
        count = advance(self)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGTERM)
        return count

    monkeypatch.setattr(survey, "_chunks", lambda *arguments: (7, chunks(*arguments)[1]))
    monkeypatch.setattr(Survey, "advance", stopped)


@pytest.mark.parametrize("dense", [True, False])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch, dense):
    keys = {
        "data_seeds": [0, 1],
        "dense": dense,
        "quantities": ["covariance", "hessian"],
        "steps": [0, 1],
        "models": 28,
    }
    with monkeypatch.context() as patch:
        patch.setattr(survey, "_chunks", lambda *arguments: (7, {"covariance": 7, "hessian": 7}))
        whole, _ = launch(tmp_path, **keys)
    with monkeypatch.context() as patch:
        stopping_survey(patch, after=7)  # in the second data set: 28 nets are 4 chunks
        run, outcome = launch(tmp_path, **keys)
    assert (outcome.status, outcome.exit_code) == ("interrupted", 143)
    assert {row["data_seed"] for row in run.read_rows()} == {0}
    assert run.load_checkpoint("last")["survey"]["done"] == 21
    common = {"model": MODEL, "data": DATA, "loss": auto, "smallest": 3, "singles": 4}
    with monkeypatch.context() as patch:
        patch.setattr(survey, "_chunks", lambda *arguments: (7, {"covariance": 7, "hessian": 7}))
        outcome = curvature(run, **common, **keys, device="cpu", threads=1, progress=False)
    assert outcome.status == "completed"
    for table in ("metrics", "blocks", "single_models", "residuals"):
        for mine, theirs in zip(run.read_rows(table), whole.read_rows(table), strict=True):
            assert list(mine) == list(theirs)
            for key, value in theirs.items():
                assert mine[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)


def test_figures_are_drawn_again(tmp_path):
    run, _ = launch(tmp_path, quantities=["mean_gradient", "covariance"], steps=[0])
    run.write_config("seed: 0\n", [])
    run.write_environment({})
    run.write_summary({**run.read_summary(), "status": "completed"})
    again, outcome = launch(tmp_path, redraw=run.path, plots={"panels": matrix_panels, "residual": residual})
    assert outcome.summary == {"redrawn": str(run.path)}
    drawn = sorted(path.stem for path in (again.path / "figures").glob("*.png"))
    assert drawn == ["covariance_panels", "covariance_residual", "mean_gradient_residual"]
    with pytest.raises(BadInput, match="there is no run directory"):
        launch(tmp_path, redraw=tmp_path / "nowhere")


def unseeded_data():
    return DATA()


def sum_of_squares(outputs, targets):
    return (outputs - targets).abs().pow(3).sum() / len(outputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantities": ["hesian"]}, "quantity must be one of mean_gradient, .* got 'hesian'"),
        ({"quantities": []}, "quantities is empty"),
        ({"quantities": ["hessian", "hessian"]}, "quantities must be different"),
        ({"models": 1}, "models must be at least 2, got 1"),
        ({"models": {"covariance": 30}}, "name each of"),
        ({"steps": [20, 0]}, r"steps must be increasing whole numbers from 0 on, got \[20, 0\]"),
        ({"steps": []}, "steps must be increasing"),
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"dtype": "bfloat16"}, "dtype=bfloat16: second derivatives need float32 or float64"),
        ({"lr": float("nan")}, "lr must be positive and finite, got nan"),
        ({"smallest": 1}, "smallest must be at least 2"),
        ({"probes": 0}, "probes must be at least 1, got 0"),
        ({"memory_gib": 1e-6}, "memory_gib=1e-06: the running sums .14 x 14 matrices.* dense=false"),
        ({"memory_gib": 1e-6, "dense": False}, "sums .blocks. of .*; give a larger memory_gib"),
        ({"quantities": ["fisher"], "loss": sum_of_squares}, "the Fisher needs the law of the labels"),
        ({"loss": cross_entropy}, "cross_entropy needs int64 class indices"),
        ({"data": unseeded_data, "data_seeds": [0]}, "data_seeds=0: the data must be a function of a seed"),
        ({"data_seeds": [1, 1]}, "data_seeds must be different"),
        ({"groups": {"hidden": "cyclic"}}, "^groups: hidden: cyclic is not a group"),
        ({"wrong_groups": {"residual": "trivial"}}, "^wrong_groups: residual names no axis"),
        ({"seed": 2**63}, "seed must be at least 0 and below 2.63"),
        ({"plots": {"loss": Factory("plots.loss", loss_figure, {})}}, "^plots.loss=loss: .*'references'"),
        ({"expected": {"slope_covariance_step1": [0, 1]}}, "near it: slope_covariance_step"),
        ({"expected": {"slope_covariance_step0": [1, 0]}}, "low <= high"),
        ({"dtype": "float8"}, "dtype must be one of"),
        ({"row_batch": 0}, "row_batch must be at least 1, got 0"),
        ({"checkpoint_every_s": -1.0}, "checkpoint_every_s must be"),
    ],
)
def test_refused_before_the_start(tmp_path, changes, message):
    with pytest.raises(BadInput, match=message):
        launch(tmp_path, **changes)
    (run,) = tmp_path.iterdir()
    assert list(run.iterdir()) == []


def test_divergence_is_named(tmp_path, caplog):
    run, outcome = launch(
        tmp_path, lr=1e200, steps=[0, 9], quantities=["covariance"], data=partial(DATA, spectrum_start=9.0)
    )
    assert (outcome.status, outcome.exit_code) == ("diverged", 3)
    assert re.search(r"net \d+ hold NaN or inf after 9 steps: take a smaller lr", outcome.summary["message"])
    assert outcome.summary["message"] in caplog.text
    assert run.read_rows() == []


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiments_expect_numbers_that_there_are(path):
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    known = known_names(config.get("quantities", ["covariance", "hessian"]), config["steps"])
    assert config["expected"]
    assert set(config["expected"]) <= set(known)
