"""Statements against made-up measurements: each can hold and fail."""

import math

import pytest

from symlab.curvature.convergence_rows import first_layer, known, recorded_steps
from symlab.curvature.theorem_table import (
    Measured,
    below_level,
    gradient_bound,
    growth,
    layerwise_bound,
    monotone,
    positivity,
    slope,
    small_steps,
    smoothness,
    theorem_rows,
)
from tests.curvature.test_many_starts import net

STEPS = (0, 10, 100, 1000)


def row(step=0, scale=1.0, seed=0, **cells):
    usual = {"loss": 1.0 / (1 + step), "regularity": 2.0, "bound": 1.0, "largest": 10.0, "output_ratio": 3.0}
    usual |= {"hessian_largest": 4.0, "hessian_smallest": -1.0, "lipschitz": 2.0, "alive": True, "rises": 0}
    usual |= {"hessian_error": 0.5}
    return {"step": step, "scale": scale, "seed": seed, "first_norm": (1 + step) ** 0.2} | usual | cells


def path(scales=(1.0, 10.0), **cells):
    return [row(step, scale, **cells) for scale in scales for step in STEPS]


def measured(rows, draws=(), level=0.01):
    return Measured(rows, list(draws), level, lr=0.1)


def test_bound():
    found = layerwise_bound(measured(path()))
    assert (found.measured, found.low, found.high, found.of, found.verdict) == (2.0, 2.0, 2.0, 8, "holds")
    broken = layerwise_bound(measured([*path(), row(bound=2.001)]))
    assert broken.verdict == "fails"
    rounding = layerwise_bound(measured([row(regularity=1e-31, bound=2e-31)]))
    assert (rounding.verdict, rounding.of) == ("holds", 0)
    lost = layerwise_bound(measured([row(regularity=0.0, bound=1.0)]))  # no ratio, and yet a counterexample
    assert (lost.verdict, lost.of) == ("fails", 0)
    assert layerwise_bound(measured([row(regularity=None, bound=None)])).verdict == "unknown"
    draws = [row(bound=3.0) | {"rows": "repeated"}]
    assert layerwise_bound(measured(path(), draws)).verdict == "holds"  # on data that break the conditions
    assert layerwise_bound(measured(path(), [row(bound=3.0) | {"rows": "given"}])).verdict == "fails"


def test_positivity():
    assert positivity(measured(path())).verdict == "holds"
    zero = positivity(measured([*path(), row(regularity=1e-30)]))
    assert (zero.verdict, zero.measured) == ("fails", 1e-30)
    huge = positivity(measured([*path(), row(regularity=0.5, largest=1e30)]))
    assert (huge.verdict, huge.of) == ("holds", 8)  # rounding alone makes more than that: it says nothing
    assert positivity(measured([row(regularity=None)])).verdict == "unknown"


def test_gradient_bound():
    assert gradient_bound(measured(path())).low == 1.5
    assert gradient_bound(measured([*path(), row(output_ratio=1.9)])).verdict == "fails"


def test_smoothness():
    flat = [row(scale=scale, hessian_largest=5.0) for scale in (1.0, 10.0, 100.0, 1000.0)]
    found = smoothness(measured(flat))
    assert (found.measured, found.of, found.verdict) == (pytest.approx(0.0), 3, "holds")
    grows = smoothness(measured([row(scale=s, hessian_smallest=-(s**2)) for s in (1.0, 10.0, 100.0)]))
    assert (grows.measured, grows.verdict) == (pytest.approx(2.0, rel=1e-2), "fails")
    drawn = smoothness(measured(flat, [row(scale=1000.0, hessian_largest=1e6) | {"rows": "given"}]))
    assert drawn.verdict == "fails"
    later = smoothness(measured([*flat, row(1, scale=1000.0, hessian_largest=1e6)]))
    assert later.verdict == "holds"
    control = smoothness(measured(flat, [row(scale=1000.0, hessian_largest=1e6) | {"rows": "beyond"}]))
    assert control.verdict == "holds"
    assert smoothness(measured([row()])).verdict == "unknown"


def test_small_steps():
    found = small_steps(measured([*path((1.0,)), *path((10.0,), hessian_smallest=-9.5)]))
    assert (found.measured, found.low, found.of) == (pytest.approx(0.5), pytest.approx(0.225), 2)  # 10 and 4.5 of 20
    assert found.verdict == "holds"
    for cells in ({"hessian_largest": 19.6}, {"lipschitz": 21.0}, {"hessian_largest": None, "lipschitz": 21.0}):
        assert small_steps(measured([*path(), row(7, **cells)])).verdict == "fails"
    gone = {"hessian_largest": None, "hessian_smallest": None, "hessian_error": None, "lipschitz": None}
    assert small_steps(measured([*path(), row(7, **gone)])).high == pytest.approx(0.225)
    assert small_steps(measured([row(**gone)])).verdict == "unknown"


def test_monotone():
    assert monotone(measured(path())).verdict == "holds"
    found = monotone(measured([*path((1.0,)), *path((10.0,), rises=3)]))
    assert (found.measured, found.low, found.high, found.of, found.verdict) == (0.5, 0, 3, 2, "fails")
    assert monotone(measured(path(alive=False))).verdict == "fails"


def test_below_level():
    assert below_level(measured(path())).verdict == "holds"
    assert below_level(measured(path(), level=1e-9)).verdict == "not yet"
    assert below_level(measured(path(rises=1), level=1e-9)).verdict == "fails"
    stuck = below_level(measured([*path((1.0,)), *path((10.0,), loss=1.5)]))
    assert (stuck.measured, stuck.high, stuck.verdict) == (0.5, 1.5, "fails")
    dead = [row(step, 10.0, alive=step < 1000, loss=None if step == 1000 else 1.0) for step in STEPS]
    assert below_level(measured([*path((1.0,)), *dead])).verdict == "fails"


def test_growth():
    rows = [row(step, first_norm=max(step, 1) ** 0.2) for step in STEPS]
    assert growth(measured(rows)).measured == pytest.approx(0.2)
    fast = [row(step, 10.0, first_norm=max(step, 1) ** 0.4) for step in STEPS]
    found = growth(measured([*rows, *fast]))
    assert (found.high, found.verdict) == (pytest.approx(0.4), "fails")
    early = [row(step, 10.0, first_norm=1e3 if step < 100 else 2e3) for step in STEPS]
    assert growth(measured(early)).verdict == "holds"  # what happens before the last tenfold does not count
    assert growth(measured(path(alive=False))).verdict == "unknown"


def test_rows_of_the_table():
    table = theorem_rows({"good": measured(path()), "bad": measured(path(rises=1))}, {"monotone": ["good"]})
    assert len(table) == 16
    found = {(r["statement"], r["variant"]): (r["promised"], r["verdict"]) for r in table}
    assert found["monotone", "good"] == (True, "holds")
    assert found["monotone", "bad"] == (False, "fails")
    assert found["bound", "bad"] == (True, "holds")


def test_slope():
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)


def test_recorded_steps():
    assert recorded_steps(1000, 5) == [0, 1, 10, 100, 1000]
    assert recorded_steps(10, 2) == [0, 10]
    assert recorded_steps(1, 16) == [0, 1]
    assert recorded_steps(6, 30) == [0, 1, 2, 3, 4, 5, 6]


def test_numbers_that_are_not_finite_are_unknown():
    assert known({"a": math.nan, "b": math.inf, "c": 1.0, "d": "x"}) == {"a": None, "b": None, "c": 1.0, "d": "x"}


def test_where_the_first_layer_stands():
    assert first_layer(net()) == [slice(0, 20)]
    assert first_layer(net().first) == [slice(0, 20)]
