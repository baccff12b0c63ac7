"""The protocol lasso_1d, on small settings, against the closed form, the hyperbolic solution and scikit-learn."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from symlab.protocols.lasso_1d import lasso_1d
from symlab.protocols.lasso_1d_numbers import exponents, transition
from symlab.protocols.study import Ground
from tests.protocols.watching import Calm

SMALL = {"rows": 10, "starts": 3, "updates": 4000, "lr": 0.1, "points": 5} | {
    "xs": (0.5, 1.5),
    "ys": (0.5, 1.5),
    "time_lrs": (0.002, 0.004),
}


def ground(seeds=(0, 1)):
    return Ground(tuple(seeds), torch.device("cpu"), torch.float32)


def frames(study):
    tables = {}
    for part in study.parts():
        for name, rows in study.run(part, Calm()).items():
            tables.setdefault(name, []).extend(rows)
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


@pytest.fixture(scope="module")
def small():
    study = lasso_1d(ground(), **SMALL)
    return study, frames(study)


def test_solutions_are_the_soft_threshold(small):
    study, tables = small
    rows = tables["metrics"]
    product = rows[(rows["arm"] == "u w") & ((rows["relative"] - 1).abs() > 0.015)]
    np.testing.assert_allclose(product["size"], np.maximum(1 - product["relative"], 0), atol=1e-6)
    x, y = study.problem.x.numpy(), study.problem.y.numpy()
    square, cross = (x * x).mean(1), (x * y).mean(1)
    assert cross[0] > 0 > cross[1]  # every other seed has negative correlation
    for seed in (0, 1):
        plain = rows[(rows["arm"] == "one parameter") & (rows["seed"] == seed)]
        gammas = plain["relative"].to_numpy() * abs(cross[seed])
        np.testing.assert_allclose(plain["size"], square[seed] / (square[seed] + gammas), rtol=1e-6)


def test_numbers_hold_what_the_protocol_claims(small):
    study, tables = small
    numbers = study.numbers(tables)
    assert list(numbers) == study.number_names()
    value = {name: number["value"] for name, number in numbers.items()}
    assert abs(value["transition"] - 1) < 0.01
    assert value["lasso_transition"] == 1
    assert value["wrong_sign"] == value["control_zeros"] == value["never_learnt"] == 0
    assert value["control_smallest"] > 0.1
    assert value["lasso_gap"] < 1e-6
    assert value["plain_exponent_x"] == pytest.approx(-2, abs=0.05)
    assert value["plain_exponent_y"] == pytest.approx(0, abs=0.05)
    assert value["plain_exponent_lr"] == pytest.approx(-1, abs=0.05)


def test_times_are_those_of_the_flow(small):
    """One parameter: ln((1 - s) / (1 - f)) / (2 lr x^2); a balanced product: logistic at the rate 4 lr x y."""
    times = small[1]["times"]
    assert len(times) == 2 * 2 * 2 * 8
    fixed = times[(times["start"] == "fixed") & (times["arm"] == "one parameter")]
    share = 1e-3 * fixed["x"] / fixed["y"]
    flow = np.log((1 - share) / 0.5) / (2 * fixed["lr"] * fixed["x"] ** 2)
    np.testing.assert_allclose(fixed["updates"], flow, rtol=0.02)
    product = times[(times["start"] == "fixed") & (times["arm"] == "u w")]
    share = 1e-3 * product["x"] / product["y"]
    balanced = np.log((1 - share) / share) / (4 * product["lr"] * product["x"] * product["y"])
    ratio = product["updates"] / balanced
    assert ratio.max() < 1.02  # unequal factors learn faster: u^2 + w^2 > 2 u w
    assert ratio.min() > 0.7
    assert set(np.round(product["scale"] * product["lr"] * product["x"] * product["y"], 9)) == {1.0}


@pytest.mark.parametrize(
    ("largest", "found"),
    [
        ([1, 1e-1, 1e-3, 1e-9], 2 + 1 / 6),  # log10 from -3 to -9 passes -4
        ([1, 1, 0, 0], 2.0),
        ([1, 1e-5, 1, 1e-9], 2 + 4 / 9),  # for good
        ([1, 1, 1, 1], None),
        ([0, 0, 0, 0], None),
    ],
)
def test_transition(largest, found):
    measured = transition(np.arange(4.0), np.array(largest, float), 1e-4)
    assert measured == (None if found is None else pytest.approx(found))


def test_exponents_are_least_squares():
    rows = [
        {"x": x, "y": y, "lr": lr, "updates": 3 * x**-2 * y**0.5 / lr}
        for x in (0.5, 1, 2)
        for y in (1, 4)
        for lr in (0.1, 0.2)
    ]
    table = pd.DataFrame(rows)
    assert exponents(table) == pytest.approx({"x": -2, "y": 0.5, "lr": -1})
    table.loc[0, "updates"] = math.nan
    assert exponents(table) is None


def test_a_stopped_part_has_no_rows():
    study = lasso_1d(ground((0,)), **SMALL)
    assert [study.run(part, Calm(stop_at=1)) for part in study.parts()] == [None, None]


def test_a_stopped_transition_goes_on_exactly():
    study = lasso_1d(ground((0,)), **(SMALL | {"updates": 1200}))
    whole = study.run("transition", Calm())
    watch = Calm(stop_at=3)
    assert study.run("transition", watch) is None
    assert watch.kept["updates"] == 1000
    assert study.run("transition", Calm(kept=watch.kept)) == whole
    assert study.run("transition", Calm(due=True)) == whole


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rows": 1}, "rows must be a whole number from 2 on, got 1"),
        ({"lr": 0}, "lr must be positive and finite, got 0"),
        ({"start": math.nan}, "start must be positive and finite, got nan"),
        ({"noise": -1}, "noise must be finite and at least 0, got -1"),
        ({"tolerance": 1}, "tolerance must lie strictly between 0 and 1, got 1"),
        ({"xs": (1,)}, "xs: an exponent needs at least two values"),
        ({"time_lrs": (0.1, 0.5)}, "time_lrs must be small"),
        ({"time_start": 0.5}, "time_start must be positive and so small"),
    ],
)
def test_values_out_of_range(keys, message):
    with pytest.raises(ValueError, match=message):
        lasso_1d(ground(), **{**SMALL, **keys})
