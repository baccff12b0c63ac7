"""The figures of the jobs convergence and sharpness: what they draw, on made-up tables."""

import io
import math

import numpy as np
import pandas as pd
import pytest

from symlab.plots.curvature_scales import curvature_scales
from symlab.plots.edge_of_stability import edge_of_stability
from symlab.plots.layer_terms import layer_terms
from symlab.plots.path_panels import path_panels
from symlab.plots.variant_grid import decades, over_starts

STEPS = (0, 1, 10, 100)
LR = {"lr": 0.1, "level": 0.5}


def path():
    rows = []
    for variant, power in (("good", 0.5), ("bad", -0.1)):
        for scale in (1.0, 10.0):
            for seed in (0, 1, 2):
                for step in STEPS:
                    value = scale * (1 + 0.1 * seed) * (1 + step) ** -power
                    dead = variant == "bad" and scale == 10.0 and step == 100
                    row = {"variant": variant, "scale": scale, "seed": seed, "step": step, "alive": not dead}
                    row |= {"loss": math.nan if dead else value, "regularity": value, "bound": value / 2}
                    row |= {"hessian_largest": value, "hessian_smallest": -2 * value, "lipschitz": None}
                    rows.append(row | {"first_norm": value, "rows": "given"})
    return pd.DataFrame(rows)


def layers():
    table = path()
    parts = [table.assign(layer=name, term=table["bound"] * share) for name, share in (("first", 0.9), ("block2", 0.1))]
    return pd.concat(parts, ignore_index=True)


def drawn(figure):
    """The figure can be written; its axes that hold anything."""
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    return [axes for axes in figure.axes if axes.lines]


def heights(axes, colour):
    (line,) = [line for line in axes.lines if line.get_color() == colour and line.get_linestyle() == "-"]
    return line.get_xdata(), line.get_ydata()


def test_path_panels():
    good, bad = drawn(path_panels(path(), LR, title="t", y="loss", guide="level"))
    assert (good.get_title(), bad.get_title()) == ("good", "bad")
    x, y = heights(good, "#0072B2")
    np.testing.assert_allclose(x, [1, 2, 11, 101])
    np.testing.assert_allclose(y, [1.1 * (1 + step) ** -0.5 for step in STEPS])
    assert len(heights(bad, "#D55E00")[0]) == 3  # the starts that died have no more points
    assert any(line.get_ydata()[0] == 0.5 for line in good.lines)
    (band,) = [c.get_paths()[0].vertices[:, 1] for c in good.collections[:1]]
    assert (band.min(), band.max()) == (pytest.approx(101**-0.5), pytest.approx(1.2))


def test_guides():
    edge = drawn(path_panels(path(), LR, title="t", y="hessian_largest", guide="edge"))[0]
    assert any(line.get_ydata()[0] == 20 for line in edge.lines)
    quarter = drawn(path_panels(path(), LR, title="t", y="first_norm", guide="quarter"))[0]
    x, y = quarter.lines[-1].get_data()
    assert y[1] / y[0] == pytest.approx((x[1] / x[0]) ** 0.25)
    second = drawn(path_panels(path(), LR, title="t", y="regularity", second="bound"))[0]
    assert sum(line.get_linestyle() == "--" for line in second.lines) == 2


def test_layer_terms():
    good, _ = drawn(layer_terms(layers(), LR, title="t"))
    np.testing.assert_allclose(heights(good, "#0072B2")[1][0], 1.1 * 0.45)
    np.testing.assert_allclose(heights(good, "#D55E00")[1][0], 1.1 * 0.05)
    np.testing.assert_allclose(heights(good, "#000000")[1][0], 1.1)
    low = drawn(layer_terms(layers().assign(term=1e-30), LR, title="t", floor=1e-9))[0]
    np.testing.assert_allclose(heights(low, "#0072B2")[1], 1e-9)


def test_curvature_scales():
    control = path().assign(rows="beyond", hessian_largest=1e5)
    trained = path().assign(step=5, hessian_largest=1e5)
    (axes,) = drawn(curvature_scales(pd.concat([path(), control, trained]), LR, title="t", most=23.0))
    x, y = heights(axes, "#0072B2")
    np.testing.assert_allclose(x, [1, 10])
    np.testing.assert_allclose(y, [2 * 1.2, 23.0])  # 2 x 1.2 x 10 is above the most
    assert any(line.get_ydata()[0] == 20 for line in axes.lines)


def test_edge_of_stability():
    above, below = drawn(edge_of_stability(path(), LR, title="t"))
    np.testing.assert_allclose(above.lines[0].get_ydata()[0], np.median([1, 1.1, 1.2, 10, 11, 12]))
    assert any(line.get_ydata()[0] == 20 for line in above.lines)
    assert below.get_ylabel() == "loss"


def test_over_starts_leaves_out_what_is_not_finite():
    table = pd.DataFrame({"step": [0, 0, 0, 1, 1], "loss": [1.0, 3.0, math.inf, math.nan, 2.0]})
    found = over_starts(table, "loss")
    assert found.to_dict("list") == {"x": [0, 1], "median": [2.0, 2.0], "low": [1.0, 2.0], "high": [3.0, 2.0]}


def test_limits_do_not_follow_what_blows_up():
    table = pd.DataFrame({"step": [0, 0, 1], "loss": [1.0, 2.0, 1e200]})
    assert decades(table, "loss", 1e3) == (1.0, 1e4)
    assert decades(table.assign(loss=0.0), "loss") == (1e-1, 1e1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: path_panels(path(), LR, title="t", y="speed"), "speed"),
        (lambda: path_panels(path(), LR, title="t", guide="half"), "half"),
        (lambda: path_panels(path(), {}, title="t", guide="edge"), "lr"),
        (lambda: path_panels(path().drop(columns="alive"), LR, title="t"), "alive"),
        (lambda: path_panels(path(), LR, title="t", width_in=0), "width_in"),
        (lambda: layer_terms(layers(), LR, title="t", scale=3.0), "scale=3"),
        (lambda: layer_terms(layers(), LR, title="t", floor=0.0), "floor"),
        (lambda: curvature_scales(path(), {}, title="t"), "lr"),
        (lambda: edge_of_stability(path(), {}, title="t"), "lr"),
        (lambda: edge_of_stability(path().head(0), LR, title="t"), "no rows"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
