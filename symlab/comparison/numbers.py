"""The numbers of a comparison that a published table has: losses at given steps, references, steps to a target."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from symlab.training.targets import first_reached, target_levels

Row = dict[str, Any]
Table = Sequence[Mapping[str, Any]]
Numbers = dict[str, dict[str, float | None]]


def names(labels: Iterable[str], steps: Sequence[int], references: Iterable[str], targets: Iterable[str]) -> list[str]:
    """All names that `numbers` will give, known before any run."""
    of_optimizers = [f"{label}.test_loss.{step}" for label in labels for step in steps]
    of_targets = [f"{label}.{what}.{name}" for label in labels for name in targets for what in ("reached", "steps_to")]
    return [*of_optimizers, *of_targets, *(f"reference.{name}" for name in references)]


def numbers(results: Table, at_steps: Table, targets: Table) -> Numbers:
    """Name -> {"value", "error": None}: medians over seeds.

    <optimizer>.test_loss.<step>: of the test loss; reference.<name>: of each seed's reference model;
    <optimizer>.reached.<target>: how many seeds reached it; <optimizer>.steps_to.<target>: steps of those that did not
    reach it count as infinite, so the median is None when at least half of them did not.
    """
    found = {f"{row['optimizer']}.test_loss.{row['step']}": row["median"] for row in at_steps}
    found |= {f"reference.{name}": median for name, median in reference_medians(results).items()}
    steps: dict[tuple[str, str], list[float]] = {}
    for row in targets:
        own = steps.setdefault((row["optimizer"], row["target"]), [])
        own.append(math.inf if row["step"] is None else row["step"])
    for (label, name), values in steps.items():
        found[f"{label}.reached.{name}"] = sum(map(math.isfinite, values))
        median = statistics.median(values)
        found[f"{label}.steps_to.{name}"] = median if math.isfinite(median) else None
    return {name: {"value": value, "error": None} for name, value in found.items()}


def losses_at(results: Table, curves: Table, steps: Sequence[int]) -> list[Row]:
    """Rows {optimizer, step, runs, median, min, max, mean, std} of the test loss over seeds.

    A run that ended before the step counts as +inf: then mean and std are None, and median, min and max take it in.
    """
    values = {(row["optimizer"], row["seed"], row["step"]): row["test_loss"] for row in curves}
    rows = []
    for label in dict.fromkeys(row["optimizer"] for row in results):
        seeds = [row["seed"] for row in results if row["optimizer"] == label]
        for step in steps:
            found = [values.get((label, seed, step)) for seed in seeds]
            own = [math.inf if value is None or not math.isfinite(value) else value for value in found]
            finite = all(map(math.isfinite, own))
            rows.append(
                {
                    "optimizer": label,
                    "step": step,
                    "runs": len(own),
                    "median": statistics.median(own),
                    "min": min(own),
                    "max": max(own),
                    "mean": statistics.fmean(own) if finite else None,
                    "std": statistics.stdev(own) if finite and len(own) > 1 else None,
                }
            )
    return rows


def references_of(results: Table) -> dict[int, dict[str, float]]:
    """Seed -> its reference losses, from any run of the seed that knows them (one that failed may not)."""
    found: dict[int, dict[str, float]] = {}
    for row in results:
        found.setdefault(row["seed"], {}).update(json.loads(row["references"] or "{}"))
    return found


def reference_medians(results: Table) -> dict[str, float]:
    """Reference model -> the median of its loss over seeds."""
    per_seed = references_of(results).values()
    every = dict.fromkeys(name for own in per_seed for name in own)
    return {name: statistics.median(own[name] for own in per_seed if name in own) for name in every}


def reached_targets(results: Table, curves: Table, targets: Sequence[float]) -> list[Row]:
    """Rows {optimizer, seed, target, level, step, seconds}: absolute levels, and 1.3 x each seed's own references.

    Step and seconds are None where the run did not get there, and where it diverged or failed, be it later.
    """
    references = references_of(results)
    by_run: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in curves:
        by_run.setdefault((row["optimizer"], row["seed"]), []).append(row)
    rows = []
    for result in results:
        levels = target_levels(targets, references[result["seed"]])
        completed = result["status"] == "completed"
        own = by_run.get((result["optimizer"], result["seed"]), []) if completed else []
        for name, hit in first_reached(own, levels).items():
            rows.append({"optimizer": result["optimizer"], "seed": result["seed"], "target": name} | hit)
    return rows
