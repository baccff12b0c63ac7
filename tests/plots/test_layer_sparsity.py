"""The figure of zeros per layer: what is drawn, and what it refuses."""

import pandas as pd
import pytest

from symlab.plots.layer_sparsity import layer_sparsity


def table() -> pd.DataFrame:
    values = {("DCS", 0): (0.8, 0.2), ("DCS", 1): (0.6, 0.4), ("vanilla", 0): (0.0, 0.1), ("vanilla", 1): (0.0, 0.1)}
    return pd.DataFrame(
        [
            {"arm": arm, "seed": seed, "layer": 3 * place, "tensor": ("stem", "fc")[place], "zero_fraction": value}
            for (arm, seed), both in values.items()
            for place, value in enumerate(both)
        ]
    )


def test_a_line_per_arm_with_mean_and_spread_in_the_order_of_layers() -> None:
    figure = layer_sparsity(table().iloc[::-1], {"unused": 1.0}, title="zeros of $w$")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["stem", "fc"]
    first, second = axes.containers
    assert list(first.lines[0].get_ydata()) == [0.0, 0.1]
    assert list(second.lines[0].get_ydata()) == pytest.approx([0.7, 0.3])
    bars = [segment[:, 1].tolist() for segment in second.lines[2][0].get_segments()]
    spread = 0.02**0.5
    assert bars[0] == pytest.approx([0.7 - spread, 0.7 + spread])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["vanilla", "DCS", "±1 std over 2 seeds"]
    assert axes.get_ylabel() == "zero_fraction"
    assert layer_sparsity(table(), {}, title="", value_label="zeros").axes[0].get_ylabel() == "zeros"


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="no rows"):
        layer_sparsity(table().iloc[:0], {}, title="")
    with pytest.raises(ValueError, match="value='zeros'"):
        layer_sparsity(table(), {}, title="", value="zeros")
    other = table()
    other.loc[0, "tensor"] = "head"
    with pytest.raises(ValueError, match="layer 0 has different names"):
        layer_sparsity(other, {}, title="")
    with pytest.raises(ValueError, match="must be positive"):
        layer_sparsity(table(), {}, title="", width_in=0)
