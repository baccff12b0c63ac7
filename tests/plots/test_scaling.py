"""The figure of times against models and weights."""

import pytest

from symlab.plots.scaling import scaling

ROWS = [
    {"against": "models", "task": task, "models": n, "parameters": 60, "vectorised_s": n * fast, "loop_s": n * 0.01}
    for task, fast in (("covariance", 1e-4), ("hessian", 2e-4))
    for n in (100, 1000)
] + [
    {"against": "parameters", "task": task, "models": 1, "parameters": p, "vectorised_s": 1e-4 * p, "loop_s": 1e-2}
    for task in ("covariance", "hessian")
    for p in (60, 115, 445)
]


def test_both_panels_show_every_time_on_logarithmic_axes():
    figure = scaling(ROWS, title="times")
    left, right = figure.axes
    assert len(left.lines) == len(right.lines) == 4
    for axes in (left, right):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(left.lines[0].get_ydata()) == pytest.approx([0.01, 0.1])  # seconds of a whole run
    assert list(right.lines[1].get_ydata()) == pytest.approx([10, 10, 10])  # milliseconds per model
    assert list(right.lines[0].get_xdata()) == [60, 115, 445]
    assert [text.get_text() for text in right.get_xticklabels()] == ["60", "115", "445"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["covariance, vectorised", "covariance, loop", "hessian, vectorised", "hessian, loop"]


def test_an_empty_panel_stays_empty():
    figure = scaling([row for row in ROWS if row["against"] == "parameters"], title="times")
    assert not any(len(line.get_xdata()) for line in figure.axes[0].lines)
