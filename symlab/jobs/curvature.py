"""Estimate curvature over an ensemble of independently drawn nets, and fit the theory of their symmetry to it."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import pandas
import torch
from matplotlib.figure import Figure
from torch import nn

from symlab.curvature.problem import Problem
from symlab.curvature.results import Result, results_of
from symlab.curvature.survey import Plan, Survey
from symlab.curvature.tables import block_rows, known_numbers, metrics_row, numbers_in, residual_rows, single_rows
from symlab.data.dataset import Dataset
from symlab.plots.curvature_view import CurvatureView, StepView, layers_of, step_view
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.bands import check_bands, judge, over_data, verdict_lines
from symlab.symmetry import inspect_symmetry
from symlab.symmetry.axis_choice import choose_groups
from symlab.symmetry.groups import Group
from symlab.symmetry.infer import AxisReport
from symlab.training.build import SAMPLE_ROWS, build_model
from symlab.training.factories import Loss, ModelFactory, name_of
from symlab.training.place import find_device, find_dtype, repeatable
from symlab.training.progress import progress_bar
from symlab.training.signals import StopRequest, stop_on_signals
from symlab.training.sources import in_memory

RESUMABLE_CHANGES = ("checkpoint_every_s", "device", "expected", "memory_gib", "plots", "progress", "threads")
"""Keys that may differ when a run is resumed."""

KEY_FIGURES = ("parameters", "factors", "within", "outside")
TABLES = ("metrics", "blocks", "single_models", "residuals")
RESIDUAL_COLUMNS = (
    "data_seed", "step", "quantity", "structure", "models", "groups", "residual", "residual_std", "expected",
    "outside", "outside_std", "noise",
)  # fmt: skip
NAMES = {
    "covariance": "gradient covariance",
    "second_moment": "second moment of the gradient",
    "hessian": "Hessian",
    "ggn": "GGN",
    "fisher": "Fisher",
    "empirical_fisher": "empirical Fisher",
}
"""Of quantities in figures, where a name is not enough."""

T = TypeVar("T")

logger = logging.getLogger("symlab")


class CurvaturePlot(Protocol):
    """Draws one quantity; None where it has nothing to show."""

    def __call__(self, view: CurvatureView, *, title: str) -> Figure | None: ...


def curvature(
    run: RunDir,
    *,
    model: ModelFactory,
    data: Callable[..., Dataset],
    loss: Loss,
    plots: Mapping[str, CurvaturePlot] = MappingProxyType({}),
    quantities: Sequence[str] = ("covariance", "hessian"),
    models: int | Mapping[str, int] = 10000,
    steps: Sequence[int] = (0, 20),
    lr: float = 0.2,
    dense: bool = True,
    memory_gib: float = 1.0,
    row_batch: int | None = None,
    training: bool = False,
    probes: int = 1,
    groups: Mapping[str, str] | None = None,
    wrong_groups: Mapping[str, str] | Literal["auto"] | None = "auto",
    smallest: int = 100,
    singles: int = 10,
    data_seeds: Sequence[int] | None = None,
    expected: Mapping[str, Sequence[float]] | None = None,
    redraw: Path | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float64",
    threads: int | None = None,
    checkpoint_every_s: float = 60.0,
    progress: bool = True,
) -> Outcome:
    """C = (1/N) sum over models i of C_i, after `steps` gradient steps, against its projection on the commutant.

    See docs/curvature.md for the quantities, the tables (metrics, blocks, residuals), the arrays and the figures.
    `models` N, one number or one per quantity; `groups` and `wrong_groups` name axes by role or label, see
    `choose_groups`; wrong_groups auto: {input: permutation}, None: no comparison. `data_seeds`: everything once per
    data set, the data's factory called with seed=... `expected`: key of the summary's numbers -> [low, high]; the
    summary says within or outside, the exit code stays 0.

    A stop signal saves what was summed up and ends with status interrupted; a resumed run goes on from there.

    Raises BadInput, before the start, for values, devices, losses and sizes that cannot work.
    """
    if redraw is not None:
        return _redraw(run, redraw, plots)
    place, kind = find_device(device), find_dtype(dtype)
    if kind is torch.bfloat16:
        raise BadInput("dtype=bfloat16: second derivatives need float32 or float64")
    each = models if isinstance(models, Mapping) else dict.fromkeys(quantities, models)
    plan = _plan(quantities, each, steps, lr, dense, memory_gib, row_batch, training, probes, smallest, singles, seed)
    _check_rest(data_seeds, checkpoint_every_s)
    with stop_on_signals() as stop, repeatable(seed, place, threads, deterministic=False):
        builder = _Builder(model, data, loss, plan, groups or {}, wrong_groups or {}, place, kind)
        seeds = [None] if data_seeds is None else list(data_seeds)
        first, setting = builder.survey(seeds[0])
        _as_bad_input(lambda: check_bands(expected or {}, known_numbers(plan, first.symmetry)))
        _try_figures(plots)
        run.write_environment({"device": str(place), "dtype": dtype, "threads": torch.get_num_threads(), "seed": seed})
        logger.info("%s, %d models at a time; %s", setting["title"], first.chunk, first.symmetry)
        keeper = _Keeper(run, plan, checkpoint_every_s, progress)
        try:
            for data_seed in seeds:
                if data_seed not in keeper.finished and not stop():
                    keeper.finish(first if data_seed == seeds[0] else builder.survey(data_seed)[0], data_seed, stop)
        except FloatingPointError as error:
            cure = (
                f": take a smaller lr ({lr:g}) or fewer steps" if max(steps) else ": the model's first weights give it"
            )
            message = f"{error}{cure}"
            logger.error("diverged, data sets that were finished are kept: %s", message)
            return Outcome("diverged", 3, {"message": message})
        if not keeper.finished.issuperset(seeds):
            return Outcome("interrupted", stop.exit_code, {"message": "saved", "finished": len(keeper.finished)})
    summary = _summary(run, plan, expected or {}, {**setting, "device": str(place), "dtype": dtype, "seed": seed})
    run.write_summary(summary)
    _draw(run, run, plots, summary)
    for line in verdict_lines(summary["expected"]):
        logger.info("%s", line)
    return Outcome("completed", 0, summary)


def _plan(quantities: Sequence[str], models: Mapping[str, int], *rest: Any) -> Plan:
    if len(set(quantities)) < len(quantities):
        raise BadInput(f"quantities must be different, got {list(quantities)}")
    if set(models) != set(quantities):
        raise BadInput(f"models must be one number, or name each of {list(quantities)}, got {dict(models)}")
    plan = Plan({quantity: models[quantity] for quantity in quantities}, *rest)
    _as_bad_input(plan.check)
    return plan


def _as_bad_input(check: Callable[[], T]) -> T:
    """The result of `check`, its ValueError as BadInput."""
    try:
        return check()
    except ValueError as error:
        raise BadInput(str(error)) from error


def _check_rest(data_seeds: Sequence[int] | None, checkpoint_every_s: float) -> None:
    if data_seeds is not None and (not data_seeds or len(set(data_seeds)) < len(data_seeds) or min(data_seeds) < 0):
        raise BadInput(f"data_seeds must be different whole numbers of at least 0, or null, got {list(data_seeds)}")
    if not 0 <= checkpoint_every_s < math.inf:
        raise BadInput(f"checkpoint_every_s must be finite and at least 0, got {checkpoint_every_s}")


@dataclass(frozen=True)
class _Builder:
    """Makes the survey of one data set."""

    model: ModelFactory
    data: Callable[..., Dataset]
    loss: Loss
    plan: Plan
    groups: Mapping[str, str]
    wrong_groups: Mapping[str, str] | Literal["auto"]  # auto: permutations of the inputs, if these have axes
    place: torch.device
    kind: torch.dtype

    def survey(self, data_seed: int | None) -> tuple[Survey, dict[str, Any]]:
        """The survey, and what it is about.

        Raises BadInput for data without a seed, models and losses that do not fit, and sizes beyond the memory.
        """
        dataset = self._dataset(data_seed).to(self.place, self.kind)
        net = build_model(self.model, dataset, self.plan.seed, self.place, self.kind)
        inferred = inspect_symmetry(net, dataset.train_inputs[:SAMPLE_ROWS])

        def build(generator: torch.Generator) -> nn.Module:
            return self.model(dataset.input_shape, dataset.output_size, generator)

        def make() -> Survey:
            right = inferred.symmetry.with_groups(_chosen("groups", inferred.axes, self.groups))
            wrong_groups = self.wrong_groups
            if wrong_groups == "auto":
                has_inputs = any(axis.role == "input" for axis in inferred.axes)
                wrong_groups = {"input": "permutation"} if has_inputs else {}
                if not has_inputs:
                    logger.info("the inputs have one channel: no wrong structure; choose one with wrong_groups")
            wrong = right.with_groups(_chosen("wrong_groups", inferred.axes, wrong_groups))
            if wrong_groups and wrong.groups == right.groups:
                logger.warning("wrong_groups change no group (axes of size 1 have none): there is no wrong structure")
            problem = Problem.of(
                net,
                dataset.train_inputs,
                dataset.train_targets,
                self.loss,
                training=self.plan.training,
                row_batch=self.plan.row_batch,
            )
            return Survey(problem, build, right, None if wrong.groups == right.groups else wrong, self.plan)

        survey = _as_bad_input(make)
        return survey, self._setting(survey, dataset)

    def _setting(self, survey: Survey, dataset: Dataset) -> dict[str, Any]:
        parameters, counts = survey.symmetry.num_parameters, sorted(set(self.plan.models.values()))
        nets = " / ".join(f"{count:,}" for count in counts)
        lr = f", lr {self.plan.lr:g}" if max(self.plan.steps) else ""
        wrong = {} if survey.wrong is None else survey.wrong.groups
        return {
            "title": f"{nets} nets ({name_of(self.model)}, {parameters:,} weights) on {dataset.name}{lr}",
            "data": dataset.name,
            "train_rows": len(dataset.train_inputs),
            "parameters": parameters,
            "factors": survey.symmetry.num_factors,
            "groups": {label: group.value for label, group in survey.symmetry.groups.items()},
            "wrong_groups": {label: group.value for label, group in wrong.items()},
        }

    def _dataset(self, data_seed: int | None) -> Dataset:
        if data_seed is None:
            return in_memory(self.data())
        try:
            return in_memory(self.data(seed=data_seed))
        except TypeError as error:
            raise BadInput(f"data_seeds={data_seed}: the data must be a function of a seed: {error}") from error


def _chosen(key: str, axes: Sequence[AxisReport], choice: Mapping[str, str]) -> dict[str, Group]:
    try:
        return choose_groups(axes, choice)
    except ValueError as error:
        raise BadInput(f"{key}: {error}") from error


class _Keeper:
    """Writes tables, arrays and checkpoints, and picks up from them."""

    def __init__(self, run: RunDir, plan: Plan, every_s: float, progress: bool) -> None:
        self.run, self.plan, self.every_s, self.progress = run, plan, every_s, progress
        rows = run.read_rows()
        wanted = len(plan.quantities) * len(plan.steps)
        counts = Counter(row["data_seed"] for row in rows)
        self.finished = {data_seed for data_seed, count in counts.items() if count == wanted}
        for table in TABLES:
            run.keep_rows(lambda row: row["data_seed"] in self.finished, table)
        self._saved_at = time.monotonic()

    def finish(self, survey: Survey, data_seed: int | None, stop: StopRequest) -> None:
        """Advance the survey to its end or to a stop signal, then write what there is."""
        if self.run.has_checkpoint("last"):
            state = self.run.load_checkpoint("last")
            if state["data_seed"] == data_seed and not state["finished"]:
                _as_bad_input(lambda: survey.load_state_dict(state["survey"]))
                logger.info("continuing at model %d of %d", survey.done, survey.total)
        with progress_bar(survey.total, survey.done, self.progress) as bar:
            while survey.done < survey.total and not stop():
                bar.update(survey.advance())
                if time.monotonic() - self._saved_at >= self.every_s:
                    self.save(survey, data_seed)
        if survey.done < survey.total:
            self.save(survey, data_seed)
        else:
            self.write(survey, data_seed)

    def save(self, survey: Survey, data_seed: int | None) -> None:
        self.run.save_checkpoint("last", {"data_seed": data_seed, "finished": False, "survey": survey.state_dict()})
        self._saved_at = time.monotonic()

    def write(self, survey: Survey, data_seed: int | None) -> None:
        """Arrays and rows of a finished survey; metrics last, for they say that it is finished."""
        results = results_of(survey)
        for result in results:
            self.run.save_arrays(array_name(result.quantity, result.step, data_seed), result.arrays())
        self.run.append_rows([row for result in results for row in residual_rows(result, data_seed)], "residuals")
        self.run.append_rows([row for result in results for row in block_rows(result, data_seed)], "blocks")
        self.run.append_rows([row for result in results for row in single_rows(result, data_seed)], "single_models")
        self.run.append_rows([metrics_row(result, data_seed) for result in results])
        self.run.save_checkpoint("last", {"data_seed": data_seed, "finished": True})
        self.finished.add(data_seed)
        for result in results:
            logger.info("%s", _in_words(result))


def array_name(quantity: str, step: int, data_seed: int | None) -> str:
    """Name of the file of arrays."""
    return f"{quantity}_step{step}" + ("" if data_seed is None else f"_data{data_seed}")


def _in_words(result: Result) -> str:
    told = [f"{result.quantity} at step {result.step}, {result.models} models: {result.factors} factors"]
    for name in ("residual", "expected_residual", "slope", "wrong_residual", "wrong_slope", "correlation_covariance"):
        value, error = result.numbers.get(name), result.errors.get(name)
        if value is not None:
            told.append(f"{name} {value:.3g}" + ("" if error is None else f" +- {error:.1g}"))
    return ", ".join(told)


def _summary(
    run: RunDir, plan: Plan, expected: Mapping[str, Sequence[float]], setting: Mapping[str, Any]
) -> dict[str, Any]:
    """Mean and spread over the data sets of every number of metrics.csv, and the verdicts."""
    metrics = run.read_rows()
    numbers = _over_data(numbers_in(metrics, []))
    judged = numbers | _over_data(numbers_in([], run.read_rows("blocks")))
    missing = {"value": None, "error": None, "spread": None}
    verdicts = judge(expected, {key: judged.get(key, missing) for key in expected})
    told = Counter(found["verdict"] for found in verdicts.values())
    return {
        "status": "completed",
        **setting,
        "models": dict(plan.models),
        "quantities": list(plan.quantities),
        "steps": list(plan.steps),
        "data_seeds": list(dict.fromkeys(row["data_seed"] for row in metrics)),
        "expected": verdicts,
        **{verdict: told[verdict] for verdict in ("within", "outside", "unknown")},
        "numbers": numbers,
    }


def _over_data(numbers: Mapping[str, list[tuple[float | None, float | None]]]) -> dict[str, dict[str, float | None]]:
    return {key: over_data(*zip(*pairs, strict=True)) for key, pairs in numbers.items()}


def _draw(run: RunDir, source: RunDir, plots: Mapping[str, CurvaturePlot], summary: Mapping[str, Any]) -> None:
    """The figures of every quantity, from the files of `source` (its first data set), into `run`."""
    table = pandas.DataFrame(source.read_rows("residuals"), columns=RESIDUAL_COLUMNS)
    seed = summary["data_seeds"][0]
    for quantity in summary["quantities"]:
        arrays = {step: source.read_arrays(array_name(quantity, step, seed)) for step in summary["steps"]}
        layers = layers_of(next(iter(arrays.values())))
        steps = {step: step_view(own) for step, own in arrays.items() if "predicted" in own}
        view = CurvatureView(_name(quantity), layers, steps, table[table["quantity"] == quantity])
        for name, plot in plots.items():
            figure = plot(view, title=f"{_name(quantity)}: {summary['title']}")
            if figure is None:
                logger.info("figure %s of %s is left out: there is nothing that it could show", name, quantity)
            else:
                run.save_figure(f"{quantity}_{name}", figure)


def _try_figures(plots: Mapping[str, CurvaturePlot]) -> None:
    """Draw two weights, so that a figure of another job stops here and not at the end."""
    two, one = np.eye(2), np.ones(1)
    step = StepView(two, two, np.ones(2), one, 2 * one.astype(int), {"2 x": one[:, None]})
    table = pandas.DataFrame([dict.fromkeys(RESIDUAL_COLUMNS, 1.0) | {"structure": "right", "step": 0}])
    for plot in plots.values():
        plot(CurvatureView("curvature", {"a": 1, "b": 1}, {0: step, 1: step}, table), title="curvature")


def _redraw(run: RunDir, path: Path, plots: Mapping[str, CurvaturePlot]) -> Outcome:
    source = RunDir.open(path)
    summary = source.read_summary()
    if source.status != "completed" or "quantities" not in summary:
        raise BadInput(f"redraw={path}: expected a completed run of curvature, this one is {source.status}")
    _draw(run, source, plots, summary)
    return Outcome("completed", 0, {"redrawn": str(source.path)})


def _name(quantity: str) -> str:
    return NAMES.get(quantity, quantity.replace("_", " "))
