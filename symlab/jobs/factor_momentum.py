"""Does a running average over the steps of one net stand for the average over nets? Momentum of structured factors."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from symlab.curvature.ensemble import draw
from symlab.curvature.factor_momentum import (
    ALL,
    FactorLayout,
    RunningAverage,
    mean_of_others,
    pairwise_correlation,
)
from symlab.curvature.gradients import gradients, losses
from symlab.curvature.measures import correlations
from symlab.curvature.problem import Problem
from symlab.data.dataset import Dataset
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.bands import check_bands, judge, verdict_lines
from symlab.symmetry import infer_symmetry
from symlab.training.build import SAMPLE_ROWS, build_model
from symlab.training.factories import DataFactory, Loss, ModelFactory, PlotFunction, name_of
from symlab.training.place import find_device, find_dtype, repeatable
from symlab.training.progress import progress_bar
from symlab.training.sources import in_memory
from symlab.training.update import DivergedError

KEY_FIGURES = ("numbers",)
MEASURES = ("pairwise", "gain", "agreement", "agreement_start", "drift_start")

logger = logging.getLogger("symlab")
Parameters = dict[str, Tensor]


@dataclass
class Averages:
    """What the nets remember of their factors: an average per beta, and the ensemble's means that drift is told by."""

    running: Mapping[float, RunningAverage]
    start: Tensor | None = None  # [S, F], factors at step 0
    recent: dict[float, Tensor] = field(default_factory=dict)  # beta -> [F], mean over nets at the last recorded step


def factor_momentum(
    run: RunDir,
    *,
    model: ModelFactory,
    data: DataFactory,
    loss: Loss,
    plot: PlotFunction,
    models: int = 10,
    steps: int = 999,
    every: int = 10,
    report: Sequence[int] = (100, 999),
    betas: Sequence[float] = (0.0, 0.9, 0.95, 0.98),
    lr: float = 0.8,
    normalise: bool = False,
    memory_gib: float = 1.0,
    expected: Mapping[str, Sequence[float]] | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    threads: int | None = None,
    progress: bool = True,
) -> Outcome:
    """M_k <- beta M_k + (1 - beta) G_k G_k^T / D_k of `models` nets, trained apart on the same data by w <- w - `lr` g.

    Per beta, and per pair of tensors, the mean correlation between nets of their own averaged factors (Bernacchia, ICML
    2025, momentum), how far one net's average agrees with the other nets' mean factors of this step and of the start,
    and how far the ensemble's mean has drifted: after every `every` of `steps` updates and at those of `report`, which
    the summary speaks of. `normalise` divides each step's factors by the squared norm of its gradient, so that the
    first, large gradients do not rule the average. No number depends on the bias correction 1 / (1 - beta^t).

    Factors and their averages are float64, whatever the `dtype` of weights and data. A gradient that is not finite
    ends with status diverged and exit code 3.

    Raises BadInput for values out of range, and for factors that do not fit `memory_gib`.
    """
    _check(models, steps, every, report, betas, lr, memory_gib)
    wanted = dict(expected or {})
    try:
        check_bands(wanted, number_names(betas, report))
    except ValueError as error:
        raise BadInput(str(error)) from error
    place, kind = find_device(device), find_dtype(dtype)
    with repeatable(seed, place, threads, deterministic=False):
        dataset = in_memory(data()).to(place, kind)
        problem, layout, parameters = _nets(model, dataset, loss, models, seed, (place, kind))
        _check_memory(layout, models, len(betas), memory_gib)
        run.write_environment({"device": str(place), "dtype": dtype, "threads": torch.get_num_threads(), "seed": seed})
        recorded = sorted({*range(0, steps + 1, every), *report, steps})
        averages = Averages({beta: RunningAverage(beta) for beta in betas})
        events = descent(problem, layout, parameters, averages, recorded, lr, normalise)
        title = f"factors of {models} nets, {name_of(model)} on {dataset.name}, lr {lr:g}"
        title += ", each step normalised" if normalise else ""
        message = _record(run, events, steps + 1, progress, lambda rows: _figure(plot, rows, title))
    rows = run.read_rows()
    setting = {
        "data": dataset.name,
        "rows": len(dataset.train_inputs),
        "models": models,
        "parameters": problem.num_parameters,
        "factors": layout.symmetry.num_factors,
    }
    numbers = summary_numbers(rows, betas, report) if message is None else {}
    summary: dict[str, Any] = {"status": "completed" if message is None else "diverged", "message": message, **setting}
    summary |= {"numbers": numbers, "expected": judge(wanted, numbers) if numbers else {}}
    run.write_summary(summary)
    if rows:
        run.save_figure(name_of(plot), _figure(plot, rows, title))
    if message is not None:
        logger.error("diverged, everything so far is kept: %s", message)
    else:
        logger.info("mean correlations\n%s", as_text(numbers, betas, report))
    for line in verdict_lines(summary["expected"]):
        logger.info("%s", line)
    return Outcome(summary["status"], 0 if message is None else 3, summary)


def descent(
    problem: Problem,
    layout: FactorLayout,
    parameters: Parameters,
    averages: Averages,
    recorded: Sequence[int],
    lr: float,
    normalise: bool,
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Gradient descent of all nets [S, *shape]; yields each step and its rows, none where it is not `recorded`.

    Raises DivergedError at the first gradient that is not finite.
    """
    wanted = set(recorded)
    for step in range(max(recorded) + 1):
        g = gradients(problem, parameters)  # [S, *shape]
        current = layout.entries(g)  # [S, F]
        if not bool(current.isfinite().all()):
            raise DivergedError(step, "a gradient is not finite; a smaller lr may help")
        if normalise:
            current = current / layout.squared_norms(g)[:, None]
        if averages.start is None:
            averages.start = current
        for running in averages.running.values():
            running.update(current)
        rows = measure(step, layout, averages, current) if step in wanted else []
        loss = float(losses(problem, parameters).mean()) if rows else None
        yield step, [row | {"loss": loss} for row in rows]
        parameters = {name: w - lr * g[name] for name, w in parameters.items()}


def measure(step: int, layout: FactorLayout, averages: Averages, current: Tensor) -> list[dict[str, Any]]:
    """One row per beta and part of the factors; `current` [S, F] are the nets' factors at this step alone.

    agreement: correlation of one net's average with the other nets' mean of the current factors; agreement_average:
    with the other nets' mean average; agreement_start: with the other nets' mean factors at step 0. drift_start and
    drift_recent: of the ensemble's mean average with the factors at step 0, and with its own at the last recorded step.
    """
    values = {beta: running.value() for beta, running in averages.running.items()}  # [S, F]
    others = mean_of_others(current)  # [S, F]
    rows = []
    for part, where in layout.parts.items():
        plain = pairwise_correlation(current[:, where])
        start = _required(averages.start)[:, where]
        for beta, value in values.items():
            own, mean, recent = value[:, where], value.mean(0)[where], averages.recent.get(beta)
            pairwise = pairwise_correlation(own)
            gain, gain_error = pairwise.gain(plain)
            rows.append(
                {"step": step, "beta": beta, "part": part}
                | {"pairwise": pairwise.mean, "pairwise_std": pairwise.std, "pairwise_error": pairwise.error}
                | {"gain": gain, "gain_error": gain_error}
                | _spread("agreement", correlations(own, others[:, where]))
                | _spread("agreement_average", correlations(own, mean_of_others(own)))
                | _spread("agreement_start", correlations(own, mean_of_others(start)))
                | {"drift_start": float(correlations(mean, start.mean(0)))}
                | {"drift_recent": None if recent is None else float(correlations(mean, recent[where]))}
            )
    averages.recent = {beta: value.mean(0) for beta, value in values.items()}
    return rows


def _spread(name: str, values: Tensor) -> dict[str, float]:
    """Mean over nets, and standard deviation."""
    return {name: float(values.mean()), f"{name}_std": float(values.std())}


def number_names(betas: Sequence[float], report: Sequence[int]) -> list[str]:
    """Keys of the summary's numbers: <measure>_beta<beta>_step<step>, the point of the beta written as _."""
    return [_name(measure, beta, step) for measure in MEASURES for beta in betas for step in report]


def _name(measure: str, beta: float, step: int) -> str:
    return f"{measure}_beta{f'{beta:g}'.replace('.', '_')}_step{step}"


def summary_numbers(
    rows: Sequence[Mapping[str, Any]], betas: Sequence[float], report: Sequence[int]
) -> dict[str, dict[str, float | None]]:
    """For each of `number_names`: the value for all factors together, and its standard error over nets."""
    found = {(row["beta"], row["step"]): row for row in rows if row["part"] == ALL}
    numbers = {}
    for measure in MEASURES:
        for beta in betas:
            for step in report:
                row = found[beta, step]
                numbers[_name(measure, beta, step)] = {"value": row[measure], "error": row.get(f"{measure}_error")}
    return numbers


def _nets(
    model: ModelFactory,
    dataset: Dataset,
    loss: Loss,
    models: int,
    seed: int,
    where: tuple[torch.device, torch.dtype],
) -> tuple[Problem, FactorLayout, Parameters]:
    """The function that is trained, where its factors stand, and the weights of all nets [S, *shape]."""
    net = build_model(model, dataset, seed, *where)
    problem = Problem.of(net, dataset.train_inputs, dataset.train_targets, loss)
    symmetry = infer_symmetry(net, dataset.train_inputs[:SAMPLE_ROWS]).restrict(problem.names)

    def build(generator: torch.Generator) -> torch.nn.Module:
        return model(dataset.input_shape, dataset.output_size, generator).to(*where)

    return problem, FactorLayout.of(symmetry), draw(build, problem, seed, 0, models)


def _check(
    models: int,
    steps: int,
    every: int,
    report: Sequence[int],
    betas: Sequence[float],
    lr: float,
    memory_gib: float,
) -> None:
    if not models >= 2:
        raise BadInput(f"models must be at least 2, to be compared with each other, got {models}")
    for name, value in (("steps", steps), ("every", every)):
        if not value >= 1:
            raise BadInput(f"{name} must be at least 1, got {value}")
    for name, number in (("lr", lr), ("memory_gib", memory_gib)):
        if not 0 < number < math.inf:
            raise BadInput(f"{name} must be positive and finite, got {number}")
    outside = [step for step in report if not 0 <= step <= steps]
    if outside or len(set(report)) < len(report):
        raise BadInput(f"report={list(report)}: steps between 0 and steps={steps}, each once")
    if not betas or not all(0 <= beta < 1 for beta in betas) or len({f"{beta:g}" for beta in betas}) < len(betas):
        raise BadInput(f"betas={list(betas)}: at least one number in [0, 1), each once (to six digits)")


def _check_memory(layout: FactorLayout, models: int, betas: int, memory_gib: float) -> None:
    """A vector of factors per net: one average per beta, the present factors, and two copies to compare them."""
    needed = 8 * layout.size * models * (2 * betas + 3) / 2**30
    if needed > memory_gib:
        raise BadInput(
            f"the {layout.size} entries of the factors of {models} nets, {betas} averages each, need {needed:.3g} GiB,"
            f" more than memory_gib={memory_gib:g}: take fewer models or betas, or a smaller net"
        )


def _record(
    run: RunDir,
    events: Iterable[tuple[int, list[dict[str, Any]]]],
    total: int,
    progress: bool,
    try_figure: Callable[[list[dict[str, Any]]], object],
) -> str | None:
    """Write rows as they come; returns what went wrong if a net diverged. `try_figure` is given the first ones."""
    with progress_bar(total, 0, progress) as bar:
        try:
            for step, rows in events:
                if step == 0:
                    try_figure(rows)
                if rows:
                    run.append_rows(rows)
                bar.update()
        except DivergedError as error:
            return str(error)
    return None


def _figure(plot: PlotFunction, rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    import pandas

    return plot(pandas.DataFrame(rows), {}, title=title)


def as_text(numbers: Mapping[str, Mapping[str, float | None]], betas: Sequence[float], report: Sequence[int]) -> str:
    """One line per reported step and beta, for the console."""
    lines = [" ".join(["   step   beta", *(f"{name:>15}" for name in MEASURES)])]
    for step in report:
        for beta in betas:
            cells = [numbers[_name(name, beta, step)]["value"] for name in MEASURES]
            lines.append(f"{step:7d} {beta:6g} " + " ".join(f"{cell:15.3f}" for cell in cells))
    return "\n".join(lines)


def _required(start: Tensor | None) -> Tensor:
    if start is None:
        raise ValueError("the factors of step 0 are missing")
    return start
