"""Mean and spread over runs, against numbers worked out by hand."""

import math

import pytest

from symlab.plots.spread import group_rows, target_rows


def test_group_rows():
    finals = {"a": [{"test_loss": 1.0}, {"test_loss": 2.0}, {"test_loss": 6.0}], "b": [{"test_loss": 5.0}]}
    first, second = group_rows(finals, ["test_loss"])
    assert first == {
        "group": "a",
        "runs": 3,
        "test_loss_n": 3,
        "test_loss_mean": 3.0,
        "test_loss_std": pytest.approx(math.sqrt(7)),
        "test_loss_min": 1.0,
        "test_loss_max": 6.0,
    }
    assert (second["test_loss_mean"], second["test_loss_std"]) == (5.0, None)


def test_cells_without_a_number_are_counted_out():
    row = group_rows({"a": [{"x": 2.0}, {"x": None}, {"x": math.nan}, {}]}, ["x", "y"])[0]
    assert (row["runs"], row["x_n"], row["x_mean"], row["y_n"], row["y_mean"]) == (4, 1, 2.0, 0, None)


def test_extreme_values():
    huge = group_rows({"a": [{"x": 1e300}, {"x": 3e300}]}, ["x"])[0]
    assert huge["x_std"] == pytest.approx(math.sqrt(2) * 1e300)
    infinite = group_rows({"a": [{"x": 1.0}, {"x": math.inf}]}, ["x"])[0]
    assert infinite["x_mean"] == math.inf
    assert math.isnan(infinite["x_std"])
    assert group_rows({"a": [{"x": 1.0}, {"x": 1.0}]}, ["x"])[0]["x_std"] == 0.0


def test_target_rows():
    def run(level, step, seconds):
        return {"target_losses": {"t": level}, "steps_to_target": {"t": step}, "seconds_to_target": {"t": seconds}}

    summaries = {"a": [run(0.1, 10, 1.0), run(0.2, 30, 3.0), run(0.3, None, None)], "b": [run(0.1, None, None), {}]}
    first, second = target_rows(summaries)
    assert first == {
        "group": "a",
        "target": "t",
        "level_min": 0.1,
        "level_max": 0.3,
        "runs": 3,
        "reached": 2,
        "steps_median": 20,
        "steps_min": 10,
        "steps_max": 30,
        "seconds_median": 2.0,
    }
    assert (second["runs"], second["reached"], second["steps_median"]) == (1, 0, None)
