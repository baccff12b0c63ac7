"""Statistics of a comparison against computations by hand, enumeration of all signs, and scipy."""

import itertools
import json
import math
import sys

import numpy as np
import pytest

from symlab.comparison.inference import bootstrap_interval, holm, mean_ranks, signed_rank_p
from symlab.comparison.statistics import cost_rows, sensitivity, summary_rows, target_rows

scipy_stats = pytest.importorskip("scipy.stats")
INF = math.inf


def results(values, metric="test_loss"):
    """optimizer -> values by seed; "diverged" and "failed" instead of a number, None: no such run."""
    return [
        {
            "optimizer": name,
            "seed": seed,
            "status": value if isinstance(value, str) else "completed",
            metric: None if isinstance(value, str) else value,
        }
        for name, column in values.items()
        for seed, value in enumerate(column)
        if value is not None
    ]


def p_by_enumeration(differences):
    """Two-sided p of the signed-rank sum over all 2^n signs of the differences that are not zero."""
    sizes = [abs(d) for d in differences]
    ranks = [sum(other < size for other in sizes) + (sum(other == size for other in sizes) + 1) / 2 for size in sizes]
    kept = [rank for rank, d in zip(ranks, differences, strict=True) if d != 0]
    observed = sum(rank for rank, d in zip(ranks, differences, strict=True) if d > 0)
    sums = [
        sum(rank for rank, sign in zip(kept, signs, strict=True) if sign)
        for signs in itertools.product((False, True), repeat=len(kept))
    ]
    below = sum(value <= observed for value in sums) / len(sums)
    above = sum(value >= observed for value in sums) / len(sums)
    return min(1.0, 2 * min(below, above))


@pytest.mark.parametrize(
    "differences",
    [
        [1.0],
        [1.0, -2.0],
        [0.3, 0.1, -0.2, 0.5, 0.7, -0.05],
        [1.0, 1.0, -1.0, 2.0, 2.0],  # ties
        [0.0, 0.0, 1.0, -3.0, 2.0],  # zeros are ranked, then left out
        [0.0, 0.0],
        [INF, INF, -INF, 0.5, -0.1],  # diverged runs: the largest, tied
        [-0.1 * k for k in range(1, 11)],
    ],
)
def test_signed_rank_p_is_the_enumeration(differences):
    assert signed_rank_p(differences) == pytest.approx(p_by_enumeration(differences), abs=1e-14)


def test_signed_rank_p_is_scipys_where_there_are_no_ties():
    generator = np.random.default_rng(0)
    for n in (5, 12, 30):
        differences = generator.normal(0.3, 1, n)
        expected = scipy_stats.wilcoxon(differences, method="exact").pvalue
        assert signed_rank_p(differences) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("differences", [[], [1.0, math.nan]])
def test_signed_rank_p_needs_numbers(differences):
    with pytest.raises(ValueError, match="paired test"):
        signed_rank_p(differences)


def test_mean_ranks():
    np.testing.assert_array_equal(mean_ranks(np.array([3.0, 1.0, 3.0, INF, 2.0])), [3.5, 1, 3.5, 5, 2])


def test_holm_by_hand():
    # sorted .01 .02 .03 .04 -> 4 x .01, max(., 3 x .02), max(., 2 x .03), max(., .04)
    assert holm([0.04, None, 0.01, 0.03, 0.02]) == pytest.approx([0.06, None, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None]) == [None]


def test_interval_is_scipys_and_does_not_depend_on_order_or_scale():
    values = [0.5, 0.1, 0.9, 0.3, 0.35]
    expected = scipy_stats.bootstrap(
        (np.sort(values),), np.mean, n_resamples=5000, random_state=np.random.default_rng(3)
    ).confidence_interval
    found = bootstrap_interval(values, 0.95, 5000, 3)
    assert found == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert bootstrap_interval(values[::-1], 0.95, 5000, 3) == found
    huge = bootstrap_interval([1e200 * value for value in values], 0.95, 5000, 3)
    assert huge == pytest.approx([1e200 * end for end in found])


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, 2.0], (None, None)), ([1.0, 2.0, INF], (None, None)), ([2.0] * 4, (2.0, 2.0)), ([0.0] * 3, (0.0, 0.0))],
)
def test_interval_where_there_is_little_to_resample(values, expected):
    assert bootstrap_interval(values, 0.95, 200, 0) == expected


@pytest.mark.parametrize(("confidence", "low", "high"), [(0.95, 0.87, 0.95), (0.8, 0.72, 0.81)])
def test_coverage_of_the_interval_for_ten_seeds(confidence, low, high):
    """Of the mean of 10 lognormal losses (sigma 0.3): a little less than stated, as for any bootstrap of 10 values."""
    generator, truth, hits = np.random.default_rng(1), math.exp(0.3**2 / 2), 0
    for trial in range(600):
        start, end = bootstrap_interval(np.exp(0.3 * generator.standard_normal(10)), confidence, 1000, trial)
        hits += start <= truth <= end
    assert low <= hits / 600 <= high


def test_without_scipy_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"pip install 'symlab\[compare\]'"):
        bootstrap_interval([1.0, 2.0, 4.0], 0.95, 100, 0)
    assert bootstrap_interval([1.0, 2.0], 0.95, 100, 0) == (None, None)  # nothing to compute, nothing needed


def test_summary_by_hand():
    table = results({"gd": [2.0, 4.0, 8.0], "adam": [1.0, 1.0, 2.0]})
    gd, adam = summary_rows(table, "test_loss", "gd", resamples=500)
    assert gd["optimizer"] == "gd"
    assert (gd["runs"], gd["completed"], gd["diverged"], gd["failed"]) == (3, 3, 0, 0)
    assert gd["mean"] == pytest.approx(14 / 3)
    assert gd["std"] == pytest.approx(math.sqrt(((2 - 14 / 3) ** 2 + (4 - 14 / 3) ** 2 + (8 - 14 / 3) ** 2) / 2))
    assert (gd["median"], gd["min"], gd["max"]) == (4.0, 2.0, 8.0)
    assert 2 <= gd["low"] < gd["mean"] < gd["high"] <= 8
    assert (gd["ratio"], gd["ratio_low"], gd["p"], gd["p_holm"]) == (1.0, None, None, None)
    assert adam["pairs"] == 3
    assert adam["ratio"] == pytest.approx((0.5 * 0.25 * 0.25) ** (1 / 3))
    assert 0.25 <= adam["ratio_low"] < adam["ratio"] < adam["ratio_high"] <= 0.5
    assert adam["p"] == adam["p_holm"] == 0.25  # all three of one sign: 2 / 2^3


def test_the_test_is_on_logarithms_and_pairs_seeds_whatever_the_order_of_rows():
    generator = np.random.default_rng(5)
    a, b = np.exp(generator.normal(0, 2, 9)), np.exp(generator.normal(0.5, 2, 9))
    table = results({"a": a.tolist(), "b": b.tolist()})
    expected = scipy_stats.wilcoxon(np.log(b) - np.log(a), method="exact").pvalue
    plain = scipy_stats.wilcoxon(b - a, method="exact").pvalue
    assert expected != pytest.approx(plain)
    rows = {row["optimizer"]: row for row in summary_rows(table, "test_loss", "a", resamples=300)}
    assert rows["b"]["p"] == pytest.approx(expected)
    shuffled = [table[i] for i in generator.permutation(len(table))]
    again = {row["optimizer"]: row for row in summary_rows(shuffled, "test_loss", "a", resamples=300)}
    assert again["b"] == pytest.approx(rows["b"])


def test_values_that_are_not_positive_are_tested_as_they_are_and_have_no_ratio():
    a, b = [0.0, 1.0, 2.0, 3.0, 5.0], [0.5, 0.9, 2.4, 3.3, 5.05]
    row = summary_rows(results({"a": a, "b": b}), "test_loss", "a", resamples=300)[1]
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == (None, None, None)
    assert row["p"] == pytest.approx(p_by_enumeration([y - x for x, y in zip(a, b, strict=True)]))


@pytest.mark.parametrize(("higher", "sign"), [(False, 1), (True, -1)])
def test_diverged_runs_count_as_the_worst(higher, sign):
    values = {
        "a": [0.1, 0.2, 0.3, 0.4, "diverged"],
        "b": [0.2, "failed", "diverged", 0.45, "diverged"],
    }
    a, b = summary_rows(results(values), "test_loss", "a", higher_is_better=higher, resamples=300)
    assert (b["runs"], b["completed"], b["diverged"], b["failed"]) == (5, 2, 2, 1)
    assert [b[key] for key in ("mean", "std", "low", "high", "ratio", "ratio_low")] == [None] * 6
    assert a["median"] == (0.2 if higher else 0.3)
    assert b["median"] == sign * INF
    assert (b["max"], a["max"]) == ((0.45, 0.4) if higher else (INF, INF))
    differences = [math.log(2), sign * INF, sign * INF, math.log(0.45 / 0.4), 0.0]
    assert b["p"] == pytest.approx(p_by_enumeration(differences))


def test_one_seed_has_no_spread_and_no_test():
    a, b = summary_rows(results({"a": [0.1], "b": [0.2]}), "test_loss", "a")
    assert [a[key] for key in ("mean", "std", "low", "high", "median")] == [0.1, None, None, None, 0.1]
    assert (b["ratio"], b["ratio_low"], b["p"], b["p_holm"]) == (pytest.approx(2.0), None, None, None)


def test_only_common_seeds_are_compared():
    values = {"a": [0.1, 0.2, 0.4, 0.8], "b": [0.2, None, 0.8, 1.6]}
    b = summary_rows(results(values), "test_loss", "a", resamples=300)[1]
    assert (b["runs"], b["pairs"]) == (3, 3)
    assert b["ratio"] == pytest.approx(2.0)
    assert (b["ratio_low"], b["ratio_high"]) == pytest.approx((2.0, 2.0))
    none = summary_rows(results({"a": [0.1, None], "b": [None, 0.2]}), "test_loss", "a")[1]
    assert (none["pairs"], none["ratio"], none["p"]) == (0, None, None)


def test_holm_counts_all_but_the_reference():
    a = [1.0 + 0.1 * k for k in range(6)]
    values = {
        "a": a,
        "b": [2 * v for v in a],
        "c": [3 * v for v in a],
        "d": [v + (-1) ** k * 0.01 for k, v in enumerate(a)],
    }
    rows = summary_rows(results(values), "test_loss", "a", resamples=100)
    assert [row["p"] for row in rows[:3]] == [None, 2 / 64, 2 / 64]
    assert [row["p_holm"] for row in rows[:3]] == [None, 6 / 64, 6 / 64]


@pytest.mark.parametrize(
    ("table", "keys", "words"),
    [
        (results({"a": [1.0]}), {"reference": "c"}, "reference must be one of a, got 'c'"),
        (results({"a": [1.0]}) * 2, {}, "two rows for a, seed 0"),
        (results({"a": ["running"]}), {}, "status must be one of completed, diverged, failed, got 'running'"),
        (results({"a": [1.0]}, "test_accuracy"), {}, "completed without a number test_loss"),
        (results({"a": [math.nan]}), {}, "completed without a number test_loss"),
        (results({"a": [1.0]}), {"confidence": 95}, "confidence must lie between 0 and 1, got 95"),
    ],
)
def test_tables_that_cannot_be_right(table, keys, words):
    with pytest.raises(ValueError, match=words):
        summary_rows(table, "test_loss", **({"reference": "a"} | keys))


def test_targets_count_those_that_never_arrive():
    reached = {"gd": [(10, 1.0), (30, 3.0), (None, None)], "symo": [(4, 0.5), (6, 0.7), (5, 0.6)]}
    table = [
        {"optimizer": name, "seed": seed, "target": "0.01", "level": level, "step": step, "seconds": seconds}
        for name, hits in reached.items()
        for seed, (level, (step, seconds)) in enumerate(zip((0.01, 0.011, 0.012), hits, strict=True))
    ] + [{"optimizer": "gd", "seed": 0, "target": "0.001", "level": 0.001, "step": None, "seconds": None}]
    gd, symo, never = target_rows(table)
    assert (gd["optimizer"], gd["target"], gd["runs"], gd["reached"]) == ("gd", "0.01", 3, 2)
    assert (gd["steps_median"], gd["steps_min"], gd["steps_max"], gd["seconds_median"]) == (20, 10, 30, 2.0)
    assert (gd["level_min"], gd["level_max"]) == (0.01, 0.012)
    assert (symo["reached"], symo["steps_median"], symo["seconds_max"]) == (3, 5, 0.7)
    assert (never["reached"], never["steps_median"], never["seconds_min"]) == (0, None, None)


def test_cost_ratios_are_taken_within_a_repeat():
    """Repeat 1 ran while the machine was twice as slow: the ratios do not notice."""
    cost = [
        {"optimizer": name, "repeat": repeat, "step_time_s": slow * step, "update_time_s": slow * update}
        for repeat, slow in enumerate((1, 2, 1))
        for name, step, update in (("adam", 0.010, 0.002), ("kfac", 0.040, 0.030))
    ]
    adam, kfac = cost_rows(cost, [{"optimizer": "kfac", "state_mib": 3.5, "peak_mib": 120.0}], "adam")
    assert (kfac["repeats"], kfac["step_ms"], kfac["update_ms"]) == (3, pytest.approx(40), pytest.approx(30))
    assert [kfac[f"step_ratio{end}"] for end in ("", "_low", "_high")] == pytest.approx([4, 4, 4])
    assert kfac["update_ratio"] == pytest.approx(15)
    assert (adam["step_ratio"], adam["state_mib"], kfac["state_mib"]) == (1, None, 3.5)
    with pytest.raises(ValueError, match="reference must be one of adam, kfac"):
        cost_rows(cost, [], "symo")


def test_sensitivity_counts_settings_that_completed_with_every_seed():
    def trial(settings, seed, value, status="completed"):
        return {"optimizer": "a", "seed": seed, "settings": json.dumps(settings), "status": status, "value": value}

    table = [
        trial({"lr": 0.1, "beta": 0.9}, 0, 1.0),
        trial({"beta": 0.9, "lr": 0.1}, 1, 3.0),  # the same setting: mean 2
        trial({"lr": 0.2}, 0, 2.1),
        trial({"lr": 0.2}, 1, 2.3),  # mean 2.2: just within 10 %
        trial({"lr": 0.3}, 0, 2.3),
        trial({"lr": 0.3}, 1, 2.3),
        trial({"lr": 0.4}, 0, 0.1),
        trial({"lr": 0.4}, 1, None, "diverged"),  # its best seed alone does not count
        trial({"lr": 0.5}, 0, 0.1),  # one seed is missing
        trial({"lr": 9.0}, 0, None, "pruned"),
    ]
    dead = {"optimizer": "b", "seed": 0, "settings": "{}", "status": "failed", "value": None}
    a, b = sensitivity([*table, dead])
    assert a == {"optimizer": "a", "settings": 6, "complete": 3, "within_10_percent": 2, "share": 2 / 6, "best": 2.0}
    assert b == {"optimizer": "b", "settings": 1, "complete": 0, "within_10_percent": 0, "share": 0.0, "best": None}
