"""The figure of neuron correlation: which matrix stands where, its scale, and what it refuses."""

import io

import numpy as np
import pandas as pd
import pytest

from symlab.plots.neuron_correlation import neuron_correlation


def table(size: int = 6) -> pd.DataFrame:
    rows = []
    for arm in ("symmetric", "shift 0.5"):
        for decay in (0.0, 0.03):
            for i in range(size):
                for j in range(size):
                    value = 1.0 if i == j else (-1) ** (i + j) * (decay * 10 + 0.1 * (arm == "symmetric"))
                    rows.append({"arm": arm, "decay": decay, "i": i, "j": j, "value": value})
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def test_each_panel_holds_its_matrix_on_one_scale() -> None:
    data = table().sort_values(["arm", "decay"], ascending=[False, True])
    figure = neuron_correlation(data, {}, title="64 units, $ of a net")
    figure.savefig(io.BytesIO(), format="png")
    panels, bar = figure.axes[:4], figure.axes[4]
    assert [axes.get_title() for axes in panels] == [
        "symmetric, decay 0",
        "shift 0.5, decay 0",
        "symmetric, decay 0.03",
        "shift 0.5, decay 0.03",
    ]
    image = panels[2].get_images()[0]
    assert image.get_clim() == (-1, 1)
    expected = 0.4 * (-1.0) ** np.add.outer(np.arange(6), np.arange(6))
    np.fill_diagonal(expected, 1)
    np.testing.assert_allclose(np.asarray(image.get_array()), expected)
    assert (panels[2].get_xlabel(), panels[2].get_ylabel(), panels[0].get_xlabel()) == ("neuron", "neuron", "")
    assert bar.get_xlabel() == "correlation of the weights into neurons"


def test_what_it_refuses() -> None:
    for bad, word in [
        (table()[:0], "no rows"),
        (table().drop(columns="value"), "no column value"),
        (pd.concat([table(), table()]), "one run at a time"),
    ]:
        with pytest.raises(ValueError, match=word):
            neuron_correlation(bad, {}, title="toy")
    with pytest.raises(ValueError, match="width_in"):
        neuron_correlation(table(), {}, title="toy", width_in=0)
