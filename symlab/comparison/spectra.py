"""Singular values of variants of a net, measured along training in several trials: numbers and paired tests.

A table has one row per trial, variant and step: trial, variant, step, loss (None behind the last update), and the
columns of a spectrum, None where it was not measured. Within a trial all variants have the same weights and rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from symlab.comparison.inference import signed_rank_p

Row = dict[str, Any]
Table = Sequence[Mapping[str, Any]]
TESTED = ("mean", "median", "min", "condition", "square_variation", "loss")
"""Quantities of the paired tests: columns of the spectrum, and the mean loss over the window of steps. The smallest
value is compared where it is resolved, that is where there is a condition number."""
SIGNIFICANT = 0.05
MOST_SPREAD = 1e200  # beyond it squares overflow


def number_names(variants: Sequence[str], columns: Sequence[str], window: Sequence[int] | None) -> list[str]:
    """Keys of `summary_numbers`."""
    quantities = [*columns, "loss"] if window else [*columns]
    names = [f"{quantity}_{variant}" for variant in variants for quantity in quantities]
    for early, late in combinations(variants, 2):
        for quantity in tested(window):
            names += [f"gain_{quantity}_{late}_over_{early}", f"p_{quantity}_{late}_over_{early}"]
        names += [f"smaller_loss_{late}_than_{early}"] if window else []
    return names


def tested(window: Sequence[int] | None) -> list[str]:
    """TESTED, without the loss where nothing was trained."""
    return [name for name in TESTED if window or name != "loss"]


def summary_numbers(
    rows: Table, variants: Sequence[str], columns: Sequence[str], window: Sequence[int] | None
) -> dict[str, dict[str, float | None]]:
    """Of each column and variant the median over the trials (of each trial the mean over its measured steps), with mean
    and spread (standard deviation). Of two variants gain, the median difference later - earlier over the trials that
    have both, and p, the exact two-sided signed-rank test. smaller_loss: the share of the window's steps at which the
    later variant's loss is smaller with p < .05.

    loss: mean over the steps `window` [first, last], both included; of a trial that diverged infinite.
    """
    numbers: dict[str, dict[str, float | None]] = {}
    for variant in variants:
        for column in columns:
            numbers[f"{column}_{variant}"] = _over_trials(trial_means(rows, variant, column))
        if window:
            numbers[f"loss_{variant}"] = _over_trials(window_losses(rows, variant, window))
    for row in paired_rows(rows, variants, window):
        name = f"{row['quantity']}_{row['later']}_over_{row['earlier']}"
        if row["quantity"] in TESTED:
            numbers[f"gain_{name}"] = {"value": row["difference"], "spread": None}
            numbers[f"p_{name}"] = {"value": row["p"], "spread": None}
    if window:
        for early, late in combinations(variants, 2):
            share = _share_smaller(rows, early, late, window)
            numbers[f"smaller_loss_{late}_than_{early}"] = {"value": share, "spread": None}
    return numbers


def paired_rows(rows: Table, variants: Sequence[str], window: Sequence[int] | None) -> list[Row]:
    """One row per pair of variants and quantity (TESTED, and loss_<step> for each step of the window).

    difference: median of later - earlier over the `pairs` trials that have both; larger: in how many it is positive; p:
    exact two-sided Wilcoxon signed-rank test, None without a pair.
    """
    found: list[Row] = []
    steps = range(window[0], window[1] + 1) if window else ()
    for early, late in combinations(variants, 2):
        samples = {name: (_sample(rows, early, name, window), _sample(rows, late, name, window))
                   for name in tested(window)}  # fmt: skip
        for step in steps:
            samples[f"loss_{step}"] = tuple(window_losses(rows, v, (step, step)) for v in (early, late))  # type: ignore[assignment]
        for name, (first, second) in samples.items():
            found.append({"earlier": early, "later": late, "quantity": name, **_test(first, second)})
    return found


def trial_means(rows: Table, variant: str, column: str) -> dict[Any, float]:
    """trial -> mean of the column over the steps at which it was measured; trials without any are left out."""
    values: dict[Any, list[float]] = {}
    for row in rows:
        if row["variant"] == variant and row.get(column) is not None:
            values.setdefault(row["trial"], []).append(row[column])
    return {trial: statistics.fmean(found) for trial, found in values.items()}


def window_losses(rows: Table, variant: str, window: Sequence[int]) -> dict[Any, float]:
    """trial -> mean loss over the steps of the window; infinite where one is missing: the trial diverged."""
    wanted = range(window[0], window[1] + 1)
    losses: dict[Any, list[float]] = {}
    for row in rows:
        if row["variant"] == variant:
            own = losses.setdefault(row["trial"], [])
            if row["step"] in wanted and row["loss"] is not None:
                own.append(row["loss"])
    return {trial: statistics.fmean(own) if len(own) == len(wanted) else math.inf for trial, own in losses.items()}


def _sample(rows: Table, variant: str, quantity: str, window: Sequence[int] | None) -> dict[Any, float]:
    if quantity == "loss" and window:
        return window_losses(rows, variant, window)
    if quantity == "min":
        rows = [row for row in rows if row.get("condition") is not None]
    return trial_means(rows, variant, quantity)


def _test(early: Mapping[Any, float], late: Mapping[Any, float]) -> Row:
    pairs = [(early[trial], late[trial]) for trial in early if trial in late]
    differences = [0.0 if a == b else b - a for a, b in pairs]
    return {
        "pairs": len(pairs),
        "difference": statistics.median(differences) if pairs else None,
        "larger": sum(difference > 0 for difference in differences),
        "p": signed_rank_p(differences) if pairs else None,
    }


def _share_smaller(rows: Table, early: str, late: str, window: Sequence[int]) -> float:
    tests = [
        _test(*(window_losses(rows, variant, (step, step)) for variant in (early, late)))
        for step in range(window[0], window[1] + 1)
    ]
    smaller = [test["p"] is not None and test["p"] < SIGNIFICANT and test["difference"] < 0 for test in tests]
    return sum(smaller) / len(smaller)


def _over_trials(by_trial: Mapping[Any, float]) -> dict[str, float | None]:
    values = list(by_trial.values())
    if not values:
        return {"value": None, "mean": None, "spread": None}
    finite = all(abs(value) < MOST_SPREAD for value in values)
    return {
        "value": statistics.median(values),
        "mean": statistics.fmean(values) if finite else None,
        "spread": statistics.stdev(values) if finite and len(values) > 1 else None,
    }
