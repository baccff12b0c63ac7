"""The figure of the lasso's weights over alpha."""

import pandas as pd
import pytest

from symlab.plots.lasso_path import lasso_path

ROWS = pd.DataFrame(
    [
        {
            "data": data,
            "arm": arm,
            "seed": seed,
            "column": column,
            "relative_alpha": alpha,
            "weight": column * (1 - alpha),
        }
        for data in ("a", "b")
        for arm in ("scikit-learn", "spred, Newton")
        for seed in (4, 5)
        for column in (2, 7)
        for alpha in (1.0, 0.1, 0.01)
    ]
)


def test_lines_and_dots_of_one_draw():
    figure = lasso_path(ROWS, {}, title="paths", data="b", seed=5)
    axes = figure.axes[0]
    drawn = axes.lines[:4]
    assert [line.get_marker() for line in drawn] == ["None", "o", "None", "o"]
    assert list(drawn[0].get_xdata()) == [0.01, 0.1, 1.0]
    assert list(drawn[3].get_ydata()) == pytest.approx([7 * 0.99, 7 * 0.9, 0])
    assert drawn[0].get_color() == drawn[1].get_color() != drawn[2].get_color()
    assert axes.get_xlim()[0] > axes.get_xlim()[1]
    assert figure.get_suptitle().replace("\n", " ") == "paths; b, seed 5, 2 weights"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("alpha / alpha_max", "weight")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["scikit-learn", "spred, Newton"]


@pytest.mark.parametrize(
    ("table", "settings", "message"),
    [
        (ROWS, {"data": "c"}, "there are a, b"),
        (ROWS, {"seed": 6}, "there are 4, 5"),
        (ROWS, {"dots": "lars"}, "dots='lars': no arm"),
        (ROWS.drop(columns="data"), {"data": "a"}, "one data set"),
        (ROWS.drop(columns="weight"), {}, "no column weight"),
        (ROWS[:0], {}, "no rows"),
    ],
)
def test_what_cannot_be_drawn_is_named(table, settings, message):
    with pytest.raises(ValueError, match=message):
        lasso_path(table, {}, title="paths", **settings)
