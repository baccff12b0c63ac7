"""The structure job and its figure."""

from functools import partial

import numpy as np
import pytest

from symlab.data.teacher_student import teacher_student
from symlab.jobs.structure import structure
from symlab.models.mlp import mlp
from symlab.plots.structure import structure as draw
from symlab.rundir import BadInput, RunDir

DATA = partial(teacher_student, seed=0, num_train=20, num_test=5, input_size=5, output_size=5, hidden=[5])
MODEL = partial(mlp, hidden=[5, 5], activation="relu", bias=True, init="normal")


def test_blocks_and_figure(tmp_path):
    run = RunDir.create(tmp_path)
    outcome = structure(run, model=MODEL, data=DATA, plot=draw)
    assert (outcome.summary["parameters"], outcome.summary["factors"], outcome.summary["mean_factors"]) == (90, 228, 18)
    rows = run.read_rows()
    assert sum(row["copies"] * row["dimension"] for row in rows) == 90
    assert sorted(path.name for path in (run.path / "figures").iterdir()) == ["structure.pdf", "structure.png"]


def test_large_models_get_no_figure_and_small_blocks_are_coarsened(tmp_path):
    run = RunDir.create(tmp_path)
    outcome = structure(run, model=MODEL, data=DATA, plot=draw, max_figure=89, max_block=3)
    assert not (run.path / "figures").exists()
    assert max(row["copies"] for row in run.read_rows()) < 18
    assert outcome.summary["factors"] < 228
    with pytest.raises(BadInput, match="max_block must be at least 1, got 0"):
        structure(run, model=MODEL, data=DATA, plot=draw, max_block=0)


def test_figure_shows_the_matrix_on_a_symmetric_scale():
    matrix = np.diag([1.0, -3.0, 2.0])
    figure = draw(matrix, {"w": 2, "b$": 1}, title="t")
    axes = figure.axes[0]
    (image,) = axes.get_images()
    assert image.get_clim() == (-3.0, 3.0)
    np.testing.assert_array_equal(image.get_array(), matrix)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["w", r"b\$"]
    with pytest.raises(ValueError, match=r"matrix must be \[2, 2\] like its layers, got \[3, 3\]"):
        draw(matrix, {"w": 2}, title="t")
    with pytest.raises(ValueError, match="NaN"):
        draw(np.full((1, 1), np.nan), {"w": 1}, title="t")
