"""The figure of benchmark-training: its numbers, what is drawn, and what it refuses."""

import pandas as pd
import pytest

from symlab.plots.speed_bars import relative_rates, speed_bars


def table():
    rates = {"plain_script": [100, 50, 80], "symlab_bf16": [300, 100, 200], "symlab_float32": [120, 55, 96]}
    rows = [
        {"part": "training", "way": way, "repeat": repeat, "images_per_s": float(rate)}
        for way in ("symlab_bf16", "plain_script", "symlab_float32")
        for repeat, rate in enumerate(rates[way])
    ]
    data = {"symlab_data": [76234.0] * 3, "plain_data": [3000.0] * 3}
    rows += [
        {"part": "data", "way": way, "repeat": repeat, "images_per_s": rate}
        for way, values in data.items()
        for repeat, rate in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_ratios_are_taken_within_a_repeat():
    parts = relative_rates(table())
    assert list(parts) == ["training", "data"]
    training = parts["training"]
    assert list(training.index) == ["plain_script", "symlab_float32", "symlab_bf16"]
    assert training.loc["symlab_bf16"].tolist() == pytest.approx([2.5, 2.25, 2.75, 200])  # of 3, 2, 2.5
    assert training.loc["symlab_float32"].tolist() == pytest.approx([1.2, 1.15, 1.2, 96])  # of 1.2, 1.1, 1.2
    assert training.loc["plain_script"].tolist() == [1, 1, 1, 80]


def test_bars_aims_and_numbers_are_drawn():
    figure = speed_bars(table(), {"symlab_bf16": 2.2, "elsewhere": 7.0}, title="a net on $data")
    training, data = figure.axes
    assert [bar.get_width() for bar in training.patches] == pytest.approx([1, 1.2, 2.5])
    assert [text.get_text() for text in training.texts] == ["1  (80 / s)", "1.2  (96 / s)", "2.5  (200 / s)"]
    assert [text.get_text() for text in data.texts] == ["1  (3,000 / s)", "25.4  (76,200 / s)"]
    assert [label.get_text() for label in training.get_yticklabels()] == [
        "plain script", "symlab float32", "symlab bf16",
    ]  # fmt: skip
    aims = [
        line.get_xdata()[0] for line in training.lines if len(line.get_xdata()) == 2 and line.get_linewidth() == 1.5
    ]
    assert aims == [2.2]
    assert training.get_xlabel() == "images per second / plain script's"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["quartiles", "aim"]
    (legend,) = speed_bars(table(), {}, title="").legends
    assert [text.get_text() for text in legend.get_texts()] == ["quartiles"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:0], "no rows"),
        (lambda rows: rows.drop(columns="way"), "no column way: this figure is for runs of benchmark-training"),
        (lambda rows: rows[1:], "every repeat must have a rate"),
        (lambda rows: rows[rows["way"] != "plain_data"], "part data has no way whose name begins with plain"),
    ],
)
def test_tables_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        speed_bars(change(table()), {}, title="")
    with pytest.raises(ValueError, match="width_in must be positive, got 0"):
        speed_bars(table(), {}, title="", width_in=0)
