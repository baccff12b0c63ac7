"""The largest Hessian eigenvalue through gradient descent, against 2 / lr: the edge of stability."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from symlab.curvature.smoothness import Landscape, LostInRoundingError
from symlab.data.dataset import Dataset
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.bands import check_bands, judge, over_data, verdict_lines
from symlab.training.build import build_model, check_batch_norm, number_of_parameters
from symlab.training.factories import DataFactory, Loss, ModelFactory, PlotFunction, name_of
from symlab.training.place import find_device, find_dtype, repeatable
from symlab.training.progress import progress_bar
from symlab.training.ranges import check_at_least
from symlab.training.signals import StopRequest, stop_on_signals
from symlab.training.sources import in_memory
from symlab.training.update import DivergedError, check_weights, update

KEY_FIGURES = ("numbers",)
RESUMABLE_CHANGES = ("device", "expected", "plot", "progress", "threads")
MEASURES = ("initial", "late", "largest", "crossing", "loss")

logger = logging.getLogger("symlab")
Row = dict[str, Any]


@dataclass(frozen=True)
class Descent:
    """theta <- theta - lr grad L on all training rows, and what is looked at on the way."""

    dataset: Dataset
    loss: Loss
    lr: float
    steps: int
    every: int
    rows: int | None
    products: int
    tolerance: float
    stop: StopRequest

    def trial(self, model: nn.Module, seed: int) -> list[Row] | None:
        """The rows of one run, the last one with `diverged` where it did; None if it was stopped."""
        optimizer = torch.optim.SGD(model.train().parameters(), lr=self.lr)
        data, found = (self.dataset.train_inputs, self.dataset.train_targets), []
        torch.manual_seed(seed)  # dropout must not depend on what the factory drew
        for step in range(self.steps + 1):
            if self.stop():
                return None
            try:
                if step % self.every == 0 or step == self.steps:
                    found.append(self.look(model, step, seed))
                if step < self.steps:
                    update(model, optimizer, self.loss, *data, step)
                    check_weights(model, step + 1)
            except DivergedError:
                return [*found, {"step": step, **dict.fromkeys(CELLS), "diverged": True}]
        return found

    def look(self, model: nn.Module, step: int, seed: int) -> Row:
        """Loss of all rows, and the Hessian's extremes over the first `rows`, None where they are lost in rounding.
        Raises DivergedError where one of them is not finite: a Hessian can overflow before its loss does.
        """
        inputs, targets = self.dataset.train_inputs, self.dataset.train_targets
        loss = Landscape(model, inputs, targets, self.loss).value()
        land = Landscape(model, inputs[: self.rows], targets[: self.rows], self.loss)
        if not math.isfinite(loss):
            raise DivergedError(step, f"the loss is {loss}")
        generator = torch.Generator().manual_seed(seed)
        try:
            found = land.extremes(generator=generator, steps=self.products, tolerance=self.tolerance)
        except LostInRoundingError:
            return {"step": step, **dict.fromkeys(CELLS), "loss": loss, "diverged": False}
        except FloatingPointError as error:
            raise DivergedError(step, str(error)) from error
        cells = (loss, found.largest, found.largest_error, found.smallest, found.largest * self.lr / 2, found.steps)
        return {"step": step, **dict(zip(CELLS, cells, strict=True)), "diverged": False}


CELLS = ("loss", "hessian_largest", "hessian_error", "hessian_smallest", "edge_ratio", "products")


def sharpness(
    run: RunDir,
    *,
    models: Mapping[str, ModelFactory],
    data: DataFactory,
    loss: Loss,
    plot: PlotFunction,
    lr: float = 0.1,
    steps: int = 300,
    every: int = 15,
    rows: int | None = None,
    products: int = 25,
    tolerance: float = 1e-2,
    seeds: Sequence[int] = (0, 1, 2),
    expected: Mapping[str, Sequence[float]] | None = None,
    device: str = "auto",
    dtype: str = "float32",
    threads: int | None = None,
    progress: bool = True,
) -> Outcome:
    """Largest eigenvalue of the Hessian of the training loss after every `every`-th of `steps` updates w <- w - `lr` g.

    Cohen et al. (ICLR 2021): with a fixed rate it rises to about 2 / lr and stays there, while the loss still falls;
    above 2 / lr the step overshoots along its eigenvector. All training rows are one batch, batch norm in training
    mode; the Hessian is of the same loss, or of its first `rows` rows, by Lanczos with at most `products` products
    (`tolerance` relative). Each of `models` is drawn once per seed; nets of equal shapes then start from equal weights
    as far as they draw in the same order. metrics.csv has a row per net, seed and recorded step; a net that diverges
    is counted, its last row is without numbers.

    A stop signal ends with status interrupted and loses the trial that was under way; a resumed run does the rest.

    Raises BadInput, before the first step, for values out of range and models that do not fit the data.
    """
    wanted = dict(expected or {})
    _check(models, lr, steps, every, products, tolerance, seeds, wanted)
    place, kind = find_device(device), find_dtype(dtype)
    if kind is torch.bfloat16:
        raise BadInput("dtype=bfloat16: second derivatives need float32 or float64")
    dataset = in_memory(data()).to(place, kind)
    count = len(dataset.train_inputs)
    if rows is not None and not 1 <= rows <= count:
        raise BadInput(f"rows={rows} does not fit the {count} training rows: use 1 to {count}, or null for all")
    with stop_on_signals() as stop, repeatable(seeds[0], place, threads, deterministic=False):
        sizes = {}
        for name, factory in models.items():
            net = build_model(factory, dataset, seeds[0], place, kind)
            check_batch_norm(net, rows or count)
            sizes[name] = number_of_parameters(net)
        run.write_environment({"device": str(place), "dtype": dtype, "threads": torch.get_num_threads()})
        descent = Descent(dataset, loss, lr, steps, every, rows, products, tolerance, stop)
        trials = [(name, seed) for name in models for seed in seeds]
        done = {(row["variant"], row["seed"]) for row in run.read_rows()}
        with progress_bar(len(trials), len(done), progress) as bar:
            for name, seed in trials:
                if (name, seed) not in done and not stop():
                    model = build_model(models[name], dataset, seed, place, kind)
                    found = descent.trial(model, seed)
                    run.append_rows([{"variant": name, "seed": seed, **row} for row in found or []])
                    bar.update(found is not None)
        if stop():
            return Outcome("interrupted", stop.exit_code, {"message": "finished trials are kept"})
    setting = {"data": dataset.name, "rows": count, "hessian_rows": rows or count, "parameters": sizes, "lr": lr}
    return _finish(run, plot, list(models), wanted, setting | {"steps": steps})


def _finish(
    run: RunDir, plot: PlotFunction, names: Sequence[str], wanted: Mapping[str, Sequence[float]], setting: Row
) -> Outcome:
    import pandas

    found = run.read_rows()
    numbers = summary_numbers(found, names)
    diverged = {name: sum(bool(row["diverged"]) for row in found if row["variant"] == name) for name in names}
    verdicts = judge(wanted, numbers)
    summary = {"status": "completed", **setting, "diverged": diverged, "numbers": numbers, "expected": verdicts}
    run.write_summary(summary)
    title = f"{setting['rows']} rows of {setting['data']}, full-batch gradient descent, lr {setting['lr']:g}"
    run.save_figure(name_of(plot), plot(pandas.DataFrame(found), {"lr": setting["lr"]}, title=title))
    logger.info("%s", as_text(numbers, diverged))
    for line in verdict_lines(verdicts):
        logger.info("%s", line)
    return Outcome("completed", 0, summary)


def number_names(names: Sequence[str]) -> list[str]:
    """Keys of the summary's numbers: <measure>_<net>."""
    return [f"{measure}_{name}" for measure in MEASURES for name in names]


def summary_numbers(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Over seeds (mean, error, spread): initial, late (mean over the last quarter of the recorded steps) and largest
    sharpness in units of 2 / lr; crossing, the first recorded step with sharpness of at least 2 / lr; the last loss.

    None where a seed has no such number: it diverged, did not cross, or its Hessian was lost in rounding.
    """
    numbers = {}
    for name in names:
        trials: dict[int, list[Mapping[str, Any]]] = {}
        for row in rows:
            if row["variant"] == name:
                trials.setdefault(row["seed"], []).append(row)
        each = [_of_trial(own) for own in trials.values()]
        for measure in MEASURES:
            values = [own[measure] for own in each]
            numbers[f"{measure}_{name}"] = over_data(values, [None] * len(values))
    return numbers


def _of_trial(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    if rows[-1]["diverged"] and len(rows) < 2:
        return dict.fromkeys(MEASURES)
    ended = rows[-1]["diverged"]
    recorded = [(row["step"], row["edge_ratio"]) for row in (rows[:-1] if ended else rows)]
    late = [ratio for _, ratio in recorded[-max(len(recorded) // 4, 1) :] if ratio is not None]
    ratios = [(step, ratio) for step, ratio in recorded if ratio is not None]
    return {
        "initial": recorded[0][1],
        "late": None if ended or not late else sum(late) / len(late),
        "largest": max((ratio for _, ratio in ratios), default=None),
        "crossing": next((float(step) for step, ratio in ratios if ratio >= 1), None),
        "loss": None if ended else rows[-1]["loss"],
    }


def as_text(numbers: Mapping[str, Mapping[str, float | None]], diverged: Mapping[str, int]) -> str:
    """One line per net: sharpness in units of 2 / lr."""
    lines = [" ".join([f"{'net':20}", *(f"{measure:>18}" for measure in MEASURES), "diverged"])]
    for name, count in diverged.items():
        cells = [_cell(numbers[f"{measure}_{name}"]) for measure in MEASURES]
        lines.append(" ".join([f"{name:20}", *(f"{cell:>18}" for cell in cells), f"{count:8d}"]))
    return "\n".join(lines)


def _cell(number: Mapping[str, float | None]) -> str:
    if number["value"] is None:
        return "-"
    return f"{number['value']:.3g}" + ("" if number["spread"] is None else f" +- {number['spread']:.2g}")


def _check(
    models: Mapping[str, ModelFactory],
    lr: float,
    steps: int,
    every: int,
    products: int,
    tolerance: float,
    seeds: Sequence[int],
    wanted: Mapping[str, Sequence[float]],
) -> None:
    if not models:
        raise BadInput("models is empty: name at least one, e.g. models=[preact_resnet18]")
    check_at_least(1, steps=steps, every=every, products=products)
    for name, value in {"lr": lr, "tolerance": tolerance}.items():
        if not 0 < value < math.inf:
            raise BadInput(f"{name} must be positive and finite, got {value}")
    if not seeds or not all(seed >= 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise BadInput(f"seeds={list(seeds)}: at least one whole number from 0 on, each once")
    try:
        check_bands(wanted, number_names(list(models)))
    except ValueError as error:
        raise BadInput(str(error)) from error
