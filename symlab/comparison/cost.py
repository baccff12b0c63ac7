"""What a step of each optimizer costs: time, interleaved in one process that does nothing else, and memory."""

import gc
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from symlab.comparison.run_trial import TrialRunner
from symlab.comparison.trial import Trial
from symlab.training.place import repeatable
from symlab.training.step_times import state_bytes, time_steps
from symlab.training.update import DivergedError, update

WARM_UP = 3
"""Steps that are not counted: memory is allocated and caches are filled in them."""

SLOW = 1e-3
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # what Linux takes for: set the peak of the resident size to the present one


def step_costs(runner: TrialRunner, trials: Mapping[str, Trial], repeats: int) -> Iterator[dict[str, Any]]:
    """Rows {repeat, optimizer, step_time_s, update_time_s}, the optimizers taking turns on the first batch.

    Every optimizer trains a model of its own from the same weights, at a thousandth of its rate: the cost is the same,
    and nothing diverges on the way.
    """
    first = next(iter(trials.values()))
    with repeatable(first.seed, runner.device, runner.threads, deterministic=False):
        built = {label: runner.build(trial) for label, trial in trials.items()}
        batches = next(iter(built.values()))[2]
        inputs, targets = batches.at(0)
        models = {label: training.model for label, (_, training, _, _) in built.items()}
        optimizers = {label: training.optimizer for label, (_, training, _, _) in built.items()}
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] *= SLOW
        for row in time_steps(models, optimizers, runner.task.loss, inputs, targets, WARM_UP + repeats):
            if row["repeat"] >= WARM_UP:
                yield {"optimizer": row["optimizer"], **row, "repeat": row["repeat"] - WARM_UP}


def memory(runner: TrialRunner, trials: Mapping[str, Trial]) -> list[dict[str, Any]]:
    """Rows {optimizer, state_mib, peak_mib}: the optimizer's own tensors, and the most that building the model and two
    training steps took on top of what was there before (None where the system cannot tell)."""
    return [{"optimizer": label, **_memory_of(runner, trial)} for label, trial in trials.items()]


def _memory_of(runner: TrialRunner, trial: Trial) -> dict[str, Any]:
    gc.collect()
    with repeatable(trial.seed, runner.device, runner.threads, deterministic=False):
        runner.dataset(trial)
        before = _reset_peak(runner.device)
        _, training, batches, _ = runner.build(trial)
        try:
            for step in range(2):
                update(training.model, training.optimizer, runner.task.loss, *batches.at(step), step)
        except DivergedError:
            pass  # memory is what was asked for, and both steps took theirs
        peak = None if before is None else max(_peak(runner.device) - before, 0.0)
        return {"state_mib": state_bytes(training.optimizer) / 2**20, "peak_mib": peak}


def _reset_peak(device: torch.device) -> float | None:
    """MiB in use; the peak starts from here."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) / 2**20
    if sys.platform != "linux":
        return None
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError:  # not allowed in some containers
        return None
    return _resident("VmRSS")


def _peak(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else _resident("VmHWM")


def _resident(name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else float("nan")
