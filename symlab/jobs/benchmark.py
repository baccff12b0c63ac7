"""Time one step of several optimizers against each other on one model and batch."""

import logging
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from symlab.rundir import BadInput, Outcome, RunDir
from symlab.training.build import build_model, build_optimizer, number_of_parameters
from symlab.training.factories import DataFactory, Loss, ModelFactory, OptimizerFactory
from symlab.training.place import find_device, find_dtype, repeatable
from symlab.training.progress import progress_bar
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
    reference: str | None = None,
    batch_size: int | None = None,
    repeats: int = 100,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    threads: int | None = 2,
    progress: bool = True,
) -> Outcome:
    """t(optimizer) / t(`reference`, None: the first), the median over `repeats` steps that take turns in one process.

    Every optimizer has its own copy of the model, from the same `seed`, and takes its steps on the same first
    `batch_size` training rows (None: all). Prints and writes the table: the medians of a full step (forward, backward,
    update) and of the update alone, in ms, their ratios to the reference with quartiles, the memory of the
    optimizer's state. metrics.csv holds every single time.

    Raises BadInput for values, devices and shapes that cannot work.
    """
    if not optimizers:
        raise BadInput("optimizers is empty: name at least one, e.g. +optimizer@optimizers.adam=adam")
    if reference is not None and reference not in optimizers:
        raise BadInput(f"reference={reference} is not one of the optimizers: {', '.join(optimizers)}")
    if not repeats >= 2:
        raise BadInput(f"repeats must be at least 2, got {repeats}")
    if batch_size is not None and not batch_size >= 1:
        raise BadInput(f"batch_size must be at least 1, got {batch_size}")
    place, kind = find_device(device), find_dtype(dtype)
    with repeatable(seed, place, threads, deterministic=False):
        dataset = data().to(place, kind)
        inputs, targets = dataset.train_inputs[:batch_size], dataset.train_targets[:batch_size]
        models = {name: build_model(model, dataset, seed, place, kind) for name in optimizers}
        built = {name: build_optimizer(factory, models[name], inputs) for name, factory in optimizers.items()}
        threads_used = torch.get_num_threads()
        run.write_environment({"device": str(place), "dtype": dtype, "threads": threads_used, "seed": seed})
        steps = time_steps(models, built, loss, inputs, targets, WARM_UP + repeats)
        rows = _counted(steps, (WARM_UP + repeats) * len(built), progress)
        run.append_rows(rows)
        compared = reference or next(iter(built))
        table = [_figures(name, rows, compared, state_bytes(built[name])) for name in built]
        setting = {
            "data": dataset.name,
            "rows": len(inputs),
            "parameters": number_of_parameters(next(iter(models.values()))),
            "device": str(place),
            "dtype": dtype,
            "threads": threads_used,
            "repeats": repeats,
            "reference": compared,
        }
    logger.info("%s\n%s", ", ".join(f"{key} {value}" for key, value in setting.items()), as_text(table, compared))
    summary = {"status": "completed", **setting, "table": table}
    run.write_summary(summary)
    return Outcome("completed", 0, summary)


def _counted(steps: Iterable[dict[str, Any]], total: int, progress: bool) -> list[dict[str, Any]]:
    """The rows behind the warm-up, with a bar over all `total` steps."""
    rows = []
    with progress_bar(total, 0, progress) as bar:
        for row in steps:
            bar.update()
            if row["repeat"] >= WARM_UP:
                rows.append(row)
    return rows


def _figures(name: str, rows: list[dict[str, Any]], reference: str, memory: int) -> dict[str, Any]:
    mine = [row for row in rows if row["optimizer"] == name]
    full, update = (ratio(rows, column, name, reference) for column in ("step_time_s", "update_time_s"))
    return {
        "optimizer": name,
        "step_ms": 1e3 * statistics.median(row["step_time_s"] for row in mine),
        "update_ms": 1e3 * statistics.median(row["update_time_s"] for row in mine),
        "step_ratio": full["median"],
        "step_ratio_quartiles": [full["low"], full["high"]],
        "update_ratio": update["median"],
        "update_ratio_quartiles": [update["low"], update["high"]],
        "state_kib": memory / 1024,
    }


def as_text(table: list[dict[str, Any]], reference: str) -> str:
    """The table in Markdown."""
    lines = [
        f"| optimizer | step ms | update ms | step / {reference}'s | update / {reference}'s | state KiB |",
        "|---|---|---|---|---|---|",
    ]
    for row in table:
        ratios = [
            f"{row[key]:.2f} [{row[key + '_quartiles'][0]:.2f}, {row[key + '_quartiles'][1]:.2f}]"
            for key in ("step_ratio", "update_ratio")
        ]
        times = f"{row['step_ms']:.2f} | {row['update_ms']:.2f}"
        lines.append(f"| {row['optimizer']} | {times} | {ratios[0]} | {ratios[1]} | {row['state_kib']:.0f} |")
    return "\n".join(lines)
