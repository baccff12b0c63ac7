"""Aggregation over runs, against numbers worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from symlab.plots.curves import QUARTILE_BAND, RANGE_BAND, STD_BAND, aggregate, aggregate_medians, prepared


def rows(run: str, values: list, steps: list | None = None, group: str = "g") -> pd.DataFrame:
    steps = list(range(len(values))) if steps is None else steps
    times = [0.5 * step + len(run) for step in steps]
    return pd.DataFrame({"step": steps, "time_s": times, "test_loss": values, "run": run, "group": group})


def curve(*parts: pd.DataFrame, x: str = "step"):
    table = prepared(pd.concat(parts, ignore_index=True), x, ["test_loss"])
    return aggregate(table, x, "test_loss")


def test_one_run_is_itself():
    result = curve(rows("a", [3.0, 2.0, 1.0]))
    np.testing.assert_array_equal(result.mean, [3, 2, 1])
    np.testing.assert_array_equal(result.low, result.high)
    assert (result.runs, result.band, result.tails) == (1, "", ())


def test_two_runs_span_their_range():
    result = curve(rows("a", [3.0, 2.0]), rows("b", [1.0, 4.0]))
    np.testing.assert_array_equal(result.mean, [2, 3])
    np.testing.assert_array_equal(result.low, [1, 2])
    np.testing.assert_array_equal(result.high, [3, 4])
    assert result.band == RANGE_BAND


def test_three_runs_have_one_standard_deviation_cut_at_the_smallest():
    result = curve(rows("a", [1.0, 1.0]), rows("b", [2.0, 1.0]), rows("c", [6.0, 100.0]))
    std = [math.sqrt(7), math.sqrt(3267)]
    np.testing.assert_allclose(result.mean, [3, 34])
    np.testing.assert_allclose(result.high, np.array([3, 34]) + std)
    np.testing.assert_allclose(result.low, [1, 1])  # 3 - 2.6 and 34 - 57 lie below the smallest run
    assert result.band == STD_BAND
    inside = curve(rows("a", [1.0]), rows("b", [1.5]), rows("c", [1.5]), rows("d", [2.0]))
    np.testing.assert_allclose(inside.low, [1.5 - math.sqrt(0.5 / 3)])


def test_a_run_that_ends_early_does_not_move_the_mean():
    result = curve(rows("a", [3.0, 2.0, 1.0, 0.5]), rows("b", [5.0, 4.0]))
    np.testing.assert_array_equal(result.x, [0, 1])
    np.testing.assert_array_equal(result.mean, [4, 3])
    ((x, y),) = result.tails
    np.testing.assert_array_equal(x, [1, 2, 3])
    np.testing.assert_array_equal(y, [2, 1, 0.5])


def test_values_that_are_not_finite_and_empty_cells_get_no_mean():
    result = curve(rows("a", [3.0, math.inf, 1.0]), rows("b", [5.0, 4.0, None]))
    np.testing.assert_array_equal(result.x, [0])
    tails = {tuple(x): tuple(y) for x, y in result.tails}
    assert tails == {(0, 2): (3, 1), (0, 1): (5, 4)}


def test_runs_without_a_common_step_are_drawn_by_themselves():
    result = curve(rows("a", [3.0, 2.0], [0, 2]), rows("b", [5.0, 4.0], [1, 3]))
    assert len(result.mean) == 0
    assert len(result.tails) == 2


def test_time_is_averaged_over_runs_at_the_same_step():
    result = curve(rows("a", [3.0, 2.0]), rows("abc", [3.0, 2.0]), x="time_s")
    np.testing.assert_allclose(result.x, [2.0, 2.5])


def test_huge_values_do_not_overflow():
    result = curve(*(rows(name, [value]) for name, value in (("a", 1e200), ("b", 3e200), ("c", 5e200))))
    np.testing.assert_allclose(result.mean, [3e200])
    np.testing.assert_allclose(result.high, [5e200])


def test_text_cells_are_numbers_and_what_is_missing_is_named():
    table = pd.DataFrame({"step": ["0", "1"], "test_loss": ["2.5", "inf"]})
    ready = prepared(table, "step", ["test_loss"])
    assert ready["test_loss"].tolist()[0] == 2.5
    assert math.isnan(ready["test_loss"].tolist()[1])
    assert ready["run"].tolist() == ["", ""]
    with pytest.raises(ValueError, match=r"x must be one of step, epoch, time_s, got 'steps'"):
        prepared(table, "steps", ["test_loss"])
    with pytest.raises(ValueError, match=r"no column test_accuracy.*they have step, test_loss"):
        prepared(table, "step", ["test_accuracy"])
    with pytest.raises(ValueError, match="no rows"):
        prepared(table[:0], "step", ["test_loss"])


def test_medians_keep_runs_that_diverged():
    """Five runs, two of which end: they count as infinite, so that the median is the largest of the others."""
    losses = {"a": [4, 1], "b": [5, 2], "c": [6, 3], "d": [7, np.nan], "e": [8, np.inf]}
    rows = [
        {"run": run, "group": "g", "step": step, "test_loss": value}
        for run, values in losses.items()
        for step, value in enumerate(values)
    ]
    table = prepared(pd.DataFrame(rows), "step", ["test_loss"])
    found = aggregate_medians(table, "step", "test_loss")
    assert found.mean.tolist() == [6, 3]
    assert found.low.tolist() == [5, 2]
    assert found.high.tolist() == [7, 1e100]
    assert (found.band, found.runs, found.tails) == (QUARTILE_BAND, 5, ())
    four = table[table["run"] != "a"]  # two of four left: the median is infinite
    assert aggregate_medians(four, "step", "test_loss").x.tolist() == [0]
