"""The figures of singular-values: what they draw, on made-up tables."""

import io

import numpy as np
import pandas as pd
import pytest

from symlab.plots.singular_value_evolution import singular_value_evolution, variant_loss
from symlab.plots.singular_value_histogram import singular_value_histogram


def saved(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=60)
    assert buffer.tell() > 1000


def histogram_table(trials=3, law=True, scale=1.0):
    rows = [
        {
            "trial": t,
            "variant": v,
            "kind": "measured",
            "low": x,
            "high": x + 0.5,
            "density": scale * (0.4 + 0.1 * t * x),
        }
        for t in range(trials)
        for v in ("A", "B")
        for x in (0.0, 0.5, 1.0, 1.5)
    ]
    if law:
        rows += [
            {"trial": None, "variant": "A", "kind": "law", "low": x, "high": x + 0.1, "density": 0.5}
            for x in np.arange(0, 2, 0.1)
        ]
    return pd.DataFrame(rows)


def metrics_table(trials=3):
    rows = [
        {"trial": t, "variant": v, "step": s, "loss": 2.0 / (1 + s + t) if s < 5 else None}
        | {name: (1.0 + t + i if s % 2 == 0 else None) for i, name in enumerate(("mean", "median", "condition"))}
        for t in range(trials)
        for v in ("chain", "res")
        for s in range(6)
    ]
    return pd.DataFrame(rows)


def test_a_histogram_has_one_panel_per_variant():
    figure = singular_value_histogram(histogram_table(), {}, title="t")
    saved(figure)
    assert [axes.get_title() for axes in figure.axes] == ["A", "B"]
    assert figure.axes[0].get_xlim() == (0.0, 2.0)
    steps = figure.axes[1].patches[1]
    np.testing.assert_allclose(steps.get_data().values, [0.4, 0.45, 0.5, 0.55])
    (line,) = figure.axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), 0.5)
    assert not figure.axes[1].lines
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["mean over 3 trials", "±1 std over trials", "limit for large n"]


def test_what_lies_outside_is_said():
    figure = singular_value_histogram(histogram_table(scale=0.5, trials=1, law=False), {}, title="t", log=True)
    saved(figure)
    assert [text.get_text() for text in figure.axes[0].texts] == ["60 % beyond the axis"]
    assert figure.axes[0].get_yscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one trial"]


def test_evolution_has_one_panel_per_column():
    figure = singular_value_evolution(metrics_table(), {}, title="t")
    saved(figure)
    assert [axes.get_ylabel() for axes in figure.axes] == ["mean s", "median s", "condition number"]
    line = figure.axes[1].lines[0]
    np.testing.assert_allclose(line.get_xdata(), [0, 2, 4])
    np.testing.assert_allclose(line.get_ydata(), [3, 3, 3])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["chain", "res", "±1 std over 3 trials"]


def test_the_loss_stands_alone_and_logarithmically():
    figure = variant_loss(metrics_table(1), {}, title="t")
    saved(figure)
    (axes,) = figure.axes
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "training loss")
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [2 / (1 + s) for s in range(5)])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["chain", "res"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: singular_value_histogram(metrics_table(), {}, title="t"), "no column kind, low, high, density"),
        (lambda: singular_value_evolution(histogram_table(), {}, title="t"), "no column step, mean, median, condition"),
        (lambda: singular_value_evolution(metrics_table(), {}, title="t", columns=()), "at least one column"),
        (lambda: variant_loss(metrics_table(), {}, title="t", height_in=0), "must be positive, got 3.4 and 0"),
    ],
)
def test_what_cannot_be_drawn(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
