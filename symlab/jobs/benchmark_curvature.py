"""Time the vectorised curvature of an ensemble against the plain loop over models with autograd."""

import functools
import logging
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from symlab.curvature.ensemble import descend, draw
from symlab.curvature.estimate import DenseEstimate
from symlab.curvature.gradients import gradients
from symlab.curvature.memory import chunk_size
from symlab.curvature.plain_loop import (
    loop_gradients,
    loop_hessians_at_once,
    loop_hessians_by_row,
    loop_second_moment,
)
from symlab.curvature.probes import fisher_probes
from symlab.curvature.problem import Problem
from symlab.curvature.second_order import hessians
from symlab.curvature.structured_estimate import StructuredEstimate
from symlab.data.dataset import Dataset
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.symmetry import WeightSymmetry, infer_symmetry
from symlab.training.build import SAMPLE_ROWS, build_model
from symlab.training.factories import DataFactory, Loss, ModelFactory
from symlab.training.place import find_device, find_dtype, repeatable
from symlab.training.progress import progress_bar
from symlab.training.sources import in_memory

KEY_FIGURES = ()  # the ratios are in a table of their own, which each run prints
WARM_UP = 3
"""Chunks of models that are not counted: the second one is traced, and caches are filled."""

QUANTITY = {
    "covariance": "covariance",
    "hessian": "hessian",
    "structured_covariance": "covariance",
    "structured_fisher": "fisher",
}
"""Task -> the quantity that it estimates; the structured ones keep blocks alone."""

logger = logging.getLogger("symlab")


class ScalingPlot(Protocol):
    """Draws the rows of the table `scaling`."""

    def __call__(self, rows: Sequence[dict[str, Any]], *, title: str) -> Figure: ...


def benchmark_curvature(
    run: RunDir,
    *,
    model: ModelFactory,
    data: DataFactory,
    loss: Loss,
    plot: ScalingPlot,
    models: Mapping[str, ModelFactory] = MappingProxyType({}),
    tasks: Sequence[str] = ("covariance", "hessian"),
    steps: int = 20,
    lr: float = 0.2,
    counts: Sequence[int] = (100, 1000, 10000),
    loop_models: int = 10,
    loop_threads: int = 1,
    repeats: int = 15,
    memory_gib: float = 1.0,
    row_batch: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = 2,
    progress: bool = True,
) -> Outcome:
    """t(plain loop) / t(vectorised) per model, the median over `repeats` in which the two take turns in one process.

    By the clock and in processor time, all threads of the process together.

    Tasks: covariance, the gradient covariance after `steps` steps of `lr`; hessian; and, against one forward and
    backward pass of the loop, structured_covariance and structured_fisher, which keep the blocks alone. Both sides are
    given the same weights; drawing them is timed apart. The loop has `loop_threads`: more slow its small operations.
    For each number in `counts` a whole run is timed, drawing and
    tracing included, against the loop extrapolated from its median; the further nets `models` are timed per model.
    metrics.csv holds every single time, scaling.csv the whole runs and the further nets.

    Raises BadInput for values, devices and shapes that cannot work.
    """
    _check(tasks, counts, loop_models, loop_threads, repeats, steps, lr)
    place, kind = find_device(device), find_dtype(dtype)
    with repeatable(seed, place, threads, deterministic=False):
        dataset = in_memory(data()).to(place, kind)
        run.write_environment({"device": str(place), "dtype": dtype, "threads": torch.get_num_threads(), "seed": seed})
        rest = (dataset, loss, steps, lr, memory_gib, row_batch, seed, loop_threads)
        main = _Bench(model, *rest)
        table, scaling = [], []
        total = len(tasks) * (1 + len(models)) * repeats
        with progress_bar(total, 0, progress) as bar:
            for task in tasks:
                times = main.times(task, loop_models, repeats, bar.update)
                run.append_rows([{"task": task, "net": "model", **row} for row in times])
                table.append(main.figures(task, times))
                scaling += main.whole_runs(task, counts, table[-1])
                scaling.append(_point("parameters", table[-1]))
                if counts:
                    table[-1] |= _peak_memory(main, task, max(counts))
                for name, factory in models.items():
                    other = _Bench(factory, *rest)
                    times = other.times(task, loop_models, repeats, bar.update)
                    run.append_rows([{"task": task, "net": name, **row} for row in times])
                    scaling.append(_point("parameters", other.figures(task, times)))
        run.append_rows(scaling, "scaling")
        setting = {
            "data": dataset.name,
            "rows": len(dataset.train_inputs),
            "parameters": main.problem.num_parameters,
            "device": str(place),
            "dtype": dtype,
            "threads": torch.get_num_threads(),
            "repeats": repeats,
        }
    logger.info("%s\n%s", ", ".join(f"{key} {value}" for key, value in setting.items()), as_text(table))
    run.save_figure("scaling", plot(scaling, title=f"Curvature of an ensemble, {dtype}, threads: {setting['threads']}"))
    summary = {"status": "completed", **setting, "table": table}
    run.write_summary(summary)
    return Outcome("completed", 0, summary)


def _check(
    tasks: Sequence[str],
    counts: Sequence[int],
    loop_models: int,
    loop_threads: int,
    repeats: int,
    steps: int,
    lr: float,
) -> None:
    unknown = [task for task in tasks if task not in QUANTITY]
    if unknown or not tasks:
        raise BadInput(f"tasks must be some of {', '.join(QUANTITY)}, got {list(tasks)}")
    if any(count < 2 for count in counts):
        raise BadInput(f"counts must hold numbers of at least 2, got {list(counts)}")
    if not loop_models >= 1:
        raise BadInput(f"loop_models must be at least 1, got {loop_models}")
    if not loop_threads >= 1:
        raise BadInput(f"loop_threads must be at least 1, got {loop_threads}")
    if not repeats >= 2:
        raise BadInput(f"repeats must be at least 2, got {repeats}")
    if not steps >= 0:
        raise BadInput(f"steps must be at least 0, got {steps}")
    if not lr > 0:
        raise BadInput(f"lr must be positive, got {lr}")


@dataclass
class _Bench:
    """One net on one data set."""

    model: ModelFactory
    dataset: Dataset
    loss: Loss
    steps: int
    lr: float
    memory_gib: float
    row_batch: int | None
    seed: int
    loop_threads: int

    def __post_init__(self) -> None:
        inputs, targets = self.dataset.train_inputs, self.dataset.train_targets
        net = build_model(self.model, self.dataset, self.seed, inputs.device, inputs.dtype)
        try:
            self.problem = Problem.of(net, inputs, targets, self.loss, row_batch=self.row_batch)
        except ValueError as error:
            raise BadInput(str(error)) from error
        self.symmetry: WeightSymmetry = infer_symmetry(net, inputs[:SAMPLE_ROWS])

    def build(self, generator: torch.Generator) -> nn.Module:
        """One more model of the ensemble."""
        return self.model(self.dataset.input_shape, self.dataset.output_size, generator)

    def chunk(self, task: str) -> int:
        """Models at once. Raises BadInput where one does not fit into the memory."""
        dense = not task.startswith("structured")
        try:
            return chunk_size(self.problem, self.symmetry, [QUANTITY[task]], dense, self.memory_gib, folds=1)
        except ValueError as error:
            raise BadInput(str(error)) from error

    def estimate(self, task: str) -> "DenseEstimate | StructuredEstimate":
        """An empty one that only sums up: no groups, no folds."""
        kind = StructuredEstimate if task.startswith("structured") else DenseEstimate
        return kind(self.symmetry, QUANTITY[task], base=10**12, folds=1)

    def vectorised(self, task: str, parameters: Mapping[str, Tensor], estimate: Any) -> None:
        """The models' curvature, and its sum."""
        if task == "hessian":
            estimate.update(hessians(self.problem, parameters))
        elif task == "structured_fisher":
            estimate.update(*fisher_probes(self.problem, parameters, torch.Generator().manual_seed(self.seed)))
        else:
            steps = self.steps if task == "covariance" else 0
            estimate.update(gradients(self.problem, descend(self.problem, parameters, steps, self.lr)))

    def loop(self, task: str, parameters: Mapping[str, Tensor]) -> Callable[[], Any]:
        """The rival on these models; of its two ways to a Hessian the one that is faster here."""
        if task == "covariance":
            return lambda: loop_second_moment(self.problem, parameters, self.steps, self.lr)
        if task != "hessian":
            return lambda: loop_gradients(self.problem, parameters)
        ways = [
            functools.partial(way, self.problem, parameters) for way in (loop_hessians_at_once, loop_hessians_by_row)
        ]
        for way in ways:
            way()  # not counted
        return min(ways, key=lambda way: min(self._loop_seconds(way) for _ in range(2)))

    def _loop_seconds(self, way: Callable[[], Any]) -> float:
        return _seconds(functools.partial(_with_threads, self.loop_threads, way))[0]

    def times(self, task: str, loop_models: int, repeats: int, tick: Callable[[], Any]) -> list[dict[str, Any]]:
        """Seconds per model of both, in turn, in another order at every repeat; and of drawing one."""
        count = self.chunk(task)
        parameters = draw(self.build, self.problem, self.seed, 0, count)
        few = {name: x[:loop_models] for name, x in parameters.items()}
        own, loop, estimate = len(next(iter(few.values()))), self.loop(task, few), self.estimate(task)
        ways: dict[str, tuple[Callable[[], Any], int]] = {
            "vectorised": (lambda: self.vectorised(task, parameters, estimate), count),
            "loop": (functools.partial(_with_threads, self.loop_threads, loop), own),
            "drawing": (lambda: draw(self.build, self.problem, self.seed, 0, own), own),
        }
        for _ in range(WARM_UP):
            for way, _ in ways.values():
                way()
        rows = []
        for repeat in range(repeats):
            row: dict[str, Any] = {"repeat": repeat, "chunk": count}
            for name in list(ways) if repeat % 2 else list(ways)[::-1]:
                way, number = ways[name]
                wall, processor = _seconds(way)
                row |= {f"{name}_s": wall / number, f"{name}_cpu_s": processor / number}
            rows.append(row)
            tick()
        return rows

    def figures(self, task: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Medians, and quartiles of the ratios within a repeat."""
        names = [f"{way}_{kind}" for kind in ("s", "cpu_s") for way in ("vectorised", "loop", "drawing")]
        median = {name: statistics.median(row[name] for row in rows) for name in names}
        return {
            "task": task,
            "parameters": self.problem.num_parameters,
            "chunk": rows[0]["chunk"],
            **median,
            **_quartiles("speedup", [row["loop_s"] / row["vectorised_s"] for row in rows]),
            **_quartiles("cpu_speedup", [row["loop_cpu_s"] / row["vectorised_cpu_s"] for row in rows]),
            **_quartiles("cost", [row["vectorised_s"] / row["loop_s"] for row in rows]),
        }

    def whole_runs(self, task: str, counts: Sequence[int], figures: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Seconds of runs from nothing, tracing and drawing included, and of the loop by extrapolation."""
        rows = []
        for count in sorted(counts):
            fresh = replace(self)  # nothing traced yet
            seconds, _ = _seconds(functools.partial(fresh.whole_run, task, count))
            loop = count * (figures["loop_s"] + figures["drawing_s"])
            rows.append({**_point("models", figures), "models": count, "vectorised_s": seconds, "loop_s": loop})
        return rows

    def whole_run(self, task: str, count: int) -> Any:
        """The estimate of `count` models."""
        estimate, chunk = self.estimate(task), self.chunk(task)
        for first in range(0, count, chunk):
            size = min(chunk, count - first)
            self.vectorised(task, draw(self.build, self.problem, self.seed, first, size), estimate)
        return estimate


def _point(against: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table `scaling`."""
    keys = ("task", "parameters", "vectorised_s", "loop_s")
    return {"against": against, "models": 1, **{key: figures[key] for key in keys}}


def _seconds(way: Callable[[], Any]) -> tuple[float, float]:
    """By the clock; and of this process's threads on the processor, which other work on the machine hardly touches."""
    began, processor = time.perf_counter(), time.process_time()
    way()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began, time.process_time() - processor


def _with_threads(threads: int, way: Callable[[], Any]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        way()
    finally:
        torch.set_num_threads(before)


def _quartiles(name: str, values: Sequence[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {name: middle, f"{name}_quartiles": [low, high]}


def _peak_memory(bench: _Bench, task: str, count: int) -> dict[str, float]:
    """Largest resident memory of a process of its own, in MiB: before the work (libraries, data), and with it."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (
        bench.model,
        bench.dataset,
        bench.loss,
        bench.steps,
        bench.lr,
        bench.memory_gib,
        bench.row_batch,
        bench.seed,
    )
    process = context.Process(
        target=_report_memory, args=(sender, (*arguments, bench.loop_threads), task, count, torch.get_num_threads())
    )
    process.start()
    sender.close()
    try:
        before, peak = receiver.recv()
    except EOFError:
        raise RuntimeError(f"the process that measures the memory of {task} ended without a result") from None
    finally:
        process.join()
    return {"memory_before_mib": before, "memory_peak_mib": peak, "memory_models": count}


def _report_memory(sender: Any, arguments: tuple[Any, ...], task: str, count: int, threads: int) -> None:
    torch.set_num_threads(threads)
    bench = _Bench(*arguments)
    before = _resident_mib()
    bench.whole_run(task, count)
    sender.send((before, _resident_mib()))


def _resident_mib() -> float:
    """The largest so far. On Linux of this program alone (getrusage counts what its parent had when it was started)."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts in bytes
    return peak / 1024**2


def as_text(table: Sequence[Mapping[str, Any]]) -> str:
    """The table in Markdown."""
    lines = [
        "| task | weights | models at once | vectorised ms | loop ms | drawing ms | loop / vectorised"
        " | the same, processor time | vectorised / loop | peak MiB (before) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        times = " | ".join(f"{1e3 * row[name]:.3g}" for name in ("vectorised_s", "loop_s", "drawing_s"))
        ratios = " | ".join(
            f"{row[name]:.3g} [{row[f'{name}_quartiles'][0]:.3g}, {row[f'{name}_quartiles'][1]:.3g}]"
            for name in ("speedup", "cpu_speedup", "cost")
        )
        memory = f"{row['memory_peak_mib']:.0f} ({row['memory_before_mib']:.0f})" if "memory_peak_mib" in row else ""
        lines.append(f"| {row['task']} | {row['parameters']} | {row['chunk']} | {times} | {ratios} | {memory} |")
    return "\n".join(lines)
