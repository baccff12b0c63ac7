"""What a step of each optimizer costs: time, interleaved in one process that does nothing else, and memory."""

import itertools
import multiprocessing
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from symlab.comparison.run_trial import TrialRunner
from symlab.comparison.trial import Task, Trial
from symlab.comparison.workers import RUN_ERRORS, ignore_signals, quiet, threads_of_children
from symlab.training.factories import Stop
from symlab.training.place import repeatable
from symlab.training.step_times import state_bytes, time_steps
from symlab.training.update import DivergedError, update

BLOCK = 10
"""Steps whose mean is one measurement: what an optimizer renews every tenth step is in every block once."""

SLOW = 1e-3
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # what Linux takes for: set the peak of the resident size to the present one
Row = dict[str, Any]


def step_costs(runner: TrialRunner, trials: Mapping[str, Trial], blocks: int, stop: Stop) -> list[Row]:
    """Rows {repeat, optimizer, step_time_s, update_time_s}, means over blocks of ten steps.

    The optimizers take turns step by step on the first batch; a block before the first is not counted. Every optimizer
    trains a model of its own from the same weights, at a thousandth of its rate, so that nothing diverges on the way:
    the cost is the same, but for line searches.
    """
    first = next(iter(trials.values()))
    with repeatable(first.seed, runner.device, runner.threads, deterministic=False):
        built = {label: runner.build(trial) for label, trial in trials.items()}
        inputs, targets = next(iter(built.values()))[2].at(0)
        models = {label: training.model for label, (_, training, _, _) in built.items()}
        optimizers = {label: training.optimizer for label, (_, training, _, _) in built.items()}
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] *= SLOW
        steps = time_steps(models, optimizers, runner.task.loss, inputs, targets, (1 + blocks) * BLOCK)
        return list(_block_means(itertools.takewhile(lambda row: not stop(), steps)))


def _block_means(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    blocks: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        blocks.setdefault((row["repeat"] // BLOCK, row["optimizer"]), []).append(row)
    for (block, label), own in blocks.items():
        if block > 0:
            means = {name: statistics.fmean(row[name] for row in own) for name in ("step_time_s", "update_time_s")}
            yield {"optimizer": label, "repeat": block - 1, **means}


def memory(runner: TrialRunner, trials: Mapping[str, Trial], *, fresh: bool, stop: Stop) -> list[Row]:
    """Rows {optimizer, state_mib, peak_mib}: the optimizer's own tensors, and the most that the model, the optimizer
    and two training steps took on top of what a process with the data holds.

    Each in a `fresh` process of its own, for memory that is freed is not given back; without it, and where the system
    cannot tell, peak_mib is None.
    """
    going = itertools.takewhile(lambda pair: not stop(), trials.items())
    return [{"optimizer": label, **_memory_of(runner, trial, fresh)} for label, trial in going]


def _memory_of(runner: TrialRunner, trial: Trial, fresh: bool) -> Row:
    if not fresh:
        return _two_steps(runner, trial) | {"peak_mib": None}
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(theirs, runner.task, runner.device, runner.threads, trial))
    with threads_of_children(runner.threads):
        process.start()
    theirs.close()
    try:
        found: Row = ours.recv()
    except EOFError:  # the process died
        found = {"state_mib": None, "peak_mib": None}
    process.join()
    return found


def _measure(connection: Connection, task: Task, device: torch.device, threads: int, trial: Trial) -> None:
    ignore_signals()
    quiet()
    runner = TrialRunner(task, device, threads)
    runner.dataset(trial)
    _load_libraries(device)
    before = _reset_peak(device)
    try:
        found = _two_steps(runner, trial)
    except RUN_ERRORS:
        found = {"state_mib": None}
    connection.send(found | {"peak_mib": None if before is None else max(_peak(device) - before, 0.0)})


def _load_libraries(device: torch.device) -> None:
    """One step of a toy, so that what torch loads at the first step of a process counts for no optimizer."""
    toy = torch.nn.Linear(2, 1, device=device)
    optimizer = torch.optim.Adam(toy.parameters())
    toy(torch.ones(4, 2, device=device)).square().sum().backward()
    optimizer.step()


def _two_steps(runner: TrialRunner, trial: Trial) -> Row:
    with repeatable(trial.seed, runner.device, runner.threads, deterministic=False):
        _, training, batches, _ = runner.build(trial)
        try:
            for step in range(2):
                update(training.model, training.optimizer, runner.task.loss, *batches.at(step), step)
        except DivergedError:
            pass  # memory is what was asked for, and the step took its own
        return {"state_mib": state_bytes(training.optimizer) / 2**20}


def _reset_peak(device: torch.device) -> float | None:
    """MiB in use; the peak starts from here."""
    if device.type == "cuda":
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
