"""Does one run of a comparison and returns what came out of it; writes nothing."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from symlab.comparison.trial import Task, Trial
from symlab.data.dataset import Dataset
from symlab.training.batches import Batches
from symlab.training.build import build_model, build_optimizer, check_batch_norm, number_of_parameters
from symlab.training.fit import Evaluations, Training, fit
from symlab.training.place import find_dtype, repeatable
from symlab.training.rates import Rates
from symlab.training.step_times import state_bytes
from symlab.training.summary import cost_figures
from symlab.training.update import DivergedError

Row = Mapping[str, Any]
KEPT_DATA = 2  # data sets that a worker holds: with vary_data each seed has one of its own


@dataclass(frozen=True)
class TrialResult:
    """What a run left behind; plain values, so that it travels between processes."""

    status: str  # completed, diverged, failed or pruned
    message: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0
    time_s: float = 0.0
    step_time_ms: float | None = None
    state_mib: float | None = None
    parameters: int | None = None
    references: dict[str, float] = field(default_factory=dict)
    duration_s: float = 0.0  # of the whole run: building, updates, evaluations


class TrialRunner:
    """Runs trials of one task in this process, on one device and with a fixed number of threads."""

    def __init__(self, task: Task, device: torch.device, threads: int) -> None:
        self.task, self.device, self.threads = task, device, threads
        self._data: dict[tuple[int, str], Dataset] = {}

    def dataset(self, trial: Trial) -> Dataset:
        """The trial's data, on this device; the last few are kept."""
        seed = trial.seed if self.task.vary_data else 0
        if (seed, trial.split) not in self._data:
            while len(self._data) >= KEPT_DATA:
                del self._data[next(iter(self._data))]
            dataset = self.task.dataset(seed, trial.split)
            self._data[seed, trial.split] = dataset.to(self.device, find_dtype(self.task.dtype))
        return self._data[seed, trial.split]

    def build(self, trial: Trial) -> tuple[Dataset, Training, Batches, Rates]:
        """Everything that a run needs, from the seed alone: the same start and batches for every optimizer."""
        task, dataset = self.task, self.dataset(trial)
        model = build_model(task.model, dataset, trial.seed, self.device, find_dtype(task.dtype))
        rows = dataset.train_inputs, dataset.train_targets
        batches = Batches(*rows, task.batch_size, trial.seed, augmentation=dataset.augmentation)
        check_batch_norm(model, task.batch_size or len(dataset.train_inputs))
        rates = Rates(trial.own_schedule, task.warmup_steps, task.steps)
        rates.check()
        training = Training(model, build_optimizer(trial.own_optimizer, model, dataset.train_inputs))
        return dataset, training, batches, rates

    def run(self, trial: Trial, proceed: Callable[[Row], bool]) -> TrialResult:
        """One run. `proceed` is shown every row and may end the run (pruned) by returning false.

        A loss, gradient or weight that is not finite, and a matrix that a solver cannot take, is divergence.
        """
        task, began = self.task, time.perf_counter()
        with repeatable(trial.seed, self.device, self.threads, task.deterministic):
            dataset, training, batches, rates = self.build(trial)
            train_rows = len(dataset.train_inputs) if trial.eval_train_size is None else trial.eval_train_size
            evaluations = Evaluations(dataset, task.loss, trial.eval_every, task.eval_batch_size, train_rows)
            torch.manual_seed(trial.seed)  # dropout must not depend on what the factories drew
            rows: list[dict[str, Any]] = []
            seconds: list[float] = []
            status, message = "completed", ""
            try:
                for event in fit(training, batches, task.loss, rates, evaluations):
                    if event.seconds is not None:
                        seconds.append(event.seconds)
                    if event.row is not None:
                        rows.append(dict(event.row))
                        if event.step < task.steps and not proceed(event.row):
                            status = "pruned"
                            break
            except (DivergedError, FloatingPointError, torch.linalg.LinAlgError) as error:
                status, message = "diverged", str(error)
            return TrialResult(
                status=status,
                message=message,
                rows=rows,
                step=training.step,
                time_s=training.seconds,
                step_time_ms=cost_figures(seconds, self.device)["step_time_ms"],
                state_mib=state_bytes(training.optimizer) / 2**20,
                parameters=number_of_parameters(training.model),
                references=dict(dataset.references),
                duration_s=time.perf_counter() - began,
            )
