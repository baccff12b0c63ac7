"""The searches: which points they give, that the same seed gives the same, and what a bad point is worth."""

import itertools
import json
import math
import pickle
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from symlab.search import Sampler, Space, Tunable
from symlab.search.grid import grid
from symlab.search.optuna import optuna
from symlab.search.quasi_random import quasi_random

SPACE = Space.of(
    {
        "lr": {"low": 1e-3, "high": 10, "scale": "log"},
        "beta": {"low": 0.5, "high": 0.99, "scale": "log_complement"},
        "groups": {"choices": ["all", "none", "residual"]},
    }
)
SEARCHES = [grid, quasi_random, optuna]


def everything(sampler: Sampler, batch: int = 1) -> list[dict[str, Any]]:
    """All points, each told a value that depends on it."""
    points: list[dict[str, Any]] = []
    while True:
        asked = [point for point in (sampler.ask() for _ in range(batch)) if point is not None]
        if not asked:
            return points
        for point in asked:
            sampler.tell(point, (math.log(point["lr"]) - 0.3) ** 2 if "lr" in point else 0.0)
        points += asked


@pytest.mark.parametrize("search", SEARCHES)
def test_every_search_stays_inside_and_within_the_budget(search: Any) -> None:
    points = everything(search(SPACE, 24, 0))
    assert 12 <= len(points) <= 24
    for point in points:
        assert list(point) == ["lr", "beta", "groups"]
        assert type(point["lr"]) is type(point["beta"]) is float
        assert 1e-3 <= point["lr"] <= 10
        assert 0.5 <= point["beta"] <= 0.99
        assert json.loads(json.dumps(point)) == point
    assert {point["groups"] for point in points} == {"all", "none", "residual"}


@pytest.mark.parametrize("search", SEARCHES)
def test_the_same_seed_gives_the_same_points(search: Any) -> None:
    first, again, other = (everything(search(SPACE, 20, seed), batch=4) for seed in (2**62, 2**62, 4))
    assert first == again
    assert first != other  # of the grid: the points that fill it up


@pytest.mark.parametrize("search", SEARCHES)
def test_an_empty_space_gives_one_empty_point(search: Any) -> None:
    sampler = search(Space.of({}), 7, 0)
    assert [sampler.ask(), sampler.ask()] == [{}, None]
    assert not sampler.prunes
    assert sampler.should_stop({}, 3, 1.0) is False
    sampler.tell({}, 1.0)


@pytest.mark.parametrize("search", SEARCHES)
def test_told_in_another_order_and_only_once(search: Any) -> None:
    sampler = search(SPACE, 12, 0)
    points = [sampler.ask() for _ in range(6)]
    for point in reversed(points):
        sampler.tell(dict(reversed(point.items())), None)  # keys in another order are the same point
    with pytest.raises(ValueError, match="not asked for, or was told already"):
        sampler.tell(points[0], 1.0)
    with pytest.raises(ValueError, match="not asked for, or was told already"):
        sampler.should_stop({"lr": 0.123}, 1, 1.0)
    assert sampler.ask() is not None


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("trials", [0, -1, True, 2.0])
def test_a_budget_is_a_positive_whole_number(search: Any, trials: Any) -> None:
    with pytest.raises(ValueError, match="trials must be a whole number, at least 1"):
        search(SPACE, trials, 0)


def box(keys: int, choices: int = 0) -> Space:
    ranges: dict[str, Any] = {f"x{index}": {"low": 1, "high": 100, "scale": "log"} for index in range(keys)}
    return Space.of(ranges | ({"c": {"choices": list(range(choices))}} if choices else {}))


@pytest.mark.parametrize(
    ("keys", "choices", "trials", "counts"),
    [
        (1, 0, 7, [7]),
        (2, 0, 100, [10, 10]),
        (2, 0, 12, [4, 3]),
        (2, 0, 10, [3, 3]),
        (2, 0, 8, [3, 2]),
        (3, 0, 4, [2, 2, 1]),
        (3, 0, 1000, [10, 10, 10]),
        (3, 0, 999, [10, 10, 9]),
        (2, 3, 12, [2, 2, 3]),
        (1, 3, 3, [1, 3]),
        (0, 3, 9, [3]),
    ],
)
def test_the_rule_of_the_grid(keys: int, choices: int, trials: int, counts: list[int]) -> None:
    points = everything(grid(box(keys, choices), trials, 0, fill=False))
    names = [*(f"x{index}" for index in range(keys)), *(["c"] if choices else [])]
    values = [sorted({point[name] for point in points}) for name in names]
    assert [len(own) for own in values] == counts
    assert len(points) == math.prod(counts) <= trials
    assert Counter(tuple(point.values()) for point in points) == Counter(itertools.product(*values))
    for name, own in zip(names, values, strict=True):
        if name != "c":
            steps = [math.log10(value) for value in own]
            assert (steps[0], steps[-1]) == ((0, 2) if len(own) > 1 else (pytest.approx(1), pytest.approx(1)))
            assert steps == pytest.approx([2 * k / (len(own) - 1) if len(own) > 1 else 1 for k in range(len(own))])


def test_a_grid_has_room_for_all_choices() -> None:
    with pytest.raises(ValueError, match="trials must be at least 3"):
        grid(SPACE, 2, 0, fill=False)


@pytest.mark.parametrize("trials", [2, 5, 30])
def test_a_filled_grid_spends_the_whole_budget(trials: int) -> None:
    points = everything(grid(SPACE, trials, 0))
    assert len(points) == trials
    if trials == 30:
        assert points[: len(everything(grid(SPACE, trials, 0, fill=False)))] == everything(
            grid(SPACE, trials, 0, fill=False)
        )


def test_quasi_random_points_are_spread_evenly() -> None:
    """In base 2: each half, quarter, ... of each key gets the same number of 2^m points; so do the quadrants."""
    space = Space.of({name: {"low": 0, "high": 1, "scale": "linear"} for name in ("a", "b")})
    points = everything(quasi_random(space, 64, 5))
    for parts in (2, 8, 64):
        for name in ("a", "b"):
            assert set(Counter(int(point[name] * parts) for point in points).values()) == {64 // parts}
    assert set(Counter((int(p["a"] * 8), int(p["b"] * 8)) for p in points).values()) == {1}


def test_a_larger_quasi_random_budget_begins_with_the_smaller() -> None:
    assert everything(quasi_random(SPACE, 100, 1))[:21] == everything(quasi_random(SPACE, 21, 1))
    assert len(everything(quasi_random(SPACE, 1, 1))) == 1


def test_quasi_random_choices_are_equal_intervals() -> None:
    space = Space.of({"c": {"choices": ["a", "b", "c", "d"]}})
    counts = Counter(point["c"] for point in everything(quasi_random(space, 32, 0)))
    assert counts == {"a": 8, "b": 8, "c": 8, "d": 8}


def test_the_parzen_estimator_learns() -> None:
    """Later points lie nearer to the optimum at ln lr = 0.3 than the random ones, in the median."""
    points = everything(optuna(SPACE, 40, 0), batch=2)
    distance = sorted(abs(math.log(point["lr"]) - 0.3) for point in points[-12:])
    random = sorted(abs(math.log(point["lr"]) - 0.3) for point in points[:10])
    assert distance[6] < random[5] / 2


def test_a_diverged_point_is_worth_less_than_any_number() -> None:
    """Instead of None any value above all others gives the same points; to call the points good gives others."""
    runs = []
    for worst in (None, math.nan, 1e300, -1e300):
        sampler, points = optuna(SPACE, 30, 1), []
        while (point := sampler.ask()) is not None:
            sampler.tell(point, worst if point["lr"] > 0.1 else -math.log(point["lr"]))
            points.append(point)
        runs.append(points)
    assert runs[0] == runs[1] == runs[2]
    assert runs[0] != runs[3]


def test_the_order_of_telling_within_a_batch_changes_nothing() -> None:
    runs = []
    for order in (1, -1):
        sampler, points = optuna(SPACE, 40, 2), []
        for _ in range(10):
            batch = [sampler.ask() for _ in range(4)]
            for point in batch[::order]:
                assert point is not None
                sampler.tell(point, abs(math.log(point["lr"])))
            points += batch
        runs.append(points)
    assert runs[0] == runs[1]


def test_pruning_by_the_median() -> None:
    sampler = optuna(SPACE, 8, 0, startup_trials=3)
    assert sampler.prunes
    for value in (1.0, 2.0, 3.0):
        point = sampler.ask()
        assert point is not None
        assert not sampler.should_stop(point, 10, value)
        sampler.tell(point, value)
    bad, good = sampler.ask(), sampler.ask()
    assert bad is not None
    assert good is not None
    assert sampler.should_stop(bad, 10, 2.5)
    assert not sampler.should_stop(good, 10, 1.5)
    assert not sampler.should_stop(good, 10, 9.0)  # an update that was reported before
    sampler.tell(bad, None)
    sampler.tell(good, 1.5)
    assert sampler.ask() is not None


def test_without_pruning_nothing_is_stopped() -> None:
    sampler = optuna(SPACE, 8, 0, startup_trials=1, prune=False)
    assert not sampler.prunes
    for value in (1.0, 1e9):
        point = sampler.ask()
        assert point is not None
        assert not sampler.should_stop(point, 1, value)
        sampler.tell(point, value)


def test_a_point_that_comes_twice_is_told_twice() -> None:
    sampler = optuna(Space.of({"c": {"choices": ["only"]}}), 3, 0)
    points = [sampler.ask() for _ in range(3)]
    assert points == [{"c": "only"}] * 3
    for value in (1.0, None, math.nan):
        sampler.tell({"c": "only"}, value)


@pytest.mark.parametrize("startup", [0, -3])
def test_optuna_needs_a_random_start(startup: int) -> None:
    with pytest.raises(ValueError, match="startup_trials must be at least 1"):
        optuna(SPACE, 8, 0, startup_trials=startup)


@pytest.mark.parametrize(
    ("search", "package", "extra"), [("quasi_random", "scipy.stats", "compare"), ("optuna", "optuna", "optuna")]
)
def test_a_missing_package_is_named_with_its_extra(search: str, package: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from symlab.search.{search} import {search}\nfrom symlab.search import Space\n"
        f"{search}(Space.of(dict(lr=dict(low=1, high=2, scale='log'))), 4, 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        f"ImportError: search {search} needs {package.partition('.')[0]}: pip install 'symlab[{extra}]'" in done.stderr
    )


def power(base: float, *, exponent: float = 1.0, factor: float = 1.0) -> float:
    return factor * base**exponent


def test_a_tunable_is_called_like_a_partial_and_travels() -> None:
    tunable = Tunable(power, {"exponent": 2.0}, {"factor": {"low": 1, "high": 2, "scale": "log"}})
    assert (tunable(3.0), tunable(3.0, exponent=3.0, factor=2.0)) == (9.0, 54.0)
    assert (tunable.func, tunable.keywords, tunable.__name__) == (power, {"exponent": 2.0}, "power")
    assert pickle.loads(pickle.dumps(tunable)) == tunable
    assert Tunable(power).space == {}
    assert Space.of(tunable.space).dimensions[0].key == "factor"
