"""Numbers and paired tests over trials, against scipy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from symlab.comparison.spectra import number_names, paired_rows, summary_numbers

COLUMNS = ("mean", "median")


def table(shift, trials=8, steps=4, missing=()):
    """Two variants; the second one's numbers are `shift` larger, and its losses smaller, with noise."""
    rng, rows = np.random.default_rng(0), []
    for trial in range(trials):
        for variant, by in (("a", 0.0), ("b", shift)):
            for step in range(steps + 1):
                value = rng.normal() + by
                row = {"trial": trial, "variant": variant, "step": step, "loss": None, "mean": None, "median": None}
                if step < steps and (trial, variant, step) not in missing:
                    row["loss"] = 5 - value
                if step < 2:
                    row |= {"mean": value, "median": 2 * value}
                rows.append(row)
    return rows


def means(rows, variant, column, steps):
    own = [row for row in rows if row["variant"] == variant and row["step"] in steps]
    return [np.mean([row[column] for row in own if row["trial"] == t]) for t in sorted({row["trial"] for row in rows})]


def test_against_scipy():
    rows = table(0.8)
    numbers = summary_numbers(rows, ["a", "b"], COLUMNS, (1, 3))
    assert sorted(numbers) == sorted(number_names(["a", "b"], COLUMNS, (1, 3)))
    for column, steps in (("mean", (0, 1)), ("median", (0, 1)), ("loss", (1, 2, 3))):
        a, b = (np.array(means(rows, variant, column, steps)) for variant in "ab")
        assert numbers[f"{column}_b"]["value"] == pytest.approx(np.median(b))
        assert numbers[f"{column}_b"]["spread"] == pytest.approx(np.std(b, ddof=1))
        assert numbers[f"gain_{column}_b_over_a"]["value"] == pytest.approx(np.median(b - a))
        p = stats.wilcoxon(b - a, mode="exact").pvalue
        assert numbers[f"p_{column}_b_over_a"]["value"] == pytest.approx(p)
    singles = []
    for step in (1, 2, 3):
        a, b = (np.array(means(rows, variant, "loss", (step,))) for variant in "ab")
        p = stats.wilcoxon(b - a, mode="exact").pvalue
        singles.append(p < 0.05 and np.median(b - a) < 0)
        (row,) = [row for row in paired_rows(rows, ["a", "b"], (1, 3)) if row["quantity"] == f"loss_{step}"]
        assert row["p"] == pytest.approx(p)
        assert (row["pairs"], row["larger"]) == (8, int((b > a).sum()))
    assert numbers["smaller_loss_b_than_a"]["value"] == pytest.approx(np.mean(singles))


def test_all_losses_smaller():
    assert summary_numbers(table(50.0), ["a", "b"], COLUMNS, (1, 3))["smaller_loss_b_than_a"]["value"] == 1
    assert summary_numbers(table(-50.0), ["a", "b"], COLUMNS, (1, 3))["smaller_loss_b_than_a"]["value"] == 0


def test_a_diverged_trial_counts_as_the_worst():
    rows = table(5.0, missing={(3, "b", 2), (3, "b", 3)})
    numbers = summary_numbers(rows, ["a", "b"], COLUMNS, (1, 3))
    assert (numbers["loss_b"]["mean"], numbers["loss_b"]["spread"]) == (None, None)
    assert math.isfinite(numbers["loss_b"]["value"])
    (row,) = [row for row in paired_rows(rows, ["a", "b"], (1, 3)) if row["quantity"] == "loss"]
    assert (row["pairs"], row["larger"]) == (8, 1)
    losses = np.array(means(rows, "a", "loss", (1, 2, 3)))
    kept = [row for row in rows if row["trial"] != 3]
    differences = np.array(means(kept, "b", "loss", (1, 2, 3))) - np.delete(losses, 3)
    worst = np.append(differences, 1e9)
    assert row["p"] == pytest.approx(stats.wilcoxon(worst, mode="exact").pvalue)


def test_without_training_there_is_no_loss():
    names = number_names(["a", "b"], COLUMNS, None)
    assert not any("loss" in name for name in names)
    assert sorted(summary_numbers(table(1.0), ["a", "b"], COLUMNS, None)) == sorted(names)
