"""Check the theory of normalised residual networks: lower bounds, smoothness, and gradient descent from many starts."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from symlab.curvature.convergence_rows import Probe, bound_cells, known, path_rows, recorded_steps
from symlab.curvature.layerwise_bound import lower_bound
from symlab.curvature.many_starts import ManyStarts, Vectors
from symlab.curvature.smoothness import Landscape
from symlab.curvature.theorem_table import STATEMENTS, Measured, theorem_rows
from symlab.data.dataset import Dataset
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.bands import check_bands, judge, verdict_lines
from symlab.training.build import build_model, number_of_parameters
from symlab.training.factories import DataFactory, Loss, ModelFactory, PlotFunction
from symlab.training.place import find_device, repeatable
from symlab.training.progress import progress_bar
from symlab.training.ranges import check_at_least
from symlab.training.signals import StopRequest, stop_on_signals
from symlab.training.sources import in_memory

KEY_FIGURES = ("theorems",)
RESUMABLE_CHANGES = ("checkpoint_every_s", "device", "expected", "level", "plots", "progress", "promises", "threads")
FIGURES = ("loss", "regularity", "terms", "sharpness", "scales", "growth")
MOST_OUTPUTS = 2000
"""Rows times outputs: the derivative of all outputs is a dense matrix with so many rows."""

logger = logging.getLogger("symlab")
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is done with each kind of net."""

    lr: float
    steps: int
    measures: int
    scales: Sequence[float]
    seeds: Sequence[int]
    draws: int
    draw_scales: Sequence[float]
    controls: bool
    products: int
    tolerance: float

    def starts(self) -> list[Row]:
        """The labels of all starts of one kind of net."""
        return [{"scale": float(scale), "seed": seed} for scale in self.scales for seed in self.seeds]

    def drawn(self) -> list[int]:
        """Seeds of the random nets at each scale, far from those of the starts."""
        return [1_000_000 + i for i in range(self.draws)]


def convergence(
    run: RunDir,
    *,
    models: Mapping[str, ModelFactory],
    data: DataFactory,
    loss: Loss,
    plots: Mapping[str, PlotFunction] = MappingProxyType({}),
    promises: Mapping[str, Sequence[str]] | None = None,
    lr: float = 0.1,
    steps: int = 4000,
    measures: int = 14,
    scales: Sequence[float] = (0.01, 0.1, 1.0, 10.0, 100.0),
    seeds: Sequence[int] = (0, 1, 2),
    level: float = 0.1,
    draws: int = 5,
    draw_scales: Sequence[float] = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
    controls: bool = True,
    products: int = 60,
    tolerance: float = 1e-3,
    expected: Mapping[str, Sequence[float]] | None = None,
    device: str = "auto",
    threads: int | None = None,
    checkpoint_every_s: float = 60.0,
    progress: bool = True,
) -> Outcome:
    """theta <- theta - `lr` grad L from every start, and lambda(DF) >= sum_l lambda(Df_l) prod_{k>l} lambda(Jf_k) on
    the way and at random weights (MacDonald et al., NeurIPS 2023): see docs/convergence.md.

    A start is a net of `models` drawn from one of `seeds`, its weights times one of `scales`; all starts go `steps`
    full-batch updates with the one `lr`, and at about `measures` steps, spaced by their logarithm, one row per start
    goes to metrics.csv and one per layer to layers.csv. Before that `draws` random nets per scale of `draw_scales`
    go to draws.csv, with `controls` (at scale 1, `lambda(DF)` only) of data that break the theorem's conditions: a row
    that occurs twice, and more rows than inputs. theorems.csv says for each statement and kind of net what was measured
    and whether it holds; `promises` names, per statement, the nets that meet its conditions. `products`, `tolerance`:
    of the Lanczos runs for the Hessian's extremes. Everything is float64, in eval mode.

    A stop signal saves the starts and ends with status interrupted; a resumed run goes on from there. Nets that diverge
    are counted, and are no reason to end: they are controls.

    Raises BadInput, before the first step, for values out of range and for nets or data that are too large.
    """
    plan = Plan(lr, steps, measures, scales, seeds, draws, draw_scales, controls, products, tolerance)
    wanted, named = dict(expected or {}), promises or {}
    _check(plan, models, plots, named, level, checkpoint_every_s, wanted)
    place = find_device(device)
    dataset = in_memory(data()).to(place, torch.float64)
    with stop_on_signals() as stop, repeatable(seeds[0], place, threads, deterministic=False):
        nets = {name: _Net.of(name, factory, dataset, loss, plan, place) for name, factory in models.items()}
        run.write_environment({"device": str(place), "dtype": "float64", "threads": torch.get_num_threads()})
        walk = _Walk(run, plan, checkpoint_every_s, stop)
        with progress_bar(len(nets) * steps, walk.done_before(list(nets)), progress) as bar:
            for name, net in nets.items():
                if name not in walk.finished and not stop():
                    walk.draw(net)
                    walk.descend(net, bar.update)
        if not walk.finished.issuperset(nets):
            return Outcome("interrupted", stop.exit_code, {"message": "saved", "finished": len(walk.finished)})
    return _finish(run, plots, named, level, wanted, _setting(dataset, nets, plan))


@dataclass(frozen=True)
class _Net:
    """One kind of net on the data."""

    name: str
    factory: ModelFactory
    dataset: Dataset
    loss: Loss
    plan: Plan
    place: torch.device

    @classmethod
    def of(cls, name: str, *rest: Any) -> "_Net":
        """Raises BadInput where the derivative of its outputs would be too large, or not be there."""
        net = cls(name, *rest)
        rows = len(net.dataset.train_inputs)
        outputs = rows * net.dataset.output_size
        if outputs > MOST_OUTPUTS:
            raise BadInput(
                f"{rows} rows with {net.dataset.output_size} outputs each are {outputs} numbers to differentiate, more"
                f" than {MOST_OUTPUTS}: take fewer rows, e.g. data.num_train=12"
            )
        net.model(net.plan.seeds[0])
        if net.plan.controls and net.plan.draws:
            net.rows_beyond()
        return net

    def model(self, seed: int) -> torch.nn.Module:
        return build_model(self.factory, self.dataset, seed, self.place, torch.float64).eval()

    def weights(self, label: Mapping[str, Any]) -> Tensor:
        """scale x the weights that the seed gives, [P]."""
        model = self.model(label["seed"])
        return label["scale"] * Vectors.of(model).read(model)

    def landscape(self) -> Landscape:
        model = self.model(self.plan.seeds[0])
        return Landscape(model, self.dataset.train_inputs, self.dataset.train_targets, self.loss)

    def starts(self) -> ManyStarts:
        land = self.landscape()
        weights = torch.stack([self.weights(label) for label in self.plan.starts()])
        return ManyStarts(land.model, land.inputs, land.targets, self.loss, self.plan.lr, weights)

    def probe(self) -> Probe:
        return Probe(self.landscape(), self.plan.products, self.plan.tolerance, self.plan.seeds[0])

    def rows_beyond(self) -> Tensor:
        """One row more than a row has numbers, of both splits."""
        every = torch.cat([self.dataset.train_inputs, self.dataset.test_inputs])
        needed = math.prod(self.dataset.input_shape) + 1
        if len(every) < needed:
            raise BadInput(
                f"controls=true needs {needed} rows, one more than a row has numbers, of both splits together, and"
                f" there are {len(every)}: take a larger data.num_test, or controls=false"
            )
        return every[:needed]


@dataclass
class _Walk:
    """Makes the rows, writes them, and picks up from a former process."""

    run: RunDir
    plan: Plan
    every_s: float
    stop: StopRequest
    finished: set[str] = field(default_factory=set)
    current: Row = field(default_factory=dict)  # name, starts: of a net that is under way

    def __post_init__(self) -> None:
        state = self.run.load_checkpoint("last") if self.run.has_checkpoint("last") else {}
        self.finished = set(state.get("finished", []))
        self.current = dict(state.get("current", {}))
        under_way, step = self.current.get("name"), self.current.get("starts", {}).get("step", -1)

        def path(row: Row) -> bool:
            return row["variant"] in self.finished or (row["variant"] == under_way and row["step"] <= step)

        for table in ("metrics", "layers"):
            self.run.keep_rows(path, table)
        self.run.keep_rows(lambda row: row["variant"] in {*self.finished, under_way}, "draws")
        self._saved_at = time.monotonic()

    def done_before(self, names: Sequence[str]) -> int:
        done = sum(name in self.finished for name in names) * self.plan.steps
        return done + int(self.current.get("starts", {}).get("step", 0))

    def draw(self, net: _Net) -> None:
        """Random nets at every scale, then the controls; nothing for a net that is under way."""
        if self.current.get("name") == net.name:
            return
        probe = net.probe()
        for scale in self.plan.draw_scales:
            labels: list[Row] = [{"scale": float(scale), "seed": seed} for seed in self.plan.drawn()]
            rows = [
                {"variant": net.name, "rows": "given", **label} | probe.at(net.weights(label))[0] for label in labels
            ]
            self.run.append_rows(rows, "draws")
            if self.stop():
                return
        if self.plan.controls:
            self.run.append_rows(control_rows(net, probe.unknown()), "draws")

    def descend(self, net: _Net, advanced: Callable[[], object]) -> None:
        """All starts of one kind of net, from where they are to the last step."""
        if self.stop():
            return
        starts, probe, labels = net.starts(), net.probe(), self.plan.starts()
        labels = [{"variant": net.name, **label} for label in labels]
        recorded = set(recorded_steps(self.plan.steps, self.plan.measures))
        if self.current.get("name") == net.name:
            starts.restore(self.current["starts"])
        else:
            self._record(starts, probe, labels)
        while starts.step < self.plan.steps:
            starts.advance()
            advanced()
            if starts.step in recorded:
                self._record(starts, probe, labels)
            if self.stop() or time.monotonic() - self._saved_at >= self.every_s:
                self._save({"name": net.name, "starts": starts.state()})
            if self.stop():
                return
        self.finished.add(net.name)
        self._save({})

    def _record(self, starts: ManyStarts, probe: Probe, labels: list[Row]) -> None:
        rows, layers = path_rows(starts, probe, labels)
        self.run.append_rows(rows)
        self.run.append_rows(layers, "layers")
        starts.forget()

    def _save(self, current: Row) -> None:
        self.current = current
        self.run.save_checkpoint("last", {"finished": sorted(self.finished), "current": current})
        self._saved_at = time.monotonic()


def control_rows(net: _Net, empty: Row) -> list[Row]:
    """lambda(DF) and its bound on data that break the conditions of positivity, at scale 1, `empty` cells besides."""
    inputs = net.dataset.train_inputs
    data = {"repeated": torch.cat([inputs[:1], inputs[:1], inputs[2:]]), "beyond": net.rows_beyond()}
    rows = []
    for kind, some in data.items():
        for seed in net.plan.drawn():
            label = {"scale": 1.0, "seed": seed}
            cells = known(bound_cells(lower_bound(net.model(seed), some)))
            rows.append({"variant": net.name, "rows": kind, **label} | empty | cells)
    return rows


def _setting(dataset: Dataset, nets: Mapping[str, _Net], plan: Plan) -> Row:
    inputs = dataset.train_inputs.flatten(1)
    least = float(torch.linalg.svdvals(inputs)[-1]) if len(inputs) <= inputs.shape[1] else 0.0
    return {
        "data": dataset.name,
        "rows": len(inputs),
        "inputs": inputs.shape[1],
        "data_lambda": least**2,
        "parameters": {name: number_of_parameters(net.model(plan.seeds[0])) for name, net in nets.items()},
        "paths": len(plan.starts()),
        "lr": plan.lr,
        "steps": plan.steps,
    }


def _finish(
    run: RunDir,
    plots: Mapping[str, PlotFunction],
    promises: Mapping[str, Sequence[str]],
    level: float,
    wanted: Mapping[str, Sequence[float]],
    setting: Row,
) -> Outcome:
    """The table of statements, the summary and the figures, from the tables on disk."""
    path, draws = run.read_rows(), run.read_rows("draws")
    names = list(setting["parameters"])
    measured = {name: Measured(_of(path, name), _of(draws, name), level, setting["lr"]) for name in names}
    theorems = theorem_rows(measured, promises)
    run.replace_rows(theorems, "theorems")
    numbers = {
        f"{row['statement']}_{row['variant']}": {"value": row["measured"], "low": row["low"], "high": row["high"]}
        for row in theorems
    }
    short = {f"{row['statement']}_{row['variant']}": row["verdict"] for row in theorems}
    verdicts = judge(wanted, numbers)
    summary = {"status": "completed", **setting, "level": level, "theorems": short, "numbers": numbers}
    summary["expected"] = verdicts
    run.write_summary(summary)
    logger.info("%s", as_text(theorems))
    _draw(run, plots, path, draws, setting | {"level": level})
    for line in verdict_lines(verdicts):
        logger.info("%s", line)
    return Outcome("completed", 0, summary)


def _of(rows: Sequence[Row], variant: str) -> list[Row]:
    return [row for row in rows if row["variant"] == variant]


def _draw(run: RunDir, plots: Mapping[str, PlotFunction], path: list[Row], draws: list[Row], setting: Row) -> None:
    import pandas

    metrics, layers = pandas.DataFrame(path), pandas.DataFrame(run.read_rows("layers"))
    keys = ["variant", "scale", "seed", "step"]
    tables = dict.fromkeys(FIGURES, metrics)
    tables["terms"] = layers.merge(metrics[[*keys, "regularity", "bound"]], on=keys)
    tables["scales"] = pandas.concat([metrics.assign(rows="given"), pandas.DataFrame(draws)], ignore_index=True)
    references = {"lr": setting["lr"], "level": setting["level"]}
    title = f"{setting['rows']} rows of {setting['data']}, gradient descent, lr {setting['lr']:g}"
    titles = dict.fromkeys(FIGURES, title)
    titles["scales"] = f"{setting['rows']} rows of {setting['data']}, untrained nets"
    for name, plot in plots.items():
        run.save_figure(name, plot(tables[name], references, title=titles[name]))


def as_text(theorems: Sequence[Mapping[str, Any]]) -> str:
    """The table of statements for the console: of controls a "fails" is what is expected."""
    lines = [f"{'statement':20} {'net':16} {'measured':>10} {'low':>10} {'high':>10} {'of':>5}  verdict"]
    for row in theorems:
        cells = [f"{row[key]:.3g}" if row[key] is not None else "-" for key in ("measured", "low", "high")]
        control = "" if row["promised"] else " (control)"
        lines.append(
            f"{row['source'].replace('Proposition', 'Prop.'):20} {row['variant']:16} "
            + " ".join(f"{cell:>10}" for cell in cells)
            + f" {row['of']:5d}  {row['statement']}: {row['verdict']}{control}"
        )
    return "\n".join(lines)


def _check(
    plan: Plan,
    models: Mapping[str, ModelFactory],
    plots: Mapping[str, PlotFunction],
    promises: Mapping[str, Sequence[str]],
    level: float,
    every_s: float,
    wanted: Mapping[str, Sequence[float]],
) -> None:
    if not models:
        raise BadInput("models is empty: name at least one, e.g. models=[normalised_resnet]")
    check_at_least(1, steps=plan.steps, products=plan.products)
    check_at_least(2, measures=plan.measures)
    check_at_least(0, draws=plan.draws, checkpoint_every_s=every_s)
    for name, value in {"lr": plan.lr, "level": level, "tolerance": plan.tolerance}.items():
        if not 0 < value < math.inf:
            raise BadInput(f"{name} must be positive and finite, got {value}")
    for name, values in {"scales": plan.scales, "draw_scales": plan.draw_scales}.items():
        if not values or not all(0 < value < math.inf for value in values) or len(set(values)) < len(values):
            raise BadInput(f"{name}={list(values)}: at least one positive number, each once")
    if not plan.seeds or not all(seed >= 0 for seed in plan.seeds) or len(set(plan.seeds)) < len(plan.seeds):
        raise BadInput(f"seeds={list(plan.seeds)}: at least one whole number from 0 on, each once")
    if unknown := sorted(set(plots) - set(FIGURES)):
        raise BadInput(f"plots.{unknown[0]}: the figures of this job are plots.{', plots.'.join(FIGURES)}")
    for key, names in promises.items():
        if key not in STATEMENTS:
            raise BadInput(f"promises.{key}: the statements are {', '.join(STATEMENTS)}")
        if missing := sorted(set(names) - set(models)):
            raise BadInput(f"promises.{key}: there is no model {missing[0]!r}; there are {', '.join(models)}")
    try:
        check_bands(wanted, [f"{key}_{name}" for key in STATEMENTS for name in models])
    except ValueError as error:
        raise BadInput(str(error)) from error
