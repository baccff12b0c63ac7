"""Symmetry as constraint: run one protocol, say which of its statements hold, and draw its figures."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm import tqdm

from symlab.protocols.study import Ground, Study
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.bands import check_bands, judge
from symlab.training.factories import DataFactory, ModelFactory, OptimizerFactory, PlotFunction, Schedule, name_of
from symlab.training.place import find_device, find_dtype, repeatable
from symlab.training.progress import progress_bar
from symlab.training.randomness import random_state, set_random_state
from symlab.training.ranges import check_at_least
from symlab.training.signals import StopRequest, stop_on_signals
from symlab.training.sources import in_memory

KEY_FIGURES = ("verdict", "numbers")
RESUMABLE_CHANGES = ("checkpoint_every_s", "device", "expected", "plots", "progress", "threads")
DTYPES = ("float32", "float64")
PARTS = "parts"
"""The table of what is finished."""

logger = logging.getLogger("symlab")
Row = dict[str, Any]


def constraint(
    run: RunDir,
    *,
    protocol: Callable[..., Study],
    plots: Mapping[str, PlotFunction] | None = None,
    data: DataFactory | None = None,
    model: ModelFactory | None = None,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    expected: Mapping[str, Sequence[float]] | None = None,
    device: str = "auto",
    dtype: str = "float32",
    threads: int | None = None,
    checkpoint_every_s: float = 60.0,
    progress: bool = True,
) -> Outcome:
    """The tables, numbers and figures of `protocol`, over `seeds`; whether its numbers lie in the bands of `expected`.

    `data`, `model`, `optimizer` and `schedule` are what the protocol works on, for those that need them. metrics.csv
    and further tables hold the rows, each with the part of the protocol that it comes from; parts.csv says which are
    finished. A stop signal ends with status interrupted; a resumed run goes on from the last checkpoint of the part
    that was under way, or from the part's start where the protocol keeps none.

    The verdict of the summary is "holds" if all numbers with a band lie within, "fails" if one lies outside, "unknown"
    if one could not be had, and "none" without bands.

    Raises BadInput, before anything is computed, for values out of range and names that do not fit the protocol.
    """
    wanted, plots = dict(expected or {}), plots or {}
    check_at_least(0, checkpoint_every_s=checkpoint_every_s)
    if dtype not in DTYPES:  # ranks and solvers have no bfloat16
        raise BadInput(f"dtype={dtype}: protocols compute in {' or '.join(DTYPES)}")
    if not seeds or not all(0 <= seed < 2**63 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise BadInput(f"seeds={list(seeds)}: at least one whole number from 0 on and below 2^63, each once")
    place, kind = find_device(device), find_dtype(dtype)
    with stop_on_signals() as stop, repeatable(seeds[0], place, threads, deterministic=True):
        dataset = None if data is None else in_memory(data()).to(place, kind)
        ground = Ground(tuple(seeds), place, kind, dataset, model, optimizer, schedule)
        study = protocol(ground)
        _check(study, ground, name_of(protocol), plots, wanted)
        run.write_environment({"device": str(place), "dtype": dtype, "threads": torch.get_num_threads()})
        _run_parts(run, study, ground, stop, checkpoint_every_s, progress)
    if stop():
        return Outcome("interrupted", stop.exit_code, {"message": "finished parts are kept"})
    return _finish(run, study, plots, wanted)


@dataclass
class _Watch:
    """The watch of one part: its checkpoint is the run's `last`, with the global random state (dropout)."""

    run: RunDir
    part: str
    device: torch.device
    stop: StopRequest
    every_s: float
    bar: "tqdm[Any]"
    at: float = field(default_factory=time.monotonic)

    def stopped(self) -> bool:
        return bool(self.stop())

    def saved(self) -> dict[str, Any] | None:
        kept = self.run.load_checkpoint("last") if self.run.has_checkpoint("last") else {}
        if kept.get("part") != self.part:
            return None
        set_random_state(kept["random_state"], self.device)
        state: dict[str, Any] = kept["state"]
        return state

    def due(self) -> bool:
        return time.monotonic() - self.at >= self.every_s

    def save(self, state: Mapping[str, Any]) -> None:
        random = random_state(self.device)
        self.run.save_checkpoint("last", {"part": self.part, "state": dict(state), "random_state": random})
        self.at = time.monotonic()

    def say(self, text: str) -> None:
        self.bar.set_postfix_str(text)


def _run_parts(run: RunDir, study: Study, ground: Ground, stop: StopRequest, every_s: float, progress: bool) -> None:
    """All parts that are not finished; rows of one that did not get to its end are dropped first.

    Each starts from the same global random state, so that what a part draws from it does not depend on the others.
    """
    done = {row["part"] for row in run.read_rows(PARTS)}
    tables = set(study.figures.values()) | {"metrics"}
    for table in tables:
        run.keep_rows(lambda row: row["part"] in done, table)
    parts = list(study.parts())
    with progress_bar(len(parts), len(done), progress) as bar:
        for part in parts:
            if part in done or stop():
                continue
            logger.info("%s", part)
            began = time.monotonic()
            torch.manual_seed(ground.seeds[0])
            found = study.run(part, _Watch(run, part, ground.device, stop, every_s, bar))
            if found is None:
                return
            for table, rows in found.items():
                run.append_rows([{"part": part, **row} for row in rows], table)
            run.append_rows([{"part": part, "time_s": time.monotonic() - began}], PARTS)
            bar.update()


def _finish(
    run: RunDir, study: Study, plots: Mapping[str, PlotFunction], wanted: Mapping[str, Sequence[float]]
) -> Outcome:
    """Numbers, verdicts and figures, from the tables on disk."""
    import pandas

    names = {"metrics", *study.figures.values()}
    tables = {name: pandas.DataFrame(run.read_rows(name)) for name in sorted(names)}
    numbers = study.numbers(tables)
    verdicts = judge(wanted, numbers)
    summary = {"status": "completed", "title": study.title, "verdict": overall(verdicts), "numbers": numbers}
    summary |= {"expected": verdicts, "references": dict(study.references)}
    run.write_summary(summary)
    for line in statement_lines(numbers, verdicts):
        logger.info("%s", line)
    logger.info("verdict: %s (%d numbers have a band); figures in %s", summary["verdict"], len(verdicts), run.path)
    for name, plot in plots.items():
        run.save_figure(name, plot(tables[study.figures[name]], study.references, title=study.title))
    return Outcome("completed", 0, summary)


def overall(verdicts: Mapping[str, Mapping[str, Any]]) -> str:
    """fails if one number is outside, unknown if one could not be had, holds if all are within, none without bands."""
    found = {verdict["verdict"] for verdict in verdicts.values()}
    if not found:
        return "none"
    return "fails" if "outside" in found else "unknown" if "unknown" in found else "holds"


def statement_lines(numbers: Mapping[str, Mapping[str, Any]], verdicts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line per number: value +- standard deviation, the band if there is one, the verdict, the statement."""
    words = {"within": "HOLDS", "outside": "FAILS", "unknown": "UNKNOWN"}
    lines = []
    for key, number in numbers.items():
        value = "no number" if number["value"] is None else f"{number['value']:.4g}"
        spread = "" if number["spread"] is None else f" +- {number['spread']:.2g}"
        judged = verdicts.get(key)
        band = f" in [{judged['low']:g}, {judged['high']:g}]: {words[judged['verdict']]}" if judged else ""
        lines.append(f"{key}: {value}{spread}{band} ({number['text']})")
    return lines


def _check(
    study: Study,
    ground: Ground,
    name: str,
    plots: Mapping[str, PlotFunction],
    wanted: Mapping[str, Sequence[float]],
) -> None:
    if unused := ground.unused():
        raise BadInput(f"{unused[0]}: protocol {name} has its own, and would not use it: leave {unused[0]} out")
    if unknown := sorted(set(plots) - set(study.figures)):
        known = ", ".join(f"plots.{name}" for name in study.figures)
        raise BadInput(f"plots.{unknown[0]}: the figures of this protocol are {known}")
    try:
        check_bands(wanted, study.number_names())
    except ValueError as error:
        raise BadInput(str(error)) from error
