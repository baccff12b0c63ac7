"""Rows of statistics from a comparison's tables: spread and paired tests, targets, cost, sensitivity.

A table is a sequence of mappings, column -> number, text or None (an empty cell).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from symlab.comparison.inference import bootstrap_interval, holm, signed_rank_p
from symlab.training.step_times import ratio

Row = dict[str, Any]
Table = Sequence[Mapping[str, Any]]
STATUSES = ("completed", "diverged", "failed")
SMALLEST_TEST = 2  # pairs from which a paired test is made
WITHIN = 0.1  # of the best value


def summary_rows(
    results: Table,
    metric: str,
    reference: str,
    *,
    higher_is_better: bool = False,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> list[Row]:
    """One row per optimizer, in order of first appearance: its `metric` over seeds, and against the `reference`.

    `results`: one row per run with optimizer, seed, status (completed, diverged, failed) and `metric`. Columns:

    - runs, completed, diverged, failed: how many.
    - mean, std (n - 1 in the divisor; None for one run), low, high: interval of the mean by the BCa bootstrap over
      seeds (`bootstrap_interval`; None for fewer than 3 runs); median, min, max.
    - pairs: seeds that this optimizer and the reference both have; only these are compared.
    - ratio: geometric mean over the pairs of value / reference's value; ratio_low, ratio_high: the interval of the mean
      log ratio by the same bootstrap. None where a value is not positive.
    - p: exact two-sided signed-rank test on the differences of the logarithms (of the values themselves where one is
      not positive); None for fewer than 2 pairs. p_holm: Holm-corrected over all optimizers but the reference.

    A run that diverged or failed is never dropped: it counts as the worst value there is, +inf (-inf if
    `higher_is_better`). Then mean, std, low, high and ratio are None; median, min, max and the test take it as it is: a
    pair in which one of the two ended so has the largest difference in that direction, one in which both did has 0.

    Raises ValueError for an unknown reference or status, two runs with one optimizer and seed, or a completed run
    without the metric; ImportError without scipy.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    worst = -math.inf if higher_is_better else math.inf
    values = _values_by_seed(results, metric, worst)
    if reference not in values:
        raise ValueError(f"reference must be one of {', '.join(values)}, got {reference!r}")

    def interval(sample: Sequence[float]) -> tuple[float | None, float | None]:
        return bootstrap_interval(sample, confidence, resamples, seed)

    rows = []
    for name, own in values.items():
        sample = list(own.values())
        low, high = interval(sample)
        statuses = [row["status"] for row in results if row["optimizer"] == name]
        row: Row = {"optimizer": name, "runs": len(sample)} | {word: statuses.count(word) for word in STATUSES}
        row |= _mean_and_std(sample) | {"low": low, "high": high}
        row |= {"median": float(np.median(sample)), "min": min(sample), "max": max(sample)}
        row |= {"pairs": len(sample), "ratio": 1.0, "ratio_low": None, "ratio_high": None, "p": None}
        rows.append(row if name == reference else row | _against(own, values[reference], interval))
    return [row | {"p_holm": p} for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True)]


def _values_by_seed(results: Table, metric: str, worst: float) -> dict[str, dict[Any, float]]:
    """optimizer -> seed -> value; what diverged or failed has the worst value."""
    values: dict[str, dict[Any, float]] = {}
    for row in results:
        name, seed, status, value = row["optimizer"], row["seed"], row["status"], row.get(metric)
        if status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {status!r} ({name}, seed {seed})")
        own = values.setdefault(name, {})
        if seed in own:
            raise ValueError(f"two rows for {name}, seed {seed}: each run of a comparison counts once")
        if status != "completed":
            own[seed] = worst
        elif isinstance(value, (int, float)) and not math.isnan(value):
            own[seed] = float(value)
        else:
            numbers = ", ".join(key for key, cell in row.items() if isinstance(cell, float))
            raise ValueError(f"{name}, seed {seed}: completed without a number {metric} ({value}); it has {numbers}")
    return values


def _mean_and_std(sample: Sequence[float]) -> Row:
    if not all(map(math.isfinite, sample)):
        return {"mean": None, "std": None}
    scale = max(map(abs, sample)) or 1.0  # squares of 1e200 overflow
    scaled = np.asarray(sample) / scale
    std = scale * float(scaled.std(ddof=1)) if len(sample) > 1 else None
    return {"mean": scale * float(scaled.mean()), "std": std}


def _against(own: Mapping[Any, float], reference: Mapping[Any, float], interval: Any) -> Row:
    """pairs, ratio, ratio_low, ratio_high and p of one optimizer against the reference, over their common seeds."""
    pairs = [(own[seed], reference[seed]) for seed in own if seed in reference]
    finite = [value for pair in pairs for value in pair if math.isfinite(value)]
    positive = all(value > 0 for value in finite)
    differences = [_difference(*pair, in_logs=positive) for pair in pairs]
    p = signed_rank_p(differences) if len(pairs) >= SMALLEST_TEST else None
    row: Row = {"pairs": len(pairs), "ratio": None, "ratio_low": None, "ratio_high": None, "p": p}
    if pairs and positive and len(finite) == 2 * len(pairs):
        low, high = interval(differences)
        row["ratio"] = math.exp(statistics.fmean(differences))
        row |= {"ratio_low": None if low is None else math.exp(low)}
        row |= {"ratio_high": None if high is None else math.exp(high)}
    return row


def _difference(a: float, b: float, *, in_logs: bool) -> float:
    """a - b, or log a - log b; 0 where both are the worst value."""
    if a == b:
        return 0.0
    if in_logs and math.isfinite(a) and math.isfinite(b):
        return math.log(a) - math.log(b)
    return a - b


def target_rows(targets: Table) -> list[Row]:
    """One row per optimizer and target loss: how many runs reached it, after how many steps and seconds.

    `targets`: one row per run and target with optimizer, seed, target, level, step, seconds (None: never reached).
    Medians and ranges are over the runs that reached the target, which are `reached` of `runs`: where some did not, the
    median flatters. level_min, level_max: a target may follow each seed's own reference model.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in targets:
        groups.setdefault((str(row["target"]), str(row["optimizer"])), []).append(row)
    names, optimizers = (list(dict.fromkeys(key[i] for key in groups)) for i in (0, 1))
    ordered = [(target, name) for target in names for name in optimizers if (target, name) in groups]
    return [{"target": target, "optimizer": name, **_target_spread(groups[target, name])} for target, name in ordered]


def _target_spread(rows: Table) -> Row:
    levels = [row["level"] for row in rows if row["level"] is not None]
    reached = [row for row in rows if row["step"] is not None]
    spread: Row = {
        "level_min": min(levels, default=None),
        "level_max": max(levels, default=None),
        "runs": len(rows),
        "reached": len(reached),
    }
    for column, name in (("step", "steps"), ("seconds", "seconds")):
        found = [row[column] for row in reached]
        spread |= {
            f"{name}_median": statistics.median(found) if found else None,
            f"{name}_min": min(found, default=None),
            f"{name}_max": max(found, default=None),
        }
    return spread


def cost_rows(cost: Table, memory: Table, reference: str) -> list[Row]:
    """One row per optimizer: medians of the time of a step and of its update, their ratios to the reference's, memory.

    `cost`: optimizer, repeat, step_time_s, update_time_s, timed in turns. A ratio is taken within one repeat; its
    median and quartiles are over the repeats. `memory`: optimizer, state_mib, peak_mib; an optimizer may lack a row.

    Raises ValueError for a reference without times.
    """
    names = list(dict.fromkeys(row["optimizer"] for row in cost))
    if reference not in names:
        raise ValueError(f"reference must be one of {', '.join(names)}, got {reference!r}")
    held = {row["optimizer"]: row for row in memory}
    rows = []
    for name in names:
        own = [row for row in cost if row["optimizer"] == name]
        row: Row = {"optimizer": name, "repeats": len(own)}
        for kind in ("step", "update"):
            relative = ratio(cost, f"{kind}_time_s", name, reference)
            row[f"{kind}_ms"] = 1e3 * statistics.median(item[f"{kind}_time_s"] for item in own)
            row[f"{kind}_ratio"] = relative["median"]
            row |= {f"{kind}_ratio_low": relative["low"], f"{kind}_ratio_high": relative["high"]}
        rows.append(row | {key: held.get(name, {}).get(key) for key in ("state_mib", "peak_mib")})
    return rows


def sensitivity(trials: Table) -> list[Row]:
    """One row per optimizer: how many of its tuned settings are within 10 % of its best, v <= v_best + 0.1 |v_best|.

    `trials`: one row per tuning run with optimizer, seed, settings (JSON text), status, value (the objective, smaller
    is better). A setting's v is the mean over its seeds. Only settings that completed with every tuning seed of the
    optimizer count as `complete`; `share` is of all `settings` that were tried, whatever became of them. best: v_best,
    None where no setting is complete.
    """
    rows = []
    for name in dict.fromkeys(row["optimizer"] for row in trials):
        own = [row for row in trials if row["optimizer"] == name]
        seeds = {row["seed"] for row in own}
        values: dict[str, dict[Any, float | None]] = {}
        for row in own:
            key = json.dumps(json.loads(row["settings"]), sort_keys=True)
            values.setdefault(key, {})[row["seed"]] = row["value"] if row["status"] == "completed" else None
        means = [
            statistics.fmean(value for value in found.values() if value is not None)
            for found in values.values()
            if found.keys() == seeds and None not in found.values()
        ]
        best = min(means, default=None)
        near = 0 if best is None else sum(mean <= best + WITHIN * abs(best) for mean in means)
        counts = {"settings": len(values), "complete": len(means), "within_10_percent": near}
        rows.append({"optimizer": name, **counts, "share": near / len(values), "best": best})
    return rows


def statistics_notes(
    rows: Table,
    reference: str,
    *,
    higher_is_better: bool = False,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> list[str]:
    """Sentences that say how `rows`, of `summary_rows` with the same arguments, and the other tables were made."""
    pairs = max((row["pairs"] for row in rows if row["optimizer"] != reference), default=0)
    tests = sum(row["p"] is not None for row in rows)
    worst = "-inf" if higher_is_better else "+inf"
    notes = [
        "Within a seed all optimizers have the same initial weights, batches and points of evaluation, so runs are "
        "compared in pairs of equal seed. std has n - 1 in the divisor.",
        f"{100 * confidence:g} % interval of the mean: bootstrap over seeds, BCa (Efron 1987), {resamples:,} "
        "resamples; none for fewer than 3 runs. With few seeds it is too narrow: at a nominal 95 % it held "
        "the mean of lognormal losses (sigma 0.3) in 83 % of 2,000 simulations with 5 seeds, 89 % with 10, 93 % with "
        "20.",
        f"Ratio to {reference}: geometric mean over the pairs, the interval from a bootstrap of the log ratios.",
        "p: exact two-sided Wilcoxon signed-rank test of the log differences over the pairs (plain differences where a "
        f"value is not positive). p (Holm): corrected for the number of optimizers tested ({tests}).",
        f"A run that diverged or failed is never dropped: it counts as the worst value there is ({worst}). Then mean, "
        "interval and ratio are left empty; median, range and test take it in, as the largest difference of its pair "
        "(none where both runs ended so).",
        "Steps and seconds to a target: median and range over the runs that reached it; where some did not, the median "
        "flatters. Times of a step: the optimizers take turns, ratios are within one turn, then median and quartiles.",
        "Within 10 %: settings whose mean objective over all tuning seeds is within 10 % of the best found. A "
        "setting that diverged, failed or was pruned with any seed does not count.",
    ]
    if tests:
        smallest = 2.0 ** (1 - pairs)
        notes.insert(
            4, f"With {pairs} pairs p cannot be below {smallest:.2g}, the smallest p (Holm) not below {tests} x that."
        )
    return notes
