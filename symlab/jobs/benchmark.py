"""Time one step of several optimizers against each other on one model and batch."""

import logging
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.bands import check_bands, judge, verdict_lines
from symlab.training.build import build_model, build_optimizer, number_of_parameters
from symlab.training.factories import (
    ConstraintFactory,
    DataFactory,
    Loss,
    ModelFactory,
    OptimizerFactory,
    UsesBatch,
    name_of,
)
from symlab.training.place import find_device, find_dtype, repeatable
from symlab.training.progress import progress_bar
from symlab.training.sources import in_memory
from symlab.training.step_times import ratio, state_bytes, time_steps

KEY_FIGURES = ()  # the ratios are in a table of their own, which each run prints
WARM_UP = 5
"""Steps of each optimizer that are not counted: memory is allocated and caches are filled in them."""

logger = logging.getLogger("symlab")


def benchmark(
    run: RunDir,
    *,
    model: ModelFactory,
    data: DataFactory,
    optimizers: Mapping[str, OptimizerFactory],
    loss: Loss,
    constraint: ConstraintFactory | None = None,
    reference: str | None = None,
    rivals: Mapping[str, list[str]] | None = None,
    batch_size: int | None = None,
    repeats: int = 100,
    limit_s: float | None = None,
    cpu_time: bool = False,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    threads: int | None = 2,
    progress: bool = True,
    expected: Mapping[str, Sequence[float]] | None = None,
) -> Outcome:
    """t(optimizer) / t(`reference`, None: the first), the median over `repeats` steps that take turns in one process.

    Every optimizer has its own copy of the model, from the same `seed`, and takes its steps on the same first
    `batch_size` training rows (None: all); one that has used `limit_s` seconds takes no more (`time_steps`). Prints and
    writes the table: the medians of a full step (forward, backward, update) and of the update alone, in ms, the mean of
    the update (over renewals that not every update makes), their ratios to the reference with quartiles, the number of
    repeats, the memory of the optimizer's state. metrics.csv holds every single time.

    `cpu_time`: seconds of the processor in place of those on the wall, summed over threads; for a busy machine.
    `rivals`: optimizer -> others; its update's time over that of the cheapest of the others (by the mean) is added.
    `constraint`: every optimizer takes steps on the constrained model too, as OPTIMIZER_CONSTRAINT, behind the plain
    ones. `expected`: name -> [low, high] of its whole step's ratio; the summary says which lie within.

    Raises BadInput for values, devices and shapes that cannot work.
    """
    ways = _ways(optimizers, constraint)
    _check(list(ways), reference, rivals or {}, batch_size, repeats, limit_s, expected or {})
    place, kind = find_device(device), find_dtype(dtype)
    if cpu_time and place.type != "cpu":
        raise BadInput(f"cpu_time=true needs device=cpu, got {place}: the processor waits for the device")
    clock = time.process_time if cpu_time else time.perf_counter
    with repeatable(seed, place, threads, deterministic=False):
        dataset = in_memory(data()).to(place, kind)
        inputs, targets = dataset.train_inputs[:batch_size], dataset.train_targets[:batch_size]
        models = {name: build_model(model, dataset, seed, place, kind, way[1]) for name, way in ways.items()}
        built = {name: build_optimizer(factory, models[name], inputs) for name, (factory, _) in ways.items()}
        threads_used = torch.get_num_threads()
        run.write_environment({"device": str(place), "dtype": dtype, "threads": threads_used, "seed": seed})
        steps = time_steps(models, built, loss, inputs, targets, WARM_UP + repeats, limit_s=limit_s, clock=clock)
        rows = _counted(steps, (WARM_UP + repeats) * len(built), progress)
        run.append_rows(rows)
        compared = reference or next(iter(built))
        table = [_figures(name, rows, compared, built[name]) for name in built]
        races = [_race(name, others, rows) for name, others in (rivals or {}).items()]
        setting = {
            "data": dataset.name,
            "rows": len(inputs),
            "parameters": number_of_parameters(next(iter(models.values()))),
            "device": str(place),
            "dtype": dtype,
            "threads": threads_used,
            "repeats": repeats,
            "clock": "processor" if cpu_time else "wall",
            "reference": compared,
        }
    ratios = {row["optimizer"]: {"value": row["step_ratio"], "error": None} for row in table}
    verdicts = judge(expected or {}, ratios)
    lines = [", ".join(f"{key} {value}" for key, value in setting.items()), as_text(table, compared)]
    logger.info("%s", "\n".join([*lines, *map(race_as_text, races), *verdict_lines(verdicts)]))
    summary = {"status": "completed", **setting, "table": table, "rivals": races, "expected": verdicts}
    run.write_summary(summary)
    return Outcome("completed", 0, summary)


def _ways(
    optimizers: Mapping[str, OptimizerFactory], constraint: ConstraintFactory | None
) -> dict[str, tuple[OptimizerFactory, ConstraintFactory | None]]:
    """Name -> optimizer and constraint: all without, then all with it. Raises BadInput for a name that is taken."""
    ways: dict[str, tuple[OptimizerFactory, ConstraintFactory | None]] = {}
    ways |= {name: (factory, None) for name, factory in optimizers.items()}
    if constraint is None:
        return ways
    for name, factory in optimizers.items():
        under = f"{name}_{name_of(constraint)}"
        if under in ways:
            raise BadInput(f"optimizers.{under}: so {name} under the constraint is called; take another name")
        ways[under] = (factory, constraint)
    return ways


def _check(
    optimizers: Sequence[str],
    reference: str | None,
    rivals: Mapping[str, list[str]],
    batch_size: int | None,
    repeats: int,
    limit_s: float | None,
    expected: Mapping[str, Sequence[float]],
) -> None:
    if not optimizers:
        raise BadInput("optimizers is empty: name at least one, e.g. +optimizer@optimizers.adam=adam")
    named = [("reference", [reference] if reference is not None else []), ("rivals", [*rivals])]
    named += [(f"rivals.{name}", others) for name, others in rivals.items()]
    for key, names in named:
        unknown = [name for name in names if name not in optimizers]
        if unknown:
            raise BadInput(f"{key}={unknown[0]} is not one of the optimizers: {', '.join(optimizers)}")
    empty = [name for name, others in rivals.items() if not others]
    if empty:
        raise BadInput(f"rivals.{empty[0]} is empty: name the optimizers to compare its update with")
    if not repeats >= 2:
        raise BadInput(f"repeats must be at least 2, got {repeats}")
    if batch_size is not None and not batch_size >= 1:
        raise BadInput(f"batch_size must be at least 1, got {batch_size}")
    if limit_s is not None and not limit_s > 0:
        raise BadInput(f"limit_s must be positive, got {limit_s}")
    try:
        check_bands(expected, optimizers)
    except ValueError as error:
        raise BadInput(str(error)) from error


def _counted(steps: Iterable[dict[str, Any]], total: int, progress: bool) -> list[dict[str, Any]]:
    """The rows behind the warm-up, with a bar over all `total` steps."""
    rows = []
    with progress_bar(total, 0, progress) as bar:
        for row in steps:
            bar.update()
            if row["repeat"] >= WARM_UP:
                rows.append(row)
    return rows


def _figures(name: str, rows: list[dict[str, Any]], reference: str, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    mine = [row for row in rows if row["optimizer"] == name]
    full, update = (ratio(rows, column, name, reference) for column in ("step_time_s", "update_time_s"))
    return {
        "optimizer": name,
        "step_ms": 1e3 * statistics.median(row["step_time_s"] for row in mine),
        "update_ms": 1e3 * statistics.median(row["update_time_s"] for row in mine),
        "update_mean_ms": 1e3 * statistics.fmean(row["update_time_s"] for row in mine),
        "step_ratio": full["median"],
        "step_ratio_quartiles": [full["low"], full["high"]],
        "update_ratio": update["median"],
        "update_ratio_quartiles": [update["low"], update["high"]],
        "repeats": len(mine),
        "uses_batch": isinstance(optimizer, UsesBatch),
        "state_kib": state_bytes(optimizer) / 1024,
    }


def _race(name: str, others: list[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The update of `name` against that of the cheapest of the others: means, and pairs within a repeat."""

    def mean(optimizer: str) -> float:
        return statistics.fmean(row["update_time_s"] for row in rows if row["optimizer"] == optimizer)

    cheapest = min(others, key=mean)
    pairs = ratio(rows, "update_time_s", name, cheapest)
    race = {"optimizer": name, "rivals": others, "cheapest": cheapest, "ratio_of_means": mean(name) / mean(cheapest)}
    return race | {"median_ratio": pairs["median"], "quartiles": [pairs["low"], pairs["high"]]}


def as_text(table: list[dict[str, Any]], reference: str) -> str:
    """The table in Markdown; * marks an optimizer whose update evaluates the model again."""
    ratios = f"step / {reference}'s | update / {reference}'s"
    lines = [
        f"| optimizer | step ms | update ms | its mean | {ratios} | repeats | state KiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        step, update = [
            f"{row[key]:.2f} [{row[key + '_quartiles'][0]:.2f}, {row[key + '_quartiles'][1]:.2f}]"
            for key in ("step_ratio", "update_ratio")
        ]
        name = row["optimizer"] + (" *" if row["uses_batch"] else "")
        times = f"{row['step_ms']:.2f} | {row['update_ms']:.2f} | {row['update_mean_ms']:.2f}"
        counts = f"{row['repeats']} | {row['state_kib']:.0f}"
        lines.append(f"| {name} | {times} | {step} | {update} | {counts} |")
    return "\n".join(lines)


def race_as_text(race: dict[str, Any]) -> str:
    """One race in words."""
    median = f"{race['median_ratio']:.3f} [{race['quartiles'][0]:.3f}, {race['quartiles'][1]:.3f}]"
    rivals = ", ".join(race["rivals"])
    return (
        f"update of {race['optimizer']} / {race['cheapest']}, the cheapest of {rivals}: means"
        f" {race['ratio_of_means']:.3f}, median of pairs {median}"
    )
