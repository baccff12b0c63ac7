"""Compare an optimizer's steps along its own training run with those that exact local curvature would take."""

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from symlab.curvature.gradients import gradients, losses
from symlab.curvature.local_step import REFERENCES, LocalCurvature, QuadraticModel, cosine
from symlab.curvature.problem import Problem
from symlab.curvature.second_order import empirical_fishers, ggns, hessians
from symlab.data.dataset import Dataset
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.bands import check_bands, judge, over_data, verdict_lines
from symlab.symmetry import WeightSymmetry, infer_symmetry
from symlab.training.batches import Batches
from symlab.training.build import SAMPLE_ROWS, build_model, build_optimizer, check_batch_norm, number_of_parameters
from symlab.training.factories import (
    DataFactory,
    Loss,
    ModelFactory,
    OptimizerFactory,
    PlotFunction,
    Schedule,
    name_of,
)
from symlab.training.fit import Training
from symlab.training.place import find_device, repeatable
from symlab.training.progress import progress_bar
from symlab.training.rates import Rates
from symlab.training.sources import in_memory
from symlab.training.update import DivergedError, check_weights, update

KEY_FIGURES = ("numbers",)
STEP = "step"
"""The reference that stands for the optimizer's own step in the table's column `reference`."""

logger = logging.getLogger("symlab")
Row = dict[str, Any]


def local_curvature(
    run: RunDir,
    *,
    model: ModelFactory,
    data: DataFactory,
    optimizer: OptimizerFactory,
    schedule: Schedule,
    loss: Loss,
    plot: PlotFunction,
    steps: int = 100,
    every: int = 10,
    batch_size: int | None = None,
    damping: float = 1e-3,
    max_parameters: int = 2000,
    row_batch: int | None = 500,
    expected: Mapping[str, Sequence[float]] | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    device: str = "auto",
    threads: int | None = None,
    progress: bool = True,
) -> Outcome:
    """cos(s_t, (|C_t| + eps I)^p g_t), s_t = w_t - w_{t+1} the optimizer's step, C_t the exact curvature at w_t.

    C is the Hessian, the GGN, the mean of the rows' g g^T, or one of them projected on the commutant of the model's
    symmetry, over all training rows; see `local_step.REFERENCES`. eps = `damping` x the largest |eigenvalue| of C.
    Before every `every`-th of `steps` updates and before the last one row per direction goes to metrics.csv: its cosine
    with s_t, and its share of the decrease that the best step would bring under the local quadratic model (see
    `QuadraticModel`); for the step itself also the decrease that the Hessian predicts and the one that happens. The
    summary has the means over the recorded steps: mean, standard deviation and error over `seeds`, which draw weights
    and batches.

    `batch_size` None: the full batch; g_t and C_t are of all rows in any case, in eval mode, `row_batch` rows at a time
    (None: all; no result depends on it). Everything is float64. A loss, gradient or weight that is not finite ends
    with status diverged and exit code 3.

    Raises BadInput for values out of range, and for models of more than `max_parameters` weights.
    """
    _check(steps, every, damping, max_parameters, row_batch, seeds)
    wanted = dict(expected or {})
    try:
        check_bands(wanted, number_names())
    except ValueError as error:
        raise BadInput(str(error)) from error
    place = find_device(device)
    dataset = in_memory(data()).to(place, torch.float64)
    rates, batches = Rates(schedule, 0, steps), [_batches(dataset, batch_size, seed) for seed in seeds]
    message, recorded = None, {*range(0, steps, every), steps - 1}
    title = f"{name_of(optimizer)}, {name_of(model)} on {dataset.name}"
    with (
        repeatable(seeds[0], place, threads, deterministic=False),
        progress_bar(len(seeds) * steps, 0, progress) as bar,
    ):
        net = build_model(model, dataset, seeds[0], place, torch.float64)
        parameters = _parameters(net, max_parameters)
        check_batch_norm(net, batch_size or len(dataset.train_inputs))
        run.write_environment({"device": str(place), "dtype": "float64", "threads": torch.get_num_threads()})
        for seed, own in zip(seeds, batches, strict=True):
            net = build_model(model, dataset, seed, place, torch.float64)
            training = Training(net, build_optimizer(optimizer, net, dataset.train_inputs))
            torch.manual_seed(seed)  # dropout must not depend on what the factories drew
            probe = Probe.of(net, dataset, loss, row_batch, damping)
            try:
                for rows in walk(training, probe, own, loss, rates, recorded):
                    if not run.rows_written:
                        _figure(plot, rows, title)  # one that does not fit stops here and not at the end
                    run.append_rows([{"seed": seed, **row} for row in rows])
                    bar.update()
            except DivergedError as error:
                message = f"seed {seed}, {error}"
                break
    summary = _summary(run.read_rows(), message, wanted)
    summary |= {"data": dataset.name, "rows": len(dataset.train_inputs), "parameters": parameters, "damping": damping}
    run.write_summary(summary)
    if found := run.read_rows():
        run.save_figure(name_of(plot), _figure(plot, found, f"{title}: {parameters} weights, damping {damping:g}"))
    _log_end(summary)
    return Outcome(summary["status"], 0 if message is None else 3, summary)


@dataclass(frozen=True)
class Probe:
    """What is measured, and of which function."""

    dataset: Dataset
    loss: Loss
    symmetry: WeightSymmetry
    row_batch: int | None
    damping: float  # relative

    @classmethod
    def of(cls, model: nn.Module, dataset: Dataset, loss: Loss, row_batch: int | None, damping: float) -> "Probe":
        """The symmetry is that of the model's trainable parameters, in the order of every matrix."""
        symmetry = infer_symmetry(model, dataset.train_inputs[:SAMPLE_ROWS])
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        return cls(dataset, loss, symmetry.restrict(names), row_batch, damping)

    def problem(self, model: nn.Module) -> Problem:
        """With the model's present buffers: those of batch norm move along the run."""
        rows = self.dataset.train_inputs, self.dataset.train_targets
        return Problem.of(model, *rows, self.loss, row_batch=self.row_batch)

    def at(self, problem: Problem, weights: Mapping[str, Tensor], step: int) -> LocalCurvature:
        """g and all C at the weights [1, *shape].

        Raises DivergedError where one is not finite.
        """
        g = problem.flatten(gradients(problem, weights))[0]  # [P]
        matrices = {
            "hessian": hessians(problem, weights)[0],
            "ggn": ggns(problem, weights)[0],
            "empirical_fisher": empirical_fishers(problem, weights)[0],
        }  # each [P, P]
        for name, tensor in {"gradient": g, **matrices}.items():
            if not bool(tensor.isfinite().all()):
                raise DivergedError(step, f"the {name} over all rows is not finite; a smaller lr may help")
        return LocalCurvature(g, matrices, self.symmetry)


def walk(
    training: Training, probe: Probe, batches: Batches, loss: Loss, rates: Rates, recorded: Collection[int]
) -> Iterator[list[Row]]:
    """One training run; yields the rows of each update, none where it is not `recorded`.

    Raises DivergedError at the first loss, gradient, curvature or weight that is not finite.
    """
    model = training.model.train()
    for step in range(rates.total_steps):
        rates.set(training.optimizer, training.base_rates, step)
        problem = probe.problem(model) if step in recorded else None
        before = _weights(model)
        local = probe.at(problem, before, step) if problem else None
        update(model, training.optimizer, loss, *batches.at(step), step)
        check_weights(model, step + 1)
        yield compare(problem, local, before, _weights(model), step, probe.damping) if problem and local else []


def compare(
    problem: Problem,
    local: LocalCurvature,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    step: int,
    damping: float,
) -> list[Row]:
    """The rows of one update: the step itself, then every reference."""
    quadratic = QuadraticModel.of(local, damping)
    taken = (problem.flatten(before) - problem.flatten(after))[0]  # [P]
    value = float(losses(problem, before))
    own = {"predicted_decrease": quadratic.decrease(taken), "decrease": value - float(losses(problem, after))}
    rows: list[Row] = [{"reference": STEP, "cosine": None, "share": quadratic.share(taken), **own}]
    for reference in REFERENCES:
        direction = local.direction(reference, damping)  # [P]
        found = {"cosine": cosine(taken, direction), "share": quadratic.share(direction)}
        rows.append({"reference": reference.name, **found, **dict.fromkeys(own)})
    return [{"step": step, "loss": value, **{key: _known(cell) for key, cell in row.items()}} for row in rows]


def _known(cell: Any) -> Any:
    """None for nan: the step, or the gradient, was zero."""
    return None if isinstance(cell, float) and math.isnan(cell) else cell


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the trainable weights [1, *shape]."""
    return {name: p.detach().clone().unsqueeze(0) for name, p in model.named_parameters() if p.requires_grad}


def _batches(dataset: Dataset, batch_size: int | None, seed: int) -> Batches:
    rows = dataset.train_inputs, dataset.train_targets
    return Batches(*rows, batch_size, seed, augmentation=dataset.augmentation)


def _check(
    steps: int, every: int, damping: float, max_parameters: int, row_batch: int | None, seeds: Sequence[int]
) -> None:
    counts = {"steps": steps, "every": every, "max_parameters": max_parameters, "row_batch": row_batch}
    for name, value in counts.items():
        if value is not None and not value >= 1:
            raise BadInput(f"{name} must be at least 1, got {value}")
    if not 0 < damping < math.inf:
        raise BadInput(f"damping must be positive and finite, got {damping}: the exact curvature is singular")
    if not seeds or not all(seed >= 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise BadInput(f"seeds={list(seeds)}: at least one whole number from 0 on, each once")


def _parameters(net: nn.Module, most: int) -> int:
    """Number of weights, if their matrices are small enough to be exact."""
    count = number_of_parameters(net)
    if count > most:
        size = 8 * count**2 / 2**30
        raise BadInput(
            f"the model has {count:,} weights, more than max_parameters={most}: each of several matrices would take"
            f" {size:.3g} GiB, and its eigenvectors long; take a smaller model, e.g. data=digits model.hidden=[10], or"
            " experiment=local_curvature_tanh"
        )
    return count


def number_names() -> list[str]:
    """Keys of the summary's numbers: cosine_<reference>, share_<reference> and, for curvature that is there both exact
    and structured, gain_<reference>: by how much the structured one's cosine is larger.
    """
    names = [reference.name for reference in REFERENCES]
    gains = [name for name in names if f"structured_{name}" in names]
    shares = [f"share_{STEP}", *(f"share_{name}" for name in names)]
    return [*(f"cosine_{name}" for name in names), *shares, *(f"gain_{name}" for name in gains)]


def summary_numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """For each of `number_names` the mean over the recorded steps: mean over seeds, its error, and the spread."""
    numbers = {}
    for name in number_names():
        column, _, reference = name.partition("_")
        if column == "gain":
            pairs = zip(
                _means(rows, "cosine", f"structured_{reference}"), _means(rows, "cosine", reference), strict=True
            )
            means = [None if own is None or exact is None else own - exact for own, exact in pairs]
        else:
            means = _means(rows, column, reference)
        numbers[name] = over_data(means, [None] * len(means))
    return numbers


def _means(rows: Sequence[Mapping[str, Any]], column: str, reference: str) -> list[float | None]:
    """For each seed the mean of the column over the recorded steps."""
    by_seed: dict[int, list[float | None]] = {}
    for row in rows:
        if row["reference"] == reference:
            by_seed.setdefault(row["seed"], []).append(row[column])
    return [_mean([cell for cell in cells if cell is not None]) for cells in by_seed.values()]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _summary(
    rows: Sequence[Mapping[str, Any]], message: str | None, wanted: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Numbers and verdicts of a completed run; of a diverged one neither, its rows end too early."""
    if message is not None:
        return {"status": "diverged", "message": message, "numbers": {}, "expected": {}}
    numbers = summary_numbers(rows)
    return {"status": "completed", "message": None, "numbers": numbers, "expected": judge(wanted, numbers)}


def as_text(numbers: Mapping[str, Mapping[str, float | None]]) -> str:
    """One line per direction, for the console: mean and, over several seeds, standard deviation."""
    lines = [f"{'direction':32} {'cosine with the step':>22} {'share of the decrease':>22}"]
    for name in (STEP, *(reference.name for reference in REFERENCES)):
        cells = [_cell(numbers.get(f"{column}_{name}")) for column in ("cosine", "share")]
        lines.append(f"{name:32} {cells[0]:>22} {cells[1]:>22}")
    return "\n".join(lines)


def _cell(number: Mapping[str, float | None] | None) -> str:
    if number is None or number["value"] is None:
        return "-"
    spread = "" if number["spread"] is None else f" ± {number['spread']:.3f}"
    return f"{number['value']:.3f}{spread}"


def _figure(plot: PlotFunction, rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    import pandas

    return plot(pandas.DataFrame(rows), {}, title=title)


def _log_end(summary: Mapping[str, Any]) -> None:
    if summary["message"]:
        logger.error("diverged, everything so far is kept: %s", summary["message"])
        return
    logger.info("means over the recorded steps\n%s", as_text(summary["numbers"]))
    for line in verdict_lines(summary["expected"]):
        logger.info("%s", line)
