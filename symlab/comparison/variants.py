"""Two or more variants of one network, trained alike from equal seeds: spread, paired tests, best settings.

A trial is one run: a setting (everything but variant and seed, e.g. "lr=0.1"), a variant and a seed. Rows are tables.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symlab.comparison.inference import holm, paired_t, signed_rank_p

Row = dict[str, Any]
MEASURES = {"final_epoch_loss": False, "test_accuracy": True, "best_test_accuracy": True}
"""Measure -> whether higher is better."""
FEWEST_PAIRS = 2  # from which a test is made


@dataclass(frozen=True)
class Trial:
    """One run that has ended; `values`: measure -> number, without those that the data set does not have."""

    setting: str
    variant: str
    seed: str
    diverged: bool
    values: Mapping[str, float]


def final_epoch_loss(rows: Sequence[Mapping[str, Any]]) -> float:
    """sum_i n_i b_i / sum_i n_i: mean batch loss of the last epoch (MacDonald et al., NeurIPS 2023, tables).

    `rows`: metrics.csv; b_i is `batch_loss`, the mean of the batch losses since the row before, n_i how many of those
    updates lie in the last epoch, the one in which the last row ends. Exact where a row stands at the start of that
    epoch, as with one evaluation per epoch; otherwise the row across it counts by its share.

    Raises ValueError where the last epoch has no batch loss.
    """
    last = rows[-1]
    epochs, steps = float(last["epoch"] or 0), float(last["step"])
    if not epochs > 0:
        raise ValueError("no update was made")
    start = (math.ceil(epochs - 1e-9) - 1) * steps / epochs
    total = weight = 0.0
    for before, row in itertools.pairwise(rows):
        updates = row["step"] - max(float(before["step"]), start)
        if updates > 1e-6:
            if row.get("batch_loss") is None:
                raise ValueError(f"no batch_loss at step {row['step']}")
            total, weight = total + updates * row["batch_loss"], weight + updates
    if not weight:
        raise ValueError("no row lies in the last epoch")
    return total / weight


def measured(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The MEASURES of a completed run: best_test_accuracy is the highest of all evaluations, so it flatters."""
    found = {"final_epoch_loss": final_epoch_loss(rows)}
    accuracies = [row["test_accuracy"] for row in rows if row.get("test_accuracy") is not None]
    if accuracies:
        found |= {"test_accuracy": accuracies[-1], "best_test_accuracy": max(accuracies)}
    return found


def measures_of(trials: Sequence[Trial]) -> list[str]:
    """Those of MEASURES that some trial has, in their order."""
    return [name for name in MEASURES if any(name in trial.values for trial in trials)]


def variant_rows(trials: Sequence[Trial], missing: Mapping[tuple[str, str], str]) -> list[Row]:
    """One row per setting and variant: completed, diverged, missing trials, and the measures over those completed.

    `missing`: (setting, variant) -> which seeds have not ended. mean, std (n - 1 in the divisor, None for one), min,
    max: a mean over trials of which some diverged is one over survivors, so read it with `diverged` beside it.
    """
    rows = []
    for setting, variant in _keys((trial.setting, trial.variant) for trial in trials) | dict.fromkeys(missing):
        own = [trial for trial in trials if (trial.setting, trial.variant) == (setting, variant)]
        done = [trial for trial in own if not trial.diverged]
        row: Row = {"setting": setting, "variant": variant, "trials": len(own), "completed": len(done)}
        row |= {"diverged": len(own) - len(done), "missing": missing.get((setting, variant))}
        for name in measures_of(trials):
            row |= _spread(name, [trial.values[name] for trial in done if name in trial.values])
        rows.append(row)
    return sorted(rows, key=lambda row: natural(row["setting"]))


def pair_rows(trials: Sequence[Trial], baseline: str, confidence: float) -> list[Row]:
    """One row per measure, setting and variant but the baseline: variant minus baseline over the seeds both have.

    - pairs: seeds of which both trials have ended; completed_pairs: of which both completed; baseline_diverged,
      variant_diverged: how many of the pairs' trials diverged.
    - baseline_mean, variant_mean, difference, low, high (`confidence`), t, p_t, effect_size (mean difference over its
      standard deviation), p_completed (exact signed-rank test): over the completed pairs.
    - better: pairs in which the variant has the lower loss or the higher accuracy; p: exact two-sided signed-rank test;
      both over all pairs, a diverged trial being worse than any other (two of them equal).
    - p_holm, p_t_holm: corrected over the rows of the measure.

    Tests are None for fewer than 2 pairs. Raises ImportError without scipy.
    """
    rows = []
    for measure in measures_of(trials):
        able = [trial for trial in trials if trial.diverged or measure in trial.values]
        own = [row | _tests(pairs, measure, confidence) for row, pairs in _paired(able, baseline) if pairs]
        for column in ("p", "p_t"):
            for row, p in zip(own, holm([row[column] for row in own]), strict=True):
                row[f"{column}_holm"] = p
        rows += [{"measure": measure} | row for row in own]
    return rows


def best_rows(rows: Sequence[Row], part_of: Callable[[str], str]) -> list[Row]:
    """Per part, measure and variant the setting with the best mean, among those with the fewest diverged trials.

    `rows`: variant_rows; `part_of`: setting -> what must be alike in settings that compete (the data set). An accuracy
    of the test rows that has chosen its setting flatters, as the published ones do.
    """
    found = []
    for part, variant in _keys((part_of(row["setting"]), row["variant"]) for row in rows):
        own = [row for row in rows if (part_of(row["setting"]), row["variant"]) == (part, variant)]
        for measure, higher in MEASURES.items():
            able = [row for row in own if row.get(f"{measure}_mean") is not None]
            if able:
                least = min(row["diverged"] for row in able)
                sign = -1 if higher else 1
                best = min((row for row in able if row["diverged"] == least), key=lambda r: sign * r[f"{measure}_mean"])
                values = {name: best[f"{measure}_{name}"] for name in ("mean", "std")}
                counts = {name: best[name] for name in ("completed", "diverged")}
                row = {"part": part, "measure": measure, "variant": variant, "setting": best["setting"]}
                found.append(row | values | counts | {"settings": len(able)})
    return found


def natural(text: str) -> list[tuple[int, float, str]]:
    """A key that sorts lr=0.05 before lr=0.1 before lr=1e1, and words by letters."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
    return [(0, float(part), "") if index % 2 else (1, 0.0, part) for index, part in enumerate(parts)]


def _paired(trials: Sequence[Trial], baseline: str) -> list[tuple[Row, list[tuple[Trial, Trial]]]]:
    """Per setting and variant the pairs (baseline's trial, variant's trial) of equal seeds."""
    found = []
    others = {trial.variant for trial in trials} - {baseline}
    for setting in sorted({trial.setting for trial in trials}, key=natural):
        by_seed = {
            name: {trial.seed: trial for trial in trials if (trial.setting, trial.variant) == (setting, name)}
            for name in (baseline, *sorted(others))
        }
        for variant in sorted(others):
            seeds = [seed for seed in by_seed[baseline] if seed in by_seed[variant]]
            row = {"setting": setting, "baseline": baseline, "variant": variant}
            found.append((row, [(by_seed[baseline][seed], by_seed[variant][seed]) for seed in seeds]))
    return found


def _tests(pairs: Sequence[tuple[Trial, Trial]], measure: str, confidence: float) -> Row:
    higher = MEASURES[measure]
    worst = -math.inf if higher else math.inf
    done = [(a.values[measure], b.values[measure]) for a, b in pairs if not (a.diverged or b.diverged)]
    every = [tuple(worst if trial.diverged else trial.values[measure] for trial in pair) for pair in pairs]
    differences = [0.0 if a == b else b - a for a, b in every]
    t = paired_t([b - a for a, b in done], confidence)
    enough = len(done) >= FEWEST_PAIRS
    return {
        "pairs": len(pairs),
        "completed_pairs": len(done),
        "baseline_diverged": sum(a.diverged for a, _ in pairs),
        "variant_diverged": sum(b.diverged for _, b in pairs),
        "baseline_mean": statistics.fmean(a for a, _ in done) if done else None,
        "variant_mean": statistics.fmean(b for _, b in done) if done else None,
        "difference": t.mean,
        "low": t.low,
        "high": t.high,
        "t": t.t,
        "p_t": t.p,
        "effect_size": t.effect_size,
        "p_completed": signed_rank_p([b - a for a, b in done]) if enough else None,
        "better": sum(d > 0 if higher else d < 0 for d in differences),
        "p": signed_rank_p(differences) if len(pairs) >= FEWEST_PAIRS else None,
    }


def _spread(name: str, values: Sequence[float]) -> Row:
    return {
        f"{name}_mean": statistics.fmean(values) if values else None,
        f"{name}_std": statistics.stdev(values) if len(values) > 1 else None,
        f"{name}_min": min(values, default=None),
        f"{name}_max": max(values, default=None),
    }


def _keys(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], None]:
    """Each once, in order of first appearance."""
    return dict.fromkeys(pairs)
