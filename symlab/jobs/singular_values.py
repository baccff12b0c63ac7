"""Singular values of the Jacobian of a stretch of layers, along the training of variants of one net."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas
import torch
from torch import Tensor

from symlab.comparison.spectra import number_names, paired_rows, summary_numbers
from symlab.curvature.jacobian_spectrum import SingularValues, below
from symlab.curvature.random_matrices import LAWS, UNIFORM_SIGMA
from symlab.curvature.spectrum_measurement import Measurement
from symlab.curvature.spectrum_path import MEASURED, VariantPath, law_rows
from symlab.data.dataset import Dataset
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.bands import check_bands, judge, verdict_lines
from symlab.training.batches import Batches
from symlab.training.build import build_model, build_optimizer, check_batch_norm
from symlab.training.factories import DataFactory, Loss, ModelFactory, OptimizerFactory, PlotFunction, name_of
from symlab.training.order import mix
from symlab.training.place import find_device, find_dtype, repeatable
from symlab.training.progress import progress_bar
from symlab.training.ranges import check_at_least
from symlab.training.signals import stop_on_signals
from symlab.training.sources import in_memory
from symlab.training.update import DivergedError, check_weights, update

RESUMABLE_CHANGES = ("device", "expected", "plots", "progress", "threads", "trials")
KEY_FIGURES = ("numbers",)
COLUMNS = (
    *("min", "q1", "median", "q3", "max", "mean", "condition"),
    *("mean_square", "square_variation", "mean_log", "unresolved"),
)
"""Columns of metrics.csv that the summary has numbers of, beside the shares below the thresholds."""
TABLES = ("metrics", "histogram", "trials")
PLOTS = {"histogram": "histogram", "evolution": "metrics", "loss": "metrics"}
"""Label of a plot -> the table that it is given."""
ROWS_STREAM, PROBES_STREAM = 1, 2  # of the trial's seed

logger = logging.getLogger("symlab")
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What all trials and variants share."""

    dataset: Dataset
    optimizer: OptimizerFactory
    loss: Loss
    measurement: Measurement
    recorded: frozenset[int]
    rows: int
    batch_size: int | None
    steps: int
    place: torch.device
    kind: torch.dtype

    def chosen(self, seed: int) -> tuple[Tensor, Tensor]:
        """The rows of the trial: `rows` random training rows and their targets, the same for all variants."""
        generator = torch.Generator().manual_seed(mix(seed, ROWS_STREAM))
        order = torch.randperm(len(self.dataset.train_inputs), generator=generator)[: self.rows].to(self.place)
        return self.dataset.train_inputs[order], self.dataset.train_targets[order]

    def batches(self, rows: tuple[Tensor, Tensor], seed: int) -> Batches:
        """The full batch of the trial's rows, or mini-batches of all training rows."""
        if self.batch_size is None:
            return Batches(*rows, None, seed)
        data = self.dataset
        return Batches(data.train_inputs, data.train_targets, self.batch_size, seed, augmentation=data.augmentation)


def singular_values(
    run: RunDir,
    *,
    models: Mapping[str, ModelFactory],
    data: DataFactory,
    optimizer: OptimizerFactory,
    loss: Loss,
    plots: Mapping[str, PlotFunction] = MappingProxyType({}),
    start: str = "inputs",
    end: str = "logits",
    batch: str = "joint",
    norm: str = "train",
    rows: int = 32,
    batch_size: int | None = None,
    steps: int = 0,
    iterations: int | Sequence[int] = (0,),
    trials: int = 10,
    method: str = "auto",
    memory_gib: float = 1.0,
    probes: int = 10,
    lanczos_steps: int = 60,
    bins: int = 32,
    limits: Sequence[float] = (0.0, 6.0),
    thresholds: Sequence[float] = (0.25, 1.0),
    loss_window: Sequence[int] | None = None,
    laws: Mapping[str, str] | None = None,
    law_sigma: float = UNIFORM_SIGMA,
    expected: Mapping[str, Sequence[float]] | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    threads: int | None = None,
    progress: bool = True,
) -> Outcome:
    """s_i of J = dy / dx, y the output of the module `end` (`logits`: of the model), x the input of the module `start`
    (`inputs`: of the model), for `models`: variants by name that have the same weights where the seed is the same.

    In each of `trials`, of seeds `seed`, `seed` + 1, ..., `rows` random training rows are chosen. Every variant makes
    `steps` updates on them (`batch_size`: on mini-batches of all training rows instead), and before the updates
    `iterations` (a number: before every so many, and after the last) the singular values are computed for the chosen
    rows: of their `batch`=joint Jacobian or of each row's own (per_sample), batch norm with the batch's statistics
    (`norm`=train) or the running ones (eval), dropout off. See `jacobian_spectrum.singular_values` for `method`
    (auto, gram, svd, lanczos), `memory_gib`, `probes` and `lanczos_steps`, and its `isometry` for the columns.

    Writes metrics.csv (trial, variant, step, loss before the update, numbers of the spectrum, how it was computed),
    histogram.csv (density in `bins` between `limits`, mean over the measured steps; the `laws` of random matrices,
    variant -> a or i_plus_a, with entries of variance `law_sigma`^2 / n), tests.csv (paired tests between variants over
    trials; `loss_window`: first and last step of the tested losses), arrays/trial_<seed>.npz (all singular values).
    Finished trials are kept when a run is resumed.

    A trial whose loss, gradient or Jacobian is not finite is recorded as diverged, counted, and has no later rows; only
    if all trials of all variants diverge, the status is diverged and the exit code 3.

    Raises BadInput for values out of range and stretches that cannot be, before the first step.
    """
    check_at_least(1, rows=rows, trials=trials, bins=bins, batch_size=batch_size)
    check_at_least(0, seed=seed, steps=steps)
    recorded = _recorded(iterations, steps)
    _check(models, limits, thresholds, loss_window, steps, laws or {}, plots)
    columns = [*COLUMNS, *map(below, thresholds)]
    wanted, window = dict(expected or {}), list(loss_window) if loss_window else None
    place, kind = find_device(device), find_dtype(dtype)
    try:
        measurement = Measurement(start, end, batch, norm, method, memory_gib, probes, lanczos_steps)
        check_bands(wanted, number_names(list(models), columns, window))
    except ValueError as error:
        raise BadInput(str(error)) from error
    with stop_on_signals() as stop, repeatable(seed, place, threads, deterministic=False):
        dataset = in_memory(data()).to(place, kind)
        setting = Setting(dataset, optimizer, loss, measurement, recorded, rows, batch_size, steps, place, kind)
        title = f"{measurement}, {rows} {'rows' if rows > 1 else 'row'} of {dataset.name}"
        _first_look(setting, models, plots, seed, title)
        run.write_environment({"device": str(place), "dtype": dtype, "threads": torch.get_num_threads(), "seed": seed})
        done = _keep_finished(run, list(models))
        edges = torch.linspace(float(limits[0]), float(limits[1]), bins + 1, dtype=torch.float64)
        each = len(models) * (steps + 1)
        with progress_bar(trials * each, len(done) * each, progress) as bar:
            for trial in (seed + t for t in range(trials) if seed + t not in done):
                found = _trial(setting, models, trial, stop, bar.update)
                if found is None:
                    break
                _write(run, trial, found, edges, thresholds)
        _write_laws(run, laws or {}, law_sigma, edges)
        summary = _summary(run, list(models), columns, window, wanted, trials)
        summary |= {"data": dataset.name, "rows": rows, "stretch": str(measurement)}
        run.write_summary(summary)
        if summary["trials"]:
            _draw(run, plots, steps, f"{title}, {summary['trials']} trials")
        _log_end(summary, list(models), columns)
        return Outcome(summary["status"], 3 if summary["status"] == "diverged" else stop.exit_code, summary)


def _trial(
    setting: Setting, models: Mapping[str, ModelFactory], seed: int, stop: Callable[[], bool], tick: Callable[[], Any]
) -> list[VariantPath] | None:
    """All variants, one after the other; None when stopped."""
    paths: list[VariantPath] = []
    for name, factory in models.items():
        path = VariantPath(name)
        try:
            for _ in _walk(setting, factory, seed, path):
                if stop():
                    return None
                tick()
        except DivergedError as error:
            path.message = str(error)
            logger.warning("trial %d, %s diverged: %s", seed, name, error)
        paths.append(path)
    return paths


def _walk(setting: Setting, factory: ModelFactory, seed: int, path: VariantPath) -> Iterator[None]:
    """Measure and update in turns, filling `path`; yields after each step."""
    inputs, targets = setting.chosen(seed)
    batches = setting.batches((inputs, targets), seed)
    model = build_model(factory, setting.dataset, seed, setting.place, setting.kind)
    optimizer = build_optimizer(setting.optimizer, model.train(), inputs) if setting.steps else None
    torch.manual_seed(seed)  # dropout must not depend on what the factories drew
    for step in range(setting.steps + 1):
        if step in setting.recorded:
            check_weights(model, step)
            try:
                path.spectra[step] = setting.measurement.of(model, inputs, mix(seed, PROBES_STREAM))
            except FloatingPointError as error:
                raise DivergedError(step, str(error)) from error
        path.losses[step] = None
        if optimizer is not None and step < setting.steps:
            path.losses[step] = update(model, optimizer, setting.loss, *batches.at(step), step)
        yield


def _first_look(
    setting: Setting, models: Mapping[str, ModelFactory], plots: Mapping[str, PlotFunction], seed: int, title: str
) -> None:
    """Everything that can be wrong with the stretch, the rows and the figures, before the first step."""
    count = len(setting.dataset.train_inputs)
    if setting.rows > count:
        raise BadInput(f"rows={setting.rows} is more than the {count} training rows: use at most {count}")
    inputs, _ = setting.chosen(seed)
    setting.batches((inputs, inputs), seed)
    for name, factory in models.items():
        model = build_model(factory, setting.dataset, seed, setting.place, setting.kind)
        trained = [setting.batch_size or setting.rows] if setting.steps else []
        for rows in [*trained, *([setting.rows] if setting.measurement.norm == "train" else [])]:
            check_batch_norm(model, rows)
        try:
            stretch = setting.measurement.stretch(model, inputs)
        except (ValueError, FloatingPointError) as error:
            raise BadInput(f"models.{name}: {error}") from error
        logger.info("%s: x %s -> y %s", name, list(stretch.point.shape), list(stretch.output.shape))
    edges = torch.tensor([0.0, 1.0], dtype=torch.float64)
    one = SingularValues(edges[1:], edges[1:], 1, "gram", "", 0.0)
    tables: dict[str, list[Row]] = {"metrics": [], "histogram": []}
    for name in models:
        path = VariantPath(name, {0: 1.0, 1: 1.0}, {0: one, 1: one})
        tables["metrics"] += path.rows(0, ())
        tables["histogram"] += path.histogram(0, edges)
    for label, plot in plots.items():
        plot(pandas.DataFrame(tables[PLOTS[label]]), {}, title=title)


def _keep_finished(run: RunDir, variants: Sequence[str]) -> set[int]:
    """Trials that a former start has finished; what it has written of others is dropped."""
    recorded: dict[int, set[str]] = {}
    for row in run.read_rows("trials"):
        recorded.setdefault(row["trial"], set()).add(row["variant"])
    done = {trial for trial, names in recorded.items() if names >= set(variants)}
    for table in TABLES:
        run.keep_rows(lambda row: row["trial"] in done, table)
    return done


def _write(run: RunDir, trial: int, paths: Sequence[VariantPath], edges: Tensor, thresholds: Sequence[float]) -> None:
    """One finished trial; its rows in trials.csv come last, and say that it is finished."""
    run.save_arrays(f"trial_{trial}", {name: array for path in paths for name, array in path.arrays().items()})
    run.append_rows([row for path in paths for row in path.rows(trial, thresholds)])
    run.append_rows([row for path in paths for row in path.histogram(trial, edges)], "histogram")
    rows: list[Row] = []
    for path in paths:
        how = next((found.how for found in path.spectra.values()), None)
        status = "completed" if path.message is None else "diverged"
        rows.append({"trial": trial, "variant": path.variant, "status": status, "message": path.message, "how": how})
    run.append_rows(rows, "trials")


def _write_laws(run: RunDir, laws: Mapping[str, str], sigma: float, edges: Tensor) -> None:
    """In place of those that a former start has written."""
    run.keep_rows(lambda row: row["kind"] == MEASURED, "histogram")
    run.append_rows([row for name, law in laws.items() for row in law_rows(name, law, sigma, edges)], "histogram")


def _summary(
    run: RunDir,
    variants: Sequence[str],
    columns: Sequence[str],
    window: Sequence[int] | None,
    wanted: Mapping[str, Sequence[float]],
    trials: int,
) -> dict[str, Any]:
    """Status, counts, numbers and verdicts, from the tables; writes tests.csv."""
    rows, records = run.read_rows(), run.read_rows("trials")
    finished = len({record["trial"] for record in records})
    diverged = {name: sum(r["variant"] == name and r["status"] == "diverged" for r in records) for name in variants}
    status = "completed" if finished >= trials else "interrupted"
    if records and all(count == finished for count in diverged.values()):
        status = "diverged"
    if records:
        run.replace_rows(paired_rows(rows, variants, window), "tests")
    numbers = summary_numbers(rows, variants, columns, window) if records else {}
    return {
        "status": status,
        "trials": finished,
        "diverged": diverged,
        "computed": {name: next((r["how"] for r in records if r["variant"] == name), None) for name in variants},
        "numbers": numbers,
        "expected": judge(wanted, numbers) if status == "completed" else {},
    }


def _recorded(iterations: int | Sequence[int], steps: int) -> frozenset[int]:
    """Numbers of the updates before which the spectrum is computed."""
    if isinstance(iterations, int):
        check_at_least(1, iterations=iterations)
        return frozenset({*range(0, steps + 1, iterations), steps})
    if not iterations or not all(0 <= step <= steps for step in iterations):
        raise BadInput(f"iterations={list(iterations)}: at least one number between 0 and steps={steps}")
    return frozenset(iterations)


def _check(
    models: Mapping[str, ModelFactory],
    limits: Sequence[float],
    thresholds: Sequence[float],
    window: Sequence[int] | None,
    steps: int,
    laws: Mapping[str, str],
    plots: Mapping[str, PlotFunction],
) -> None:
    if not models:
        raise BadInput("models: there is none; take an experiment, or add one: +model@models.NAME=OPTION")
    if len(limits) != 2 or not 0 <= limits[0] < limits[1]:
        raise BadInput(f"limits={list(limits)}: of the histogram, [low, high] with 0 <= low < high")
    if not all(level > 0 for level in thresholds) or len(set(map(below, thresholds))) < len(thresholds):
        raise BadInput(f"thresholds={list(thresholds)}: positive numbers, each once (to six digits)")
    if window is not None and (len(window) != 2 or not 0 <= window[0] <= window[1] < steps):
        raise BadInput(f"loss_window={list(window)}: [first, last] with 0 <= first <= last < steps={steps}")
    for name, law in laws.items():
        if name not in models or law not in LAWS:
            raise BadInput(f"laws.{name}={law}: a variant ({', '.join(models)}) and its law ({', '.join(LAWS)})")
    for label in plots:
        if label not in PLOTS:
            raise BadInput(f"plots.{label}: the figures of this job are {', '.join(PLOTS)}")


def _draw(run: RunDir, plots: Mapping[str, PlotFunction], steps: int, title: str) -> None:
    """The figures from the tables on disk; without training only the histogram."""
    for label, plot in plots.items():
        table = run.read_rows(PLOTS[label])
        if table and (steps or label == "histogram"):
            run.save_figure(name_of(plot), plot(pandas.DataFrame(table), {}, title=title))


def _log_end(summary: Mapping[str, Any], variants: Sequence[str], columns: Sequence[str]) -> None:
    logger.info("%s: %d trials; diverged: %s", summary["status"], summary["trials"], summary["diverged"])
    for name, how in summary["computed"].items():
        logger.info("%s: %s", name, how)
    if summary["numbers"]:
        logger.info("medians over trials\n%s", as_text(summary["numbers"], variants, columns))
    for line in verdict_lines(summary["expected"]):
        logger.info("%s", line)


def as_text(numbers: Mapping[str, Mapping[str, float | None]], variants: Sequence[str], columns: Sequence[str]) -> str:
    """One line per variant, for the console."""
    lines = [" ".join(["variant         ", *(f"{column[:11]:>11}" for column in columns)])]
    for variant in variants:
        values = [numbers[f"{column}_{variant}"]["value"] for column in columns]
        cells = [f"{'-' if value is None else format(value, '.4g'):>11}" for value in values]
        lines.append(" ".join([f"{variant:16}", *cells]))
    return "\n".join(lines)
