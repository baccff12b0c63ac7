"""Performance profile of optimizers over the tasks of finished comparisons, without torch."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas
from matplotlib.figure import Figure

from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.recorded import run_paths

PlotFunction = Callable[..., Figure]
Row = dict[str, Any]
Measure = Literal["steps", "seconds", "test_loss", "train_loss"]
TARGET_COLUMNS = {"steps": "step", "seconds": "seconds"}
NAMES = {"steps": "steps to the target", "seconds": "seconds to the target"}
NEAR = 2.0  # the share within this factor of the best is tabled

logger = logging.getLogger("symlab")


def profile(
    run: RunDir,
    *,
    runs: list[Path] | Path,
    plot: PlotFunction,
    measure: Measure = "steps",
    target: str | float | None = None,
    title: str | None = None,
) -> Outcome:
    """Share of the tasks that each optimizer solves within tau times the least cost (Dolan and More, 2002).

    `runs`: directories of finished runs of compare, directories that hold such at any depth, or patterns. A task is a
    seed of a comparison, with one of its target losses if `measure` is steps or seconds (until the target; `target`
    None: each of them, else the one of that name); its cost is what `measure` names. A run that diverged, failed or
    never reached the target has not solved the task. Only optimizers that all comparisons have are compared; tasks
    that are solved at step 0 are left out.

    Writes into `run` the figure `profile`, and the tables profile.csv (comparison, seed, target, task, optimizer, cost)
    and optimizers.csv (tasks, solved, best, within_2: solved within 2 times the least cost).

    Raises BadInput where there is no finished comparison, no common optimizer or no such target.
    """
    if target is not None and measure not in TARGET_COLUMNS:
        raise BadInput(f"target={target} is for measure=steps or seconds, not measure={measure}")
    comparisons = _comparisons(run_paths(runs))
    name = f"{target:g}" if isinstance(target, float | int) else target
    rows = _solvable(_common([row for path in comparisons for row in _tasks(path, measure, name)], comparisons))
    if not rows:
        wanted = "any target loss" if name is None else f"the target {name}"
        raise BadInput(
            f"runs: none of the {len(comparisons)} comparisons has {wanted} that is not met at the start; give them "
            "one, symlab compare resume=RUN 'targets=[0.5,0.3]', or take measure=test_loss"
        )
    run.append_rows(rows, table="profile")
    table = _counts(rows)
    run.append_rows(table, table="optimizers")
    tasks, sources = (len({row[key] for row in rows}) for key in ("task", "comparison"))
    heading = title or f"{NAMES.get(measure, measure)}: {tasks} tasks of {sources} comparisons"
    figure = run.save_figure("profile", plot(pandas.DataFrame(rows), {}, title=heading))[0]
    for row in table:
        logger.info("%s", ", ".join(f"{key} {value}" for key, value in row.items()))
    return Outcome("completed", 0, {"figure": str(figure), "runs": list(map(str, comparisons)), "optimizers": table})


def _comparisons(paths: Sequence[Path]) -> list[Path]:
    """The finished comparisons among runs; others are named in the log."""
    found = []
    for path in paths:
        directory = RunDir.open(path)
        if not directory.read_rows("results"):
            logger.info("left out, no results of a comparison: %s", path)
        elif (status := directory.status) != "completed":
            logger.warning("left out, %s: %s", status, path)
        else:
            found.append(path)
    if not found:
        raise BadInput(f"runs: none of the {len(paths)} runs is a finished comparison; the first is {paths[0]}")
    return found


def _tasks(path: Path, measure: Measure, target: str | None) -> list[Row]:
    """Rows {comparison, seed, target, task, optimizer, cost} of one comparison."""
    directory = RunDir.open(path)
    column = TARGET_COLUMNS.get(measure)
    tasks = []
    for row in directory.read_rows("targets" if column else "results"):
        name = _text(row.get("target")) if column else None
        if target is None or name == target:
            label = f"{path}, seed {row['seed']}" + (f", {name}" if name else "")
            cost = row.get(column or measure)
            task = {"comparison": str(path), "seed": row["seed"], "target": name, "task": label}
            tasks.append(task | {"optimizer": row["optimizer"], "cost": cost if _is_cost(row, cost) else None})
    return tasks


def _is_cost(row: Row, cost: Any) -> bool:
    """Whether a run has solved its task: a diverged run's last loss says nothing."""
    return row.get("status", "completed") == "completed" and isinstance(cost, (int, float)) and math.isfinite(cost)


def _text(target: Any) -> str | None:
    """Name of a target, which is read back as a number where it looks like one."""
    return f"{target:g}" if isinstance(target, (int, float)) else target


def _common(rows: Sequence[Row], comparisons: Sequence[Path]) -> list[Row]:
    """The rows of optimizers that are in every comparison."""
    sets = [{row["optimizer"] for row in rows if row["comparison"] == str(path)} for path in comparisons]
    common = set.intersection(*(own for own in sets if own)) if any(sets) else set()
    everyone = dict.fromkeys(row["optimizer"] for row in rows)
    if rows and not common:
        raise BadInput(f"runs: no optimizer is in all comparisons; there are {', '.join(everyone)}")
    left_out = [name for name in everyone if name not in common]
    if left_out:
        logger.warning("left out, not in every comparison: %s", ", ".join(left_out))
    return [row for row in rows if row["optimizer"] in common]


def _solvable(rows: Sequence[Row]) -> list[Row]:
    """The rows of tasks that are not solved from the start."""
    at_start = {row["task"] for row in rows if row["cost"] == 0}
    if at_start:
        logger.info("left out, solved at the start: %d tasks, such as %s", len(at_start), min(at_start))
    return [row for row in rows if row["task"] not in at_start]


def _counts(rows: Sequence[Row]) -> list[Row]:
    """Per optimizer: tasks, solved, best (ties count for each), within_2."""
    least: dict[str, float] = {}
    for row in rows:
        if row["cost"] is not None:
            least[row["task"]] = min(least.get(row["task"], math.inf), row["cost"])
    table = []
    for name in dict.fromkeys(row["optimizer"] for row in rows):
        solved = [row for row in rows if row["optimizer"] == name and row["cost"] is not None]
        factors = [row["cost"] / least[row["task"]] for row in solved]
        counts = {"best": sum(f <= 1 for f in factors), "within_2": sum(f <= NEAR for f in factors)}
        tasks = len({row["task"] for row in rows})
        table.append({"optimizer": name, "tasks": tasks, "solved": len(solved), **counts})
    return table
