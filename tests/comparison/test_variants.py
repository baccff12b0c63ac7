"""Variants: the last epoch's mean loss against all batch losses, the paired tests against scipy."""

import math

import numpy as np
import pytest

from symlab.comparison.inference import PairedT, paired_t
from symlab.comparison.variants import Trial, best_rows, final_epoch_loss, measured, natural, pair_rows, variant_rows

scipy_stats = pytest.importorskip("scipy.stats")


def metrics(batch_losses, evaluated, per_epoch):
    """Rows as training writes them: at step 0 and at the steps `evaluated`, with the mean of the losses since."""
    rows = [{"step": 0, "epoch": 0.0, "batch_loss": None}]
    for step in evaluated:
        since = batch_losses[rows[-1]["step"] : step]
        rows.append({"step": step, "epoch": step / per_epoch, "batch_loss": float(np.mean(since))})
    return rows


@pytest.mark.parametrize(
    ("evaluated", "exact"),
    [
        ((7, 14, 21), True),  # once per epoch
        ((7, 14, 17, 18, 21), True),  # more often, at uneven distances
        ((2, 14, 21), True),
        ((14, 16, 20), True),  # ends within the third epoch
        ((3, 13, 16, 21), False),  # a row across the start of the last epoch
        ((10, 21), False),
    ],
)
def test_loss_of_the_last_epoch(evaluated, exact):
    losses = np.random.default_rng(0).uniform(0.1, 2.0, 21)
    found = final_epoch_loss(metrics(losses, evaluated, 7))
    last = losses[14 : evaluated[-1]]
    if exact:
        assert found == pytest.approx(last.mean(), rel=1e-12)
    else:
        before, across = [step for step in (0, *evaluated) if step < 14][-1], [s for s in evaluated if s > 14]
        spread_out = np.concatenate([np.full(b - a, losses[a:b].mean()) for a, b in zip([before, *across], across)])  # noqa: B905
        assert found == pytest.approx(spread_out[14 - before :].mean(), rel=1e-12)
        assert found != pytest.approx(last.mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"step": 0, "epoch": 0.0, "batch_loss": None}], "no update"),
        ([{"step": 4, "epoch": 1.0, "batch_loss": 1.0}], "no row lies in the last epoch"),
        (
            [{"step": 0, "epoch": 0.0, "batch_loss": None}, {"step": 4, "epoch": 1.0, "batch_loss": None}],
            "no batch_loss at step 4",
        ),
    ],
)
def test_loss_of_an_epoch_that_is_not_there(rows, words):
    with pytest.raises(ValueError, match=words):
        final_epoch_loss(rows)


def test_measures_of_a_run():
    rows = metrics(np.linspace(2, 1, 8), (4, 8), 4)
    assert set(measured(rows)) == {"final_epoch_loss"}
    for row, accuracy in zip(rows, (0.1, 0.8, 0.7), strict=True):
        row["test_accuracy"] = accuracy
    assert measured(rows) | {"final_epoch_loss": None} == {
        "final_epoch_loss": None,
        "test_accuracy": 0.7,
        "best_test_accuracy": 0.8,
    }


@pytest.mark.parametrize("scale", [1.0, 1e-250, 1e250])
def test_paired_t_is_scipys(scale):
    a, b = np.random.default_rng(1).normal([[0.0], [0.4]], 1.0, (2, 9))
    found, right = paired_t(scale * (b - a), 0.9), scipy_stats.ttest_rel(b, a)
    low, high = right.confidence_interval(0.9)
    assert (found.t, found.p) == (pytest.approx(right.statistic), pytest.approx(right.pvalue))
    assert (found.low / scale, found.high / scale) == (pytest.approx(low), pytest.approx(high))
    assert found.mean / scale == pytest.approx((b - a).mean())
    assert found.effect_size == pytest.approx((b - a).mean() / (b - a).std(ddof=1))


def test_paired_t_without_a_spread():
    assert paired_t([], 0.95) == PairedT()
    assert paired_t([3.0], 0.95) == paired_t([3.0, 3.0, 3.0], 0.95) == PairedT(3.0)
    assert paired_t([0.0, 0.0], 0.95) == PairedT(0.0)
    with pytest.raises(ValueError, match="finite"):
        paired_t([1.0, math.inf], 0.95)


def trials(setting, variant, losses):
    """A trial per seed; None: diverged."""
    return [
        Trial(setting, variant, str(seed), loss is None, {} if loss is None else {"final_epoch_loss": loss})
        for seed, loss in enumerate(losses)
    ]


def test_pairs_are_tested_as_by_scipy_and_corrected_over_settings():
    draws = np.random.default_rng(2).normal(size=(4, 8))
    draws[1] -= 1.0
    every = [
        trial
        for (setting, variant), losses in zip(
            [("lr=0.1", "conv"), ("lr=0.1", "pool"), ("lr=0.02", "conv"), ("lr=0.02", "pool")], draws, strict=True
        )
        for trial in trials(setting, variant, losses)
    ]
    rows = pair_rows(every, "conv", 0.95)
    assert [row["setting"] for row in rows] == ["lr=0.02", "lr=0.1"]
    p_values = []
    for row, (a, b) in zip(rows, (draws[2:], draws[:2]), strict=True):
        t = scipy_stats.ttest_rel(b, a)
        p_values.append(scipy_stats.wilcoxon(b, a, method="exact").pvalue)
        assert row["p"] == row["p_completed"] == pytest.approx(p_values[-1])
        assert (row["t"], row["p_t"]) == (pytest.approx(t.statistic), pytest.approx(t.pvalue))
        assert (row["low"], row["high"]) == pytest.approx(tuple(t.confidence_interval(0.95)))
        assert row["difference"] == pytest.approx((b - a).mean())
        assert (row["baseline_mean"], row["variant_mean"]) == (pytest.approx(a.mean()), pytest.approx(b.mean()))
        assert row["better"] == (b < a).sum()
        assert (row["pairs"], row["completed_pairs"]) == (8, 8)
    least, largest = sorted(p_values)
    assert sorted(row["p_holm"] for row in rows) == pytest.approx(sorted([min(1, 2 * least), max(2 * least, largest)]))


def test_diverged_trials_count_as_worse_than_any_other():
    conv, pool = [None, None, 0.5, 0.6, None, 0.7], [0.4, 0.5, 0.6, 0.5, None, None]
    (row,) = pair_rows([*trials("all", "conv", conv), *trials("all", "pool", pool)], "conv", 0.95)
    assert (row["pairs"], row["completed_pairs"], row["baseline_diverged"], row["variant_diverged"]) == (6, 2, 3, 2)
    assert row["better"] == 3  # two that only conv lost, and 0.5 < 0.6
    # differences by seed: -inf, -inf, .1, -.1, 0, +inf; the ranks of their magnitudes, without that of 0:
    assert row["p"] == pytest.approx(by_signs([5, 5, 2.5, 2.5, 5], [-1, -1, 1, -1, 1]))
    assert row["difference"] == pytest.approx(0.0)
    lonely = pair_rows([*trials("all", "conv", [None]), *trials("all", "pool", [0.1])], "conv", 0.95)[0]
    assert (lonely["difference"], lonely["p"], lonely["p_t"], lonely["better"]) == (None, None, None, 1)


def by_signs(ranks, signs):
    """Two-sided p of the sum of positive ranks, over all signs."""
    sums = [sum(r for bit, r in enumerate(ranks) if number >> bit & 1) for number in range(2 ** len(ranks))]
    observed = sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign > 0)
    below, above = (np.mean([op(value, observed) for value in sums]) for op in (np.less_equal, np.greater_equal))
    return min(1.0, 2 * min(below, above))


def test_only_common_seeds_are_paired():
    conv = trials("all", "conv", [1.0, 2.0, 3.0])
    pool = [Trial("all", "pool", seed, False, {"final_epoch_loss": 0.5}) for seed in ("7", "2", "0")]
    (row,) = pair_rows([*conv, *pool], "conv", 0.95)
    assert (row["pairs"], row["baseline_mean"]) == (2, 2.0)
    assert pair_rows([*conv, *pool[:1]], "conv", 0.95) == []


def test_spread_and_missing_trials():
    every = [*trials("lr=0.1", "conv", [1.0, 2.0, 4.0, None]), *trials("lr=0.02", "conv", [5.0])]
    rows = variant_rows(every, {("lr=0.1", "pool"): "0, 1 (running)"})
    assert [(row["setting"], row["variant"]) for row in rows] == [
        ("lr=0.02", "conv"),
        ("lr=0.1", "conv"),
        ("lr=0.1", "pool"),
    ]
    one, four, none = rows
    assert (one["final_epoch_loss_mean"], one["final_epoch_loss_std"]) == (5.0, None)
    assert (four["trials"], four["completed"], four["diverged"], four["missing"]) == (4, 3, 1, None)
    assert four["final_epoch_loss_mean"] == pytest.approx(7 / 3)
    assert four["final_epoch_loss_std"] == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert (four["final_epoch_loss_min"], four["final_epoch_loss_max"]) == (1.0, 4.0)
    assert (none["trials"], none["missing"], none["final_epoch_loss_mean"]) == (0, "0, 1 (running)", None)


def test_the_best_setting_has_the_fewest_divergences_then_the_best_mean():
    every = [
        *trials("lr=0.2", "conv", [0.1, None]),
        *trials("lr=0.1", "conv", [0.3, 0.4]),
        *trials("lr=0.02", "conv", [0.5, 0.6]),
        *trials("lr=0.2", "pool", [0.1, 0.2]),
    ]
    rows = best_rows(variant_rows(every, {}), lambda setting: "")
    assert [(row["variant"], row["setting"], row["settings"]) for row in rows] == [
        ("conv", "lr=0.1", 3),
        ("pool", "lr=0.2", 1),
    ]
    assert rows[0]["mean"] == pytest.approx(0.35)
    apart = best_rows(variant_rows(every, {}), lambda setting: "fast" if setting == "lr=0.2" else "slow")
    assert [(row["part"], row["variant"], row["setting"]) for row in apart] == [
        ("slow", "conv", "lr=0.1"),
        ("fast", "conv", "lr=0.2"),
        ("fast", "pool", "lr=0.2"),
    ]


def test_the_best_accuracy_is_the_highest():
    rows = [
        Trial(f"lr={rate}", "conv", "0", False, {"final_epoch_loss": 1.0, "test_accuracy": accuracy})
        for rate, accuracy in ((0.1, 0.9), (0.2, 0.95))
    ]
    found = {row["measure"]: row["setting"] for row in best_rows(variant_rows(rows, {}), lambda setting: "")}
    assert found == {"final_epoch_loss": "lr=0.1", "test_accuracy": "lr=0.2"}


def test_numbers_sort_by_value():
    names = ["lr=0.1", "lr=1e-3", "lr=10", "lr=0.02", "adam", "lr=2"]
    assert sorted(names, key=natural) == ["adam", "lr=1e-3", "lr=0.02", "lr=0.1", "lr=2", "lr=10"]
