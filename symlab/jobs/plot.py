"""Draw one figure from the tables of one or many runs, without torch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
from matplotlib.figure import Figure

from symlab.plots.grouping import common_setting, comparable_settings, group_labels
from symlab.plots.spread import group_rows, target_rows
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.recorded import RecordedRun, counted_statuses, read_run, run_paths

PlotFunction = Callable[..., Figure]
FINAL_COLUMNS = ("step", "train_loss", "test_loss", "train_accuracy", "test_accuracy", "time_s")

logger = logging.getLogger("symlab")


def plot(
    run: RunDir,
    *,
    runs: list[Path] | Path,
    plot: PlotFunction,
    group_by: list[str] | None = None,
    include_unfinished: bool = False,
    title: str | None = None,
) -> Outcome:
    """Overlay runs: mean and band over the runs that differ in nothing but seeds, machine and paths.

    `runs`: directories of runs, or directories that hold runs at any depth (a sweep), or patterns with * and ?.
    `group_by`: keys of the runs' configs (e.g. optimizer, optimizer.lr) that tell groups apart, None: every key that
    differs. Only completed runs are drawn; the others are counted in the title and named in the log, and with
    `include_unfinished` drawn as groups of their own, never part of a completed group's mean. Runs without rows are
    left out and named. `title` None: the setting that all runs share.

    Losses of different data sets, or different losses, do not share an axis: then each gets a figure of its own,
    runs_<data>.

    Writes into `run` the figure `runs`, and the tables runs.csv (all rows with run, group, status, seed), groups.csv
    (mean and spread of the last rows per group) and targets.csv (steps and seconds until the target losses).

    Raises BadInput when no run is found or none is left to draw.
    """
    sources, empty = _read(run_paths(runs))
    drawn = [source for source in sources if source.completed or include_unfinished]
    left_out = [source for source in sources if not (source.completed or include_unfinished)]
    _report(drawn, left_out, empty)
    labels = _labels(drawn, group_by)
    if group_by is None:
        _warn_of_equal_seeds(drawn, labels)
    table = _rows(drawn, labels)
    references = _references(drawn, labels)
    figures = _figures(run, drawn, labels if group_by else None, left_out, plot, title)
    run.append_rows(table, table="runs")
    columns = [column for column in FINAL_COLUMNS if column in table[0]]
    groups = group_rows(_grouped(labels, [source.rows[-1] for source in drawn]), columns)
    run.append_rows(groups, table="groups")
    run.append_rows(target_rows(_grouped(labels, [source.summary for source in drawn])), table="targets")
    logger.info("%d runs in %d groups: %s", len(drawn), len(groups), ", ".join(figures))
    summary = {
        "figures": figures,
        "runs": [str(source.path) for source in drawn],
        "left_out": {str(source.path): source.status for source in left_out},
        "without_rows": [str(path) for path in empty],
        "groups": groups,
        "references": references,
    }
    return Outcome("completed", 0, summary)


def _figures(
    run: RunDir,
    drawn: Sequence[RecordedRun],
    labels: Sequence[str] | None,
    left_out: Sequence[RecordedRun],
    plot: PlotFunction,
    title: str | None,
) -> list[str]:
    """Paths of the figures, one per set of runs whose losses may be compared.

    `labels` None: what differs within the set, which is shorter than what differs among all runs.
    """
    settings = comparable_settings([source.config for source in drawn])
    paths = []
    for name in dict.fromkeys(settings):
        chosen = [index for index, setting in enumerate(settings) if setting == name]
        members = [drawn[index] for index in chosen]
        own = [labels[index] for index in chosen] if labels else _labels(members, None)
        rows = pandas.DataFrame(_rows(members, own))
        figure = plot(rows, _references(members, own), title=_title(members, left_out, title))
        paths.append(str(run.save_figure(f"runs_{name}" if name else "runs", figure)[0]))
    return paths


def _read(paths: Sequence[Path]) -> tuple[list[RecordedRun], list[Path]]:
    """What the runs hold, and the paths of those without a row of metrics."""
    found = [read_run(path) for path in paths]
    return [run for run in found if run.rows], [run.path for run in found if not run.rows]


def _report(drawn: Sequence[RecordedRun], left_out: Sequence[RecordedRun], empty: Sequence[Path]) -> None:
    """Name what is not drawn.

    Raises BadInput when nothing is drawn.
    """
    for path in empty:
        logger.info("left out, no metrics: %s", path)
    for source in left_out:
        logger.warning("left out, %s: %s", source.status, source.path)
    if not drawn and left_out:
        raise BadInput(
            f"runs: none of them is completed ({counted_statuses(left_out)}); include_unfinished=true draws them"
        )
    if not drawn:
        raise BadInput(f"runs: none of the {len(empty)} directories holds metrics, the first is {empty[0]}")


def _labels(sources: Sequence[RecordedRun], group_by: Sequence[str] | None) -> list[str]:
    """Group of each run; what a run that is not completed ended with is part of it."""
    labels = group_labels([source.config for source in sources], group_by)
    return [
        label if source.completed else f"{label} ({source.status})".strip()
        for label, source in zip(labels, sources, strict=True)
    ]


def _warn_of_equal_seeds(sources: Sequence[RecordedRun], labels: Sequence[str]) -> None:
    seeds = Counter(
        (label, str(source.config.get("seed", source.config.get("seeds"))), str(_data_seed(source)))
        for label, source in zip(labels, sources, strict=True)
    )
    for (label, seed, data_seed), count in seeds.items():
        if count > 1:
            logger.warning("%d runs of group %r have the same seed %s (data seed %s)", count, label, seed, data_seed)


def _data_seed(source: RecordedRun) -> Any:
    data = source.config.get("data")
    return data.get("seed") if isinstance(data, Mapping) else None


def _rows(sources: Sequence[RecordedRun], labels: Sequence[str]) -> list[dict[str, Any]]:
    """All metrics rows, each with its run, group, status and seed; cells that a run lacks are None."""
    columns = dict.fromkeys(column for source in sources for column in source.rows[0])
    return [
        {"run": str(source.path), "group": label, "status": source.status, "seed": source.config.get("seed")}
        | {column: row.get(column) for column in columns}
        for source, label in zip(sources, labels, strict=True)
        for row in source.rows
    ]


def _references(sources: Sequence[RecordedRun], labels: Sequence[str]) -> dict[str, float]:
    """Name -> mean reference loss over the runs; where groups differ, one per group, its label in the name."""
    per_group: dict[str, dict[str, list[float]]] = {}
    for source, label in zip(sources, labels, strict=True):
        for name, value in source.summary.get("references", {}).items():
            if value is not None:
                per_group.setdefault(name, {}).setdefault(label, []).append(value)
    references: dict[str, float] = {}
    for name, groups in per_group.items():
        means = {label: sum(values) / len(values) for label, values in groups.items()}
        lowest, highest = min(means.values()), max(means.values())
        if highest - lowest <= 1e-6 * highest:
            references[name] = highest
        else:
            references |= {f"{name} ({label})": mean for label, mean in means.items()}
    return references


def _title(drawn: Sequence[RecordedRun], left_out: Sequence[RecordedRun], title: str | None) -> str:
    heading = common_setting([source.config for source in drawn]) if title is None else title
    return f"{heading} (not drawn: {counted_statuses(left_out)})".strip() if left_out else heading


def _grouped(labels: Sequence[str], values: Sequence[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for label, value in zip(labels, values, strict=True):
        groups.setdefault(label, []).append(value)
    return groups
