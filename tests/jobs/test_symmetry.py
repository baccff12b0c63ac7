"""The symmetry job: its tables, its figures, what it prints."""

import logging
from functools import partial

import pytest
import torch
from torch import nn

from symlab.data.teacher_student import teacher_student
from symlab.jobs.symmetry import random_operator, symmetry
from symlab.models.mlp import mlp
from symlab.plots.axes import axes
from symlab.plots.structure import structure
from symlab.rundir import BadInput, RunDir
from symlab.symmetry import infer_symmetry

DATA = partial(teacher_student, seed=0, num_train=20, num_test=5, input_size=5, output_size=5, hidden=[5])
MODEL = partial(mlp, hidden=[5, 5], activation="relu", bias=True, init="normal")
PLOTS = {"axes": axes, "structure": structure}


def run_it(folder, **keys):
    run = RunDir.create(folder)
    return run, symmetry(run, **{"model": MODEL, "data": DATA, "plots": PLOTS, **keys}).summary


def test_tables_and_figures(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "symlab"):
        run, summary = run_it(tmp_path)
    numbers = ("parameters", "axes", "axes_with_group", "blocks", "largest_block", "factors", "mean_factors")
    assert [summary[key] for key in numbers] == [90, 4, 2, 4, 18, 228, 18]
    assert summary["share_on_axes"] == pytest.approx(85 / 90)  # all but the last bias
    assert summary["largest_error"] < 1e-10
    rows = {row["axis"]: row for row in run.read_rows("axes")}
    hidden = rows["layers.0.weight:0"]
    assert (hidden["size"], hidden["group"], hidden["used_group"], hidden["role"]) == (
        5,
        *["permutation"] * 2,
        "hidden",
    )
    assert hidden["places"] == "layers.0.weight:0 layers.0.bias:0 layers.2.weight:1"
    assert "relu" in hidden["reasons"]
    assert hidden["weights"] == 25 + 5 + 25
    entrance = rows["in:layers.0.weight:1"]
    assert (entrance["group"], entrance["role"], entrance["error"]) == ("trivial", "input", None)
    blocks = run.read_rows()
    assert sum(row["weights"] for row in blocks) == 90
    assert all(row["weights"] == row["copies"] * row["dimension"] for row in blocks)
    files = ["axes.pdf", "axes.png", "structure.pdf", "structure.png"]
    assert sorted(path.name for path in (run.path / "figures").iterdir()) == files
    assert "in:layers.0.weight:1   5     trivial      input" in caplog.text
    assert "4 axes, 2 with a group, which index 85 of 90 weights" in caplog.text
    assert "more in" not in caplog.text


def test_other_groups_and_coarsening(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "symlab"):
        run, summary = run_it(tmp_path / "a", groups={"hidden": "trivial"}, max_figure=89)
    assert "permutation -> trivial  hidden" in caplog.text
    assert (summary["axes_with_group"], summary["share_on_axes"]) == (2, pytest.approx(85 / 90))  # the model's own
    assert summary["factors"] == 90 * 91 // 2  # every axis free: the full matrix
    assert not (run.path / "figures" / "structure.png").exists()
    rows = {row["axis"]: row for row in run.read_rows("axes")}
    assert (rows["layers.0.weight:0"]["group"], rows["layers.0.weight:0"]["used_group"]) == ("permutation", "trivial")
    run, summary = run_it(tmp_path / "b", max_block=10)
    assert summary["largest_block"] <= 10
    assert summary["factors"] < 228
    coarse = {row["axis"] for row in run.read_rows("axes") if row["used_group"] == "orthogonal"}
    assert coarse
    assert coarse <= {"in:layers.0.weight:1", "out:layers.4.weight:0"}


def test_orthogonal_axes_and_no_verification(tmp_path):
    linear = partial(mlp, hidden=[4], activation="identity")
    run, summary = run_it(tmp_path, model=linear, orthogonal=True, verify=False, plots={})
    rows = {row["axis"]: row for row in run.read_rows("axes")}
    assert rows["layers.0.weight:0"]["group"] == "orthogonal"
    assert summary["largest_error"] is None
    assert not (run.path / "figures").exists()


def test_mistakes_are_named(tmp_path):
    for keys, message in (
        ({"max_block": 0}, "max_block must be at least 1, got 0"),
        ({"groups": {"residual": "trivial"}}, "groups: residual names no axis .* roles are hidden, input, output"),
        ({"groups": {"hidden": "cyclic"}}, "groups: hidden: cyclic is not a group; the groups are permutation"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"plots": {"loss": axes}}, "plots.loss: the figures of this job are plots.axes and plots.structure"),
    ):
        with pytest.raises(BadInput, match=message):
            run_it(tmp_path / str(len(list(tmp_path.iterdir()))), **keys)


def test_the_tables_of_a_large_net_are_cut_on_the_console_only(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "symlab"):
        run, summary = run_it(tmp_path, model=partial(MODEL, hidden=[3] * 20), verify=False)
    assert summary["axes"] == len(run.read_rows("axes")) == 22
    assert "and 7 more in axes.csv" in caplog.text
    assert f"and {summary['blocks'] - 15} more in metrics.csv" in caplog.text


def test_the_random_matrix_has_the_symmetry():
    found = infer_symmetry(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(2, 3))
    matrix = random_operator(found, 0).dense()
    element = found.random_element(torch.Generator().manual_seed(0))
    moved = found.flatten(found.act(element, found.unflatten(matrix)))
    moved = found.flatten(found.act(element, found.unflatten(moved.mT)))
    torch.testing.assert_close(moved.mT, matrix)
