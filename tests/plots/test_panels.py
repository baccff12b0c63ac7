"""The figures of factor-momentum and local-curvature: what they draw, on made-up tables."""

import io

import numpy as np
import pandas as pd
import pytest

from symlab.plots.factor_momentum import factor_momentum
from symlab.plots.local_curvature import local_curvature
from symlab.plots.panels import over_repeats, stacked_panels

BETAS = (0.0, 0.9, 0.95)


def momentum_table(run=None, shift=0.0):
    rows = [
        {"step": step, "beta": beta, "part": part, "pairwise": 0.5 + beta / 10 + shift, "pairwise_error": 0.01}
        | {"agreement": 0.6 - beta / 10, "agreement_std": 0.02, "drift_start": 1 - step / 100}
        for step in (0, 10, 20)
        for beta in BETAS
        for part in ("all", "w1 x w1")
    ]
    table = pd.DataFrame(rows)
    return table if run is None else table.assign(run=run)


def local_table(seeds=(0, 1, 2)):
    rows = []
    for seed in seeds:
        for step in (0, 10):
            rows.append({"seed": seed, "step": step, "reference": "step", "cosine": None, "share": 0.3})
            for i, name in enumerate(("gradient", "ggn", "structured_ggn", "structured_gradient_root")):
                cosine = 0.1 * i + 0.1 * seed
                rows.append({"seed": seed, "step": step, "reference": name, "cosine": cosine, "share": 0.9 * cosine})
    return pd.DataFrame(rows)


def saved(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    figure.savefig(io.BytesIO(), format="pdf")
    return buffer.getvalue()


def labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_momentum_has_a_line_per_beta_in_each_panel():
    figure = factor_momentum(momentum_table(), {}, title="factors of 10 nets, $x")
    assert saved(figure)[:4] == b"\x89PNG"
    assert figure.get_size_inches()[0] == 3.4
    assert [len(axes.lines) for axes in figure.axes] == [3, 3, 3]
    np.testing.assert_allclose(figure.axes[0].lines[1].get_ydata(), 0.59)
    np.testing.assert_allclose(figure.axes[2].lines[0].get_ydata(), [1.0, 0.9, 0.8])
    assert labels(figure) == ["no memory (beta 0)", "beta 0.9", "beta 0.95", "±1 error; ±1 std over nets"]
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((0.49, 0.51))


def test_momentum_of_several_runs_is_their_mean_and_spread():
    table = pd.concat([momentum_table("a", 0.0), momentum_table("b", 0.2)], ignore_index=True)
    figure = factor_momentum(table, {}, title="t")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), 0.6)
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((0.6 - 0.02**0.5, 0.6 + 0.02**0.5))
    assert labels(figure)[-1] == "±1 std over 2 runs"


def test_momentum_of_a_part():
    table = momentum_table()
    table.loc[table["part"] == "w1 x w1", "pairwise"] = 0.1
    figure = factor_momentum(table, {}, title="t", part="w1 x w1")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), 0.1)
    with pytest.raises(ValueError, match="part='w2': the table has all, w1 x w1"):
        factor_momentum(table, {}, title="t", part="w2")


def test_local_curvature_puts_the_exact_and_the_structured_beside_each_other():
    figure = local_curvature(local_table(), {}, title="t")
    assert saved(figure)[:4] == b"\x89PNG"
    exact, structured = figure.axes
    assert [line.get_ydata()[0] for line in exact.lines] == pytest.approx([0.1, 0.2])  # gradient, ggn
    assert [line.get_ydata()[0] for line in structured.lines] == pytest.approx([0.1, 0.3, 0.4])
    assert exact.lines[1].get_color() == structured.lines[1].get_color()
    assert exact.lines[0].get_linestyle() == "--"
    assert exact.get_ylim() == structured.get_ylim()
    assert labels(figure)[-1] == "±1 std over 3 seeds"
    band = exact.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((0.0, 0.2))
    assert len(labels(figure)) == 4  # gradient, ggn, gradient root, the band


def test_shares_include_the_step_itself():
    figure = local_curvature(local_table(seeds=(0,)), {}, title="t", y="share")
    assert [len(axes.lines) for axes in figure.axes] == [3, 4]
    assert "the optimizer's step" in labels(figure)
    assert not any("std" in label for label in labels(figure))


def test_bad_tables():
    with pytest.raises(ValueError, match="nothing to draw"):
        factor_momentum(momentum_table().iloc[:0], {}, title="t")
    with pytest.raises(ValueError, match="no column cosine: this figure is for runs of local-curvature"):
        local_curvature(local_table().drop(columns="cosine"), {}, title="t")
    with pytest.raises(ValueError, match="y must be one of cosine, share, got 'loss'"):
        local_curvature(local_table(), {}, title="t", y="loss")
    with pytest.raises(ValueError, match="holds 'newton'"):
        local_curvature(local_table().replace("ggn", "newton"), {}, title="t")
    with pytest.raises(ValueError, match="must be positive"):
        stacked_panels("t", [], {"a": "b"}, 3.4, 0.0, "x")


def test_over_repeats_leaves_out_steps_without_a_number():
    table = pd.DataFrame({"seed": [0, 0, 1, 1], "step": [0, 1, 0, 1], "y": [1.0, None, 3.0, None]})
    found = over_repeats(table, "y", ["run", "seed"], None)
    assert found.to_dict("list") == {"step": [0], "mean": [2.0], "half": [pytest.approx(2**0.5)]}
    single = over_repeats(table[table["seed"] == 0].assign(error=0.5), "y", ["seed"], "error")
    assert single.to_dict("list") == {"step": [0], "mean": [1.0], "half": [0.5]}
