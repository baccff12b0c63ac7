"""Worker processes: each does one run at a time, on its own device and with its own threads.

The parent hands out trials and keeps all results; workers hold nothing that the parent does not know, so any of them
may die. A worker whose run fails ends with it, and a fresh one takes its place.
"""

import logging
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from symlab.comparison.run_trial import TrialResult, TrialRunner
from symlab.comparison.trial import Task, Trial
from symlab.rundir.environment import cpus_available
from symlab.training.factories import Stop
from symlab.training.signals import STOPPING

RUN_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SystemExit,
    TypeError,
    ValueError,
)
"""What a run may end with and still be one failed run among others."""

POLL_SECONDS = 0.2  # between looks at `stop`
Row = Mapping[str, Any]


class _Worker:
    """One process and the trial that it is busy with."""

    def __init__(self, task: Task, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share CUDA and OpenMP state
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, task, device, threads), daemon=True)
        with threads_of_children(threads):
            self.process.start()
        theirs.close()
        self.device = device
        self.trial: Trial | None = None

    def give(self, trial: Trial) -> None:
        self.trial = trial
        self.connection.send(trial)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run_trials(
    task: Task,
    devices: Sequence[str],
    threads: int,
    next_trial: Callable[[], Trial | None],
    proceed: Callable[[Trial, Row], bool],
    stop: Stop,
) -> Iterator[tuple[Trial, TrialResult]]:
    """Trials in parallel, one worker process of `threads` threads per entry of `devices`; yields them as they end.

    `next_trial` is asked whenever a worker is free; None means that there is nothing now: it is asked again after the
    next result, and the end is reached when nobody is busy. `proceed` is shown each row of a run but the last; false
    prunes the run. Once `stop()` is true all workers are ended and what they were at is lost.
    """
    workers: list[_Worker] = []
    free_devices = list(devices)
    try:
        while not stop():
            _hand_out(workers, free_devices, task, threads, next_trial)
            busy = {worker.connection: worker for worker in workers if worker.trial is not None}
            if not busy:
                return
            for worker in _with_news(list(busy.values())):
                result = _receive(worker, proceed)
                if result is None:
                    continue
                if result.status == "failed" and stop():
                    return  # the signal that stops the parent ended the worker as well
                trial, worker.trial = worker.trial, None
                if result.status == "failed":
                    worker.end()
                    workers.remove(worker)
                    free_devices.append(worker.device)
                assert trial is not None
                yield trial, result
    finally:
        for worker in workers:
            worker.end()


def _with_news(busy: Sequence[_Worker]) -> list[_Worker]:
    """Workers that have sent something or have died (a child of theirs may still hold the pipe open)."""
    ready = wait([place for w in busy for place in (w.connection, w.process.sentinel)], timeout=POLL_SECONDS)
    return [worker for worker in busy if worker.connection in ready or worker.process.sentinel in ready]


def run_trials_here(
    runner: TrialRunner,
    next_trial: Callable[[], Trial | None],
    proceed: Callable[[Trial, Row], bool],
    stop: Stop,
) -> Iterator[tuple[Trial, TrialResult]]:
    """The same, one after another in this process: for debuggers, and where processes cost more than the runs."""
    while not stop() and (trial := next_trial()) is not None:
        result = attempt(runner, trial, lambda row, own=trial: not stop() and proceed(own, row))  # type: ignore[misc]
        if stop():
            return
        yield trial, result


def attempt(runner: TrialRunner, trial: Trial, proceed: Callable[[Row], bool]) -> TrialResult:
    """The run's result; an error of the run is one failed run."""
    try:
        return runner.run(trial, proceed)
    except RUN_ERRORS as error:
        return TrialResult("failed", f"{type(error).__name__}: {error}")


def _hand_out(
    workers: list[_Worker],
    free_devices: list[str],
    task: Task,
    threads: int,
    next_trial: Callable[[], Trial | None],
) -> None:
    """Give trials to idle workers, and start workers while there are devices and trials."""
    idle = [worker for worker in workers if worker.trial is None]
    while idle or free_devices:
        trial = next_trial()
        if trial is None:
            return
        if not idle:
            workers.append(_Worker(task, free_devices.pop(0), threads))
            idle.append(workers[-1])
        idle.pop().give(trial)


def _receive(worker: _Worker, proceed: Callable[[Trial, Row], bool]) -> TrialResult | None:
    """The result, if that is what the worker sent; rows are answered."""
    assert worker.trial is not None
    try:
        if not worker.connection.poll() and not worker.process.is_alive():
            raise EOFError
        message = worker.connection.recv()
        if isinstance(message, TrialResult):
            return message
        worker.connection.send(proceed(worker.trial, message))
    except (EOFError, ConnectionError):
        worker.process.join()
        code = worker.process.exitcode
        why = f"signal {-code}, out of memory?" if code is not None and code < 0 else f"exit code {code}"
        return TrialResult("failed", f"the worker process died ({why})")
    return None


def _serve(connection: Connection, task: Task, device: str, threads: int) -> None:
    """The worker's life: trials in, rows and results out; ends when the parent does."""
    ignore_signals()
    quiet()
    runner = TrialRunner(task, torch.device(device), threads)

    def proceed(row: Row) -> bool:
        connection.send(dict(row))
        return bool(connection.recv())

    try:
        while True:
            connection.send(attempt(runner, connection.recv(), proceed))
    except (EOFError, ConnectionError):  # the parent is gone
        return


def ignore_signals() -> None:
    """They reach the whole process group; the parent decides and ends its children."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def quiet() -> None:
    """Warnings were shown once, when the parent tried every optimizer; workers would repeat them for every run."""
    logging.getLogger("symlab").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


@contextmanager
def threads_of_children(threads: int) -> Iterator[None]:
    """OpenMP's number of threads for processes that are started in the block."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def devices_of_workers(name: str, device: torch.device, workers: int | None, threads: int) -> list[str]:
    """The device of each worker: GPUs in turn, by default one worker each; workers on the CPU fill its processors.

    `name`: what was asked for; auto and cuda mean all GPUs. None for `workers` 0: runs are done in the process itself.
    """
    if workers == 0:
        return []
    if device.type == "cuda":
        one = name.startswith("cuda:")  # that one was asked for
        found = [str(device)] if one else [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        return [found[i % len(found)] for i in range(workers or len(found))]
    return ["cpu"] * (workers or max((cpus_available() or 1) // threads, 1))
