"""Spaces: what is refused, the three scales, boxes around a point, edges."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symlab.search import Dimension, Space

COORDINATES = {  # written out once more, independently of symlab
    "linear": lambda x: x,
    "log": math.log10,
    "log_complement": lambda x: -math.log10(1 - x),
}
WIDE = {  # scale -> values well inside what it can hold
    "linear": st.floats(-1e3, 1e3),
    "log": st.floats(1e-6, 1e3),
    "log_complement": st.floats(0.05, 0.9999),
}
few = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def ranges(draw: Any) -> tuple[str, float, float, float]:
    """A scale, low, high and a value between them."""
    scale = draw(st.sampled_from(sorted(WIDE)))
    low, middle, high = sorted(draw(st.lists(WIDE[scale], min_size=3, max_size=3, unique=True)))
    coordinate = COORDINATES[scale]
    if coordinate(high) - coordinate(low) < 1e-3:
        high = {"linear": high + 1, "log": high * 10, "log_complement": 1 - (1 - high) / 10}[scale]
    return scale, low, high, middle


def one(scale: str, low: float, high: float, **limits: float) -> Dimension:
    return Space.of({"x": {"low": low, "high": high, "scale": scale, **limits}}).dimensions[0]


@few
@given(ranges())
def test_unit_coordinates_follow_the_scale(drawn: tuple[str, float, float, float]) -> None:
    scale, low, high, value = drawn
    dimension, coordinate = one(scale, low, high), COORDINATES[scale]
    expected = (coordinate(value) - coordinate(low)) / (coordinate(high) - coordinate(low))
    assert dimension.to_unit(value) == pytest.approx(expected, abs=1e-9)
    assert dimension.from_unit(dimension.to_unit(value)) == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert (dimension.from_unit(0), dimension.from_unit(1)) == (low, high)


@pytest.mark.parametrize(
    ("scale", "low", "high", "middle"),
    [("linear", 1, 3, 2.0), ("log", 0.01, 100, 1.0), ("log_complement", 0.9, 0.999, 0.99)],
)
def test_the_middle_of_each_scale(scale: str, low: float, high: float, middle: float) -> None:
    assert one(scale, low, high).from_unit(0.5) == pytest.approx(middle, rel=1e-12)


def test_a_log_complement_near_one_keeps_its_digits() -> None:
    dimension = one("log_complement", 0.9, 1 - 1e-10)
    assert 1 - dimension.from_unit(0.5) == pytest.approx(10**-5.5, rel=1e-9)


@few
@given(ranges(), st.floats(0.1, 3))
def test_around_has_the_point_in_the_middle_and_the_width_times_the_factor(
    drawn: tuple[str, float, float, float], factor: float
) -> None:
    """Where the scale itself does not cut it."""
    scale, low, high, value = drawn
    coordinate = COORDINATES[scale]
    box = Space.of({"x": {"low": low, "high": high, "scale": scale}}).around({"x": value}, factor).dimensions[0]
    half = factor * (coordinate(high) - coordinate(low)) / 2
    least, most = (coordinate(1e-3), 12.0) if scale == "log_complement" else (-math.inf, math.inf)
    assert box.low is not None
    assert box.high is not None
    assert coordinate(box.low) == pytest.approx(max(coordinate(value) - half, least), abs=1e-6)
    assert coordinate(box.high) == pytest.approx(min(coordinate(value) + half, most), abs=1e-4)


def test_around_may_leave_the_declared_range_but_not_the_limits() -> None:
    space = Space.of(
        {
            "lr": {"low": 0.01, "high": 10, "scale": "log", "max": 100},
            "final": {"low": 1e-4, "high": 1, "scale": "log", "max": 1},
            "beta": {"low": 0.8, "high": 0.99, "scale": "log_complement"},
            "width": {"low": 0, "high": 1, "scale": "linear", "min": 0},
            "kind": {"choices": ["a", "b"]},
        }
    )
    point = {"lr": 10.0, "final": 1.0, "beta": 0.8, "width": 0.25, "kind": "b"}
    lr, final, beta, width, kind = space.around(point, 1.0).dimensions
    assert (lr.low, lr.high) == (pytest.approx(10**-0.5), 100)  # 10^1.5 / 2 decades on each side, cut at 100
    assert (final.low, final.high) == (pytest.approx(1e-2), 1)
    assert beta.low == pytest.approx(1 - 0.2 * 20**0.5)
    assert beta.high == pytest.approx(1 - 0.2 / 20**0.5)
    assert (width.low, width.high) == (0, 0.75)
    assert kind.choices == ("a", "b")
    wider = space.around(point, 5.0).dimensions[2]
    assert (wider.low, wider.high) == (1e-3, pytest.approx(1 - 0.2 / 20**2.5))
    assert space.around(point, 40.0).dimensions[2].high == 1 - 1e-12


def test_around_keeps_scales_and_limits_for_the_next_round() -> None:
    space = Space.of({"lr": {"low": 1, "high": 10, "scale": "log", "max": 20}})
    again = space.around({"lr": 10.0}, 2).around({"lr": 20.0}, 1)
    assert again.dimensions[0].max == 20
    assert again.dimensions[0].high == 20


@pytest.mark.parametrize(
    ("point", "factor", "said"),
    [
        ({"lr": 1.0}, 0.0, "factor must be positive"),
        ({"lr": 1.0}, math.nan, "factor must be positive"),
        ({}, 1.0, "no value for lr"),
        ({"lr": -1.0}, 1.0, "lr=-1.0"),
        ({"lr": 200.0}, 1.0, "lr=200.0: the range stays within"),
    ],
)
def test_around_refuses(point: dict[str, float], factor: float, said: str) -> None:
    space = Space.of({"lr": {"low": 0.1, "high": 10, "scale": "log", "max": 100}})
    with pytest.raises(ValueError, match=said):
        space.around(point, factor)


@pytest.mark.parametrize(
    ("scale", "tried", "inside", "edge"),
    [
        ("log", [1e-2, 1e-1, 1, 10], [1e-1, 1], [1e-2, 10, 8, 0.012]),
        ("linear", [0, 50, 100], [6, 50, 94], [0, 4, 96, 100]),
        ("log_complement", [0.9, 0.99, 0.999, 0.9999], [0.99, 0.999], [0.9, 0.9999, 0.99988, 0.91]),
    ],
)
def test_edges(scale: str, tried: list[float], inside: list[float], edge: list[float]) -> None:
    low, high = (0.5, 0.99999) if scale == "log_complement" else (1e-5, 1e5)
    space = Space.of({"x": {"low": low, "high": high, "scale": scale}})
    points = [{"x": value} for value in tried if scale != "linear" or value > 0] + [{"x": tried[0]}]
    assert [space.edges(points, {"x": value}) for value in inside] == [[]] * len(inside)
    assert [space.edges(points, {"x": value}) for value in edge] == [["x"]] * len(edge)


def test_edges_of_few_points() -> None:
    space = Space.of({"x": {"low": 1, "high": 2, "scale": "log"}, "kind": {"choices": [1, 2]}})
    assert space.edges([], {"x": 1.5, "kind": 1}) == ["x"]  # nothing lies beyond
    assert space.edges([{"x": 1.1}, {"x": 1.9}, {"other": 3}], {"x": 1.5, "kind": 1}) == []
    assert space.edges([{"x": 1.1}], {"x": 1.5, "kind": 2}) == ["x"]
    assert space.edges([{"x": 1.1}], {"kind": 2}) == []  # what the best point does not have


def test_a_key_at_its_own_limit_is_not_at_an_edge() -> None:
    bounded = Space.of({"final": {"low": 1e-4, "high": 1, "scale": "log", "max": 1}})
    points = [{"final": value} for value in (1e-4, 1e-2, 0.97)]
    assert bounded.edges(points, {"final": 0.97}) == []
    assert bounded.edges(points, {"final": 1e-4}) == ["final"]
    free = Space.of({"final": {"low": 1e-4, "high": 1, "scale": "log"}})
    assert free.edges(points, {"final": 0.97}) == ["final"]
    decay = Space.of({"beta": {"low": 0.5, "high": 0.9, "scale": "log_complement", "max": 1, "min": 0}})
    assert decay.edges([{"beta": 0.5}], {"beta": 0.9}) == ["beta"]  # 1 is infinitely far on this scale


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (3, "a.lr=3: a dimension is"),
        ({}, "a.lr.low is missing"),
        ({"low": 1, "high": 2}, "a.lr.scale is missing"),
        ({"low": 1, "high": 2, "scale": "logarithmic"}, "a.lr.scale=logarithmic: expected one of linear, log, log_com"),
        ({"low": 1, "high": 2, "scale": "log", "step": 1}, "a.lr.step: a dimension has no such key"),
        ({"choices": [1], "low": 1}, "a.lr.low: a dimension has no such key"),
        ({"low": 2, "high": 2, "scale": "log"}, "a.lr: low must be below high, got low=2, high=2"),
        ({"low": 3, "high": 2, "scale": "linear"}, "a.lr: low must be below high"),
        ({"low": 0, "high": 2, "scale": "log"}, "a.lr.low=0: on the scale log it must be positive"),
        ({"low": 0.5, "high": 1, "scale": "log_complement"}, "a.lr.high=1: on the scale log_complement it must be in"),
        ({"low": 0, "high": 0.5, "scale": "log_complement"}, "a.lr.low=0"),
        ({"low": math.nan, "high": 2, "scale": "log"}, "a.lr.low=nan: expected a finite number"),
        ({"low": 1, "high": math.inf, "scale": "log"}, "a.lr.high=inf: expected a finite number"),
        ({"low": "1", "high": 2, "scale": "log"}, "a.lr.low=1: expected a finite number"),
        ({"low": True, "high": 2, "scale": "log"}, "a.lr.low=True"),
        ({"low": 1, "high": 2, "scale": "log", "max": 1.5}, "must lie within min and max"),
        ({"low": 1, "high": 2, "scale": "log", "min": 1.5}, "must lie within min and max"),
        ({"choices": []}, "a.lr.choices=.*at least one value"),
        ({"choices": "ab"}, "a.lr.choices=ab: expected a list"),
        ({"choices": [1, 1]}, "a choice stands twice"),
        ({"choices": [[1]]}, "a choice is a number, a text"),
    ],
)
def test_what_a_space_refuses(entry: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Space.of({"lr": entry}, prefix="a.")


def test_choices_keep_their_types() -> None:
    dimension = Space.of({"x": {"choices": [1, True, 1.0, "1", None]}}).dimensions[0]
    for index, choice in enumerate((1, True, 1.0, "1", None)):
        found = dimension.from_unit(dimension.to_unit(choice))
        assert (type(found), found) == (type(choice), choice)
        assert dimension.to_unit(choice) == pytest.approx((index + 0.5) / 5)
    assert dimension.from_unit(1) is None
    with pytest.raises(ValueError, match="x=2: the choices are"):
        dimension.to_unit(2)


def test_coordinates_outside_are_refused() -> None:
    dimension = one("log", 1, 2)
    for unit in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="a unit coordinate is in"):
            dimension.from_unit(unit)
    assert dimension.to_unit(4) == pytest.approx(2)
    with pytest.raises(ValueError, match="x=0: on the scale log"):
        dimension.to_unit(0)
