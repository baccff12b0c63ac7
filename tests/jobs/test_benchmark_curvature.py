"""The job benchmark-curvature: both sides compute the same, ratios pair the times of one repeat, memory is measured."""

from functools import partial

import pytest
import torch

from symlab.curvature.ensemble import descend, draw
from symlab.curvature.gradients import gradients
from symlab.curvature.plain_loop import loop_hessians_at_once, loop_hessians_by_row, loop_second_moment
from symlab.curvature.problem import Problem
from symlab.curvature.second_order import hessians
from symlab.jobs.benchmark_curvature import as_text, benchmark_curvature
from symlab.plots.scaling import scaling
from symlab.rundir import BadInput, RunDir
from symlab.training.losses import auto
from tests.curvature.nets import chain, convolutional, data, made
from tests.training.problems import regression, small_net


def run_job(run, **changes):
    settings = {
        "model": small_net,
        "data": regression,
        "loss": auto,
        "plot": scaling,
        "tasks": ["hessian", "structured_fisher"],
        "counts": [2, 4],
        "loop_models": 2,
        "repeats": 2,
        "steps": 1,
        "threads": 1,
        "dtype": "float64",
        "memory_gib": 0.001,
        "progress": False,
    }
    return benchmark_curvature(run, **(settings | changes))


@pytest.mark.parametrize(("build", "shape"), [(chain((3, 4, 2)), (3,)), (convolutional(), (2, 4))])
def test_the_rival_computes_the_same(build, shape):
    problem = Problem.of(made(build), *data(5, shape, 2, "mse"), auto)
    parameters = draw(build, problem, 0, 0, 3)
    kept = {name: x.clone() for name, x in problem.model.named_parameters()}
    g = problem.flatten(gradients(problem, descend(problem, parameters, 3, 0.2)))
    torch.testing.assert_close(loop_second_moment(problem, parameters, 3, 0.2), g.mT @ g)
    right = hessians(problem, parameters).sum(0)
    for loop in (loop_hessians_at_once, loop_hessians_by_row):
        torch.testing.assert_close(loop(problem, parameters), right)
    assert all(torch.equal(p, kept[name]) for name, p in problem.model.named_parameters())
    assert not any(p.requires_grad for p in problem.model.parameters())


def test_tables_figure_and_memory(tmp_path, monkeypatch):
    run = RunDir.create(tmp_path)
    outcome = run_job(run, models={"again": small_net})
    table = {row["task"]: row for row in outcome.summary["table"]}
    assert list(table) == ["hessian", "structured_fisher"]
    for row in table.values():
        assert row["parameters"] == 4 * 5 + 5 + 5 * 3 + 3
        assert row["memory_models"] == 4
        assert row["memory_peak_mib"] >= row["memory_before_mib"] > 50
        assert row["speedup_quartiles"][0] <= row["speedup"] <= row["speedup_quartiles"][1]
    rows = run.read_rows()
    assert len(rows) == 2 * 2 * 2
    assert {row["net"] for row in rows} == {"model", "again"}
    first = [row for row in rows if row["task"] == "hessian" and row["net"] == "model"]
    ratios = sorted(row["loop_s"] / row["vectorised_s"] for row in first)
    assert table["hessian"]["speedup"] == pytest.approx(sum(ratios) / 2)
    points = run.read_rows("scaling")
    whole = [row for row in points if row["against"] == "models" and row["task"] == "hessian"]
    assert [row["models"] for row in whole] == [2, 4]
    one = table["hessian"]["loop_s"] + table["hessian"]["drawing_s"]
    assert whole[1]["loop_s"] == pytest.approx(4 * one)
    assert len([row for row in points if row["against"] == "parameters"]) == 2 * 2
    assert (run.path / "figures" / "scaling.png").exists()
    assert as_text(outcome.summary["table"]).count("\n") == 3


def test_the_other_tasks_without_whole_runs(tmp_path):
    outcome = run_job(RunDir.create(tmp_path), tasks=["covariance", "structured_covariance"], counts=[])
    for row in outcome.summary["table"]:
        assert row["cpu_speedup"] > 0
        assert "memory_peak_mib" not in row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ["speed"]}, "tasks must be some of"),
        ({"tasks": []}, "tasks must be some of"),
        ({"counts": [1]}, "counts must hold numbers of at least 2"),
        ({"loop_models": 0}, "loop_models must be at least 1"),
        ({"loop_threads": 0}, "loop_threads must be at least 1"),
        ({"repeats": 1}, "repeats must be at least 2"),
        ({"steps": -1}, "steps must be at least 0"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"memory_gib": 1e-7}, "running sums"),
        ({"row_batch": 0}, "row_batch must be at least 1"),
        ({"model": partial(small_net, batch_norm=True), "loss": lambda f, y: (f - y).square().sum()}, "their sum"),
    ],
)
def test_bad_input(tmp_path, change, message):
    with pytest.raises(BadInput, match=message):
        run_job(RunDir.create(tmp_path), **change)
