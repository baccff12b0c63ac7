"""Time training and its data pipeline against a plain script of the usual kind, in images per second."""

import itertools
import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas
import torch

from symlab.data.dataset import Dataset
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.training.build import build_model, build_optimizer, check_batch_norm, number_of_parameters
from symlab.training.compilation import try_compiled
from symlab.training.execution import find_precision, make_execution
from symlab.training.factories import DataFactory, Loss, ModelFactory, OptimizerFactory, PlotFunction, name_of
from symlab.training.fit import advance
from symlab.training.order import BatchSource
from symlab.training.place import find_device, repeatable, wait_for
from symlab.training.plain_script import plain_batches, plain_step
from symlab.training.progress import progress_bar
from symlab.training.ranges import check_at_least
from symlab.training.sources import in_memory, training_batches
from symlab.training.state import Training
from symlab.training.step_times import ratio

RESUMABLE_CHANGES = ("plot", "progress", "repeats", "targets")
KEY_FIGURES = ()  # the ratios are in a table of their own, which each run prints
PLAIN, PLAIN_DATA = "plain_script", "plain_data"
SYMLAB_DATA = "symlab_data"
PRECISIONS: Mapping[str | None, str] = MappingProxyType(
    {None: "symlab_float32", "bf16": "symlab_bf16", "fp16": "symlab_fp16"}
)
"""amp -> the name of symlab's training in this precision."""

logger = logging.getLogger("symlab")


@dataclass(frozen=True)
class Way:
    """One thing that is timed: `take` makes one update, or gets one batch; in a turn, `untimed` times before the clock
    starts, then `steps` times."""

    part: str  # training, data
    name: str
    take: Callable[[], object]
    untimed: int
    steps: int


def benchmark_training(
    run: RunDir,
    *,
    model: ModelFactory,
    data: DataFactory,
    optimizer: OptimizerFactory,
    loss: Loss,
    plot: PlotFunction,
    batch_size: int = 128,
    amp: Sequence[str | None] = (None, "bf16"),
    channels_last: bool = True,
    compile: bool = False,
    workers: int = 2,
    steps: int = 4,
    untimed: int = 1,
    data_steps: int = 40,
    repeats: int = 7,
    targets: Mapping[str, float] | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    progress: bool = True,
) -> Outcome:
    """Images per second of symlab / those of a plain script, the median over `repeats` in which all take turns.

    Training: updates of `symlab train` in each precision of `amp` (null: float32) with `channels_last` and `compile`,
    the data augmented on the device; against float32 in the usual memory layout, fed by a DataLoader with `workers`
    processes that crop, flip and standardise PIL images (`symlab.training.plain_script`). Data: the same two pipelines
    without a model. In its turn each trains for `untimed` updates that are not counted, then for `steps` that are;
    `untimed` should be 2 x `workers` where the script may wait for its DataLoader, which keeps so many batches ready.
    The data pipelines give `data_steps` batches in a turn, after so many as are ready.

    All start from the same weights and take batches of the same rows' distribution. metrics.csv holds the rate of every
    turn, the summary medians, ratios with quartiles within a repeat, and which of `targets` (name -> least ratio) are
    reached.

    Raises BadInput for values, devices and data that cannot work.
    """
    check_at_least(1, batch_size=batch_size, steps=steps, data_steps=data_steps)
    check_at_least(2, repeats=repeats)
    check_at_least(0, workers=workers, untimed=untimed)
    names = _names(amp, targets or {})
    place = find_device(device)
    with repeatable(seed, place, threads, deterministic=False), ExitStack() as stack:
        dataset = in_memory(data()).to(place, torch.float32)
        _check_data(dataset, batch_size)
        common = _Setting(model, optimizer, loss, dataset, batch_size, workers, seed, place, stack)
        takes = {PLAIN: common.plain()}
        takes |= {name: common.symlab(kind, channels_last, compile) for kind, name in names.items()}
        ways = [Way("training", name, take, untimed, steps) for name, take in takes.items()]
        ways.append(Way("data", PLAIN_DATA, common.plain_data(), max(2 * workers, 1), data_steps))
        ways.append(Way("data", SYMLAB_DATA, common.symlab_data(), 1, data_steps))
        _try_figure(plot, ways, targets or {})
        threads_used = torch.get_num_threads()
        run.write_environment({"device": str(place), "dtype": "float32", "threads": threads_used, "seed": seed})
        done = len({row["repeat"] for row in run.read_rows()})  # of a run that is resumed
        with progress_bar(repeats * len(ways), done * len(ways), progress) as bar:
            for rows in _turns(ways, range(done, repeats), batch_size, place, bar.update):
                run.append_rows(rows)
        parameters = number_of_parameters(build_model(model, dataset, seed, place, torch.float32))
    setting = {
        "model": name_of(model),
        "parameters": parameters,
        "data": dataset.name,
        "batch_size": batch_size,
        "channels_last": channels_last,
        "compile": compile,
        "workers": workers,
        "device": str(place),
        "threads": threads_used,
        "repeats": repeats,
        "steps": steps,
    }
    table = [_figures(way, run.read_rows(), targets or {}) for way in ways]
    logger.info("%s\n%s", ", ".join(f"{key} {value}" for key, value in setting.items()), as_text(table))
    title = f"{setting['model']} on {dataset.name}, batch {batch_size}, {place}, threads: {threads_used}"
    run.save_figure("speed", plot(pandas.DataFrame(run.read_rows()), dict(targets or {}), title=title))
    summary = {"status": "completed", **setting, "table": table}
    run.write_summary(summary)
    return Outcome("completed", 0, summary)


def _names(amp: Sequence[str | None], targets: Mapping[str, float]) -> dict[str | None, str]:
    """Precision -> name of symlab's training in it. Raises BadInput for one that there is not, and for bad targets."""
    unknown = [kind for kind in amp if kind not in PRECISIONS]
    if unknown or not amp or len(set(amp)) < len(amp):
        raise BadInput(f"amp must list some of null, bf16 and fp16, each once, got {list(amp)}")
    names = {kind: PRECISIONS[kind] for kind in amp}
    for name, least in targets.items():
        if name not in (*names.values(), SYMLAB_DATA):
            raise BadInput(f"targets.{name} is not one of {', '.join([*names.values(), SYMLAB_DATA])}")
        if not least > 0:
            raise BadInput(f"targets.{name} must be positive, got {least}")
    return names


def _check_data(dataset: Dataset, batch_size: int) -> None:
    if dataset.augmentation is None:
        raise BadInput(f"data {dataset.name} is not augmented, as the plain script's is: set data.augment=true")
    if batch_size > dataset.num_train:
        raise BadInput(f"batch_size={batch_size} does not fit the {dataset.num_train} training rows")


@dataclass(frozen=True)
class _Setting:
    """What all ways share; what they hold open ends with `stack`."""

    model: ModelFactory
    optimizer: OptimizerFactory
    loss: Loss
    dataset: Dataset
    batch_size: int
    workers: int
    seed: int
    place: torch.device
    stack: ExitStack

    def _built(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        net = build_model(self.model, self.dataset, self.seed, self.place, torch.float32)
        check_batch_norm(net, self.batch_size)
        return net, build_optimizer(self.optimizer, net, self.dataset.train_inputs)

    def _plain_batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        loader = plain_batches(self.dataset, self.batch_size, self.seed, workers=self.workers, device=self.place)
        return self.stack.enter_context(loader)

    def _batches(self) -> BatchSource:
        return self.stack.enter_context(training_batches(self.dataset, self.batch_size, self.seed, drop_last=True))

    def plain(self) -> Callable[[], object]:
        net, optimizer = self._built()
        batches = self._plain_batches()
        return lambda: plain_step(net, optimizer, self.loss, *next(batches))

    def plain_data(self) -> Callable[[], object]:
        batches = self._plain_batches()
        return lambda: next(batches)

    def symlab(self, amp: str | None, channels_last: bool, compiled: bool) -> Callable[[], object]:
        net, optimizer = self._built()
        precision = find_precision(amp, self.place, torch.float32)
        how = make_execution(precision, channels_last, compiled)
        how.lay_out(net)
        training = Training(net, optimizer, how)
        batches = self._batches()
        net.train()
        if compiled:
            try_compiled(training, batches, self.loss)

        def take() -> None:
            advance(training, batches, self.loss)
            training.step += 1

        return take

    def symlab_data(self) -> Callable[[], object]:
        batches, numbers = self._batches(), itertools.count()
        return lambda: batches.at(next(numbers))


def _turns(
    ways: Sequence[Way], repeats: range, batch_size: int, place: torch.device, tick: Callable[[], object]
) -> Iterator[list[dict[str, Any]]]:
    """Of each repeat rows {repeat, part, way, seconds, images_per_s}; the order of ways depends on its number alone.
    One update or batch of each before all is not counted: memory is allocated and worker processes start in it."""
    for way in ways:
        way.take()
    for repeat in repeats:
        rows = []
        for way in random.Random(repeat).sample(ways, len(ways)):
            for _ in range(way.untimed):
                way.take()
            wait_for(place)
            began = time.perf_counter()
            for _ in range(way.steps):
                way.take()
            wait_for(place)
            seconds = time.perf_counter() - began
            rate = way.steps * batch_size / seconds
            rows.append({"repeat": repeat, "part": way.part, "way": way.name, "seconds": seconds, "images_per_s": rate})
            tick()
        yield rows


def _figures(way: Way, rows: Sequence[Mapping[str, Any]], targets: Mapping[str, float]) -> dict[str, Any]:
    """Median rate; its ratio to the plain one of its part, with quartiles; and the target, if there is one."""
    plain = PLAIN if way.part == "training" else PLAIN_DATA
    pairs = ratio(rows, "images_per_s", way.name, plain, by="way")
    least = targets.get(way.name)
    return {
        "part": way.part,
        "way": way.name,
        "images_per_s": statistics.median(row["images_per_s"] for row in rows if row["way"] == way.name),
        "ratio": pairs["median"],
        "quartiles": [pairs["low"], pairs["high"]],
        "target": least,
        "reached": None if least is None else pairs["median"] >= least,
    }


def _try_figure(plot: PlotFunction, ways: Sequence[Way], targets: Mapping[str, float]) -> None:
    """Draw rows of ones, so that a figure that does not fit stops here and not at the end."""
    rows = [{"repeat": 0, "part": way.part, "way": way.name, "seconds": 1.0, "images_per_s": 1.0} for way in ways]
    plot(pandas.DataFrame(rows), dict(targets), title="")


def as_text(table: Sequence[Mapping[str, Any]]) -> str:
    """The table in Markdown."""
    lines = ["| part | way | images / s | / plain | target | reached |", "|---|---|---|---|---|---|"]
    for row in table:
        low, high = row["quartiles"]
        aim = " | " if row["target"] is None else f"{row['target']:g} | {'yes' if row['reached'] else 'no'}"
        pairs = f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}]"
        lines.append(f"| {row['part']} | {row['way']} | {row['images_per_s']:.0f} | {pairs} | {aim} |")
    return "\n".join(lines)
