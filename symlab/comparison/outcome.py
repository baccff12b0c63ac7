"""From the runs of a comparison to its tables, figures, reports and summary."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas
import torch

from symlab.comparison.ledger import CURVES, RESULTS, TRIALS
from symlab.comparison.numbers import losses_at, numbers, target_table
from symlab.comparison.plan import Plan
from symlab.comparison.settings import described
from symlab.comparison.statistics import cost_rows, summary_rows, target_rows
from symlab.comparison.trial import Task
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.bands import judge, verdict_lines
from symlab.rundir.outcome import COMPLETED, FAILED
from symlab.training.factories import PlotFunction, name_of

Row = dict[str, Any]
METRICS = {"test_loss": False, "train_loss": False, "test_accuracy": True}  # -> higher is better
SHOWN_FAILURES = 3

logger = logging.getLogger("symlab")


@dataclass(frozen=True)
class Setting:
    """What a comparison was asked to do, beside its runs."""

    plan: Plan
    task: Task
    reference: str
    targets: tuple[float, ...]
    report_steps: tuple[int, ...]
    expected: Mapping[str, Sequence[float]]
    device: torch.device
    threads: int

    @classmethod
    def of(
        cls,
        plan: Plan,
        task: Task,
        reference: str | None,
        targets: Sequence[float],
        report_steps: Sequence[int],
        expected: Mapping[str, Sequence[float]],
        device: torch.device,
        threads: int,
    ) -> "Setting":
        """Raises BadInput for a reference that is no optimizer and a step to report at which nothing is measured."""
        if reference is not None and reference not in plan.optimizers:
            raise BadInput(f"reference={reference} is not one of the optimizers: {', '.join(plan.optimizers)}")
        steps = tuple(sorted({*report_steps, plan.steps}))
        for step in steps:
            if step > plan.steps or (step % plan.eval_every and step != plan.steps):
                raise BadInput(
                    f"report_steps: nothing is measured at step {step}; runs have {plan.steps} steps and are measured "
                    f"every eval_every={plan.eval_every}"
                )
        first = next(iter(plan.optimizers))
        return cls(plan, task, reference or first, tuple(targets), steps, expected, device, threads)

    def described(self) -> dict[str, Any]:
        """The setting as the report shows it."""
        plan, task = self.plan, self.task
        schedules = {name: described(schedule)["keywords"] for name, schedule in plan.schedules.items()}
        tuning: dict[str, Any] = {"tuning": "none: configured values"}
        if plan.trials:
            tuning = {
                "tuning": f"{plan.trials} settings for each optimizer, {name_of(plan.search)} in {plan.rounds} rounds",
                "tuning seeds": list(plan.tuning_seeds),
                "chosen by": f"{plan.objective} after {plan.steps} steps",
                "training rows held out while tuning": task.validation_fraction,
            }
        return {
            "model": described(task.model),
            "data": described(task.data),
            "loss": name_of(task.loss),
            "steps": plan.steps,
            "batch": "full" if task.batch_size is None else task.batch_size,
            "seeds": list(plan.seeds),
            "data of each seed": "its own" if task.vary_data else "the same",
            **tuning,
            "schedules": schedules,
            "schedule of": dict(plan.schedule_of),
            "device": str(self.device),
            "dtype": task.dtype,
            "threads of a run": self.threads,
        }


@dataclass(frozen=True)
class Measured:
    """What is known beside the runs on record."""

    tuned: list[Row]
    coverage: list[Row]
    times: list[Row]
    memory: list[Row]
    work: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tables:
    """All tables of a comparison, each also a csv file of its name."""

    results: list[Row]
    curves: list[Row]
    trials: list[Row]
    tuned: list[Row]
    summary: list[Row]  # one row per metric and optimizer
    at_steps: list[Row]
    targets: list[Row]
    target_summary: list[Row]
    cost: list[Row]
    cost_summary: list[Row]
    memory: list[Row]
    coverage: list[Row]


def tables_of(run: RunDir, setting: Setting, measured: Measured) -> Tables:
    """Read back what the runs left, and derive the rest; the derived tables are written."""
    order = {label: i for i, label in enumerate(setting.plan.optimizers)}
    results = sorted(run.read_rows(RESULTS), key=lambda row: (order[row["optimizer"]], row["seed"]))
    curves = sorted(run.read_rows(CURVES), key=lambda row: (order[row["optimizer"]], row["seed"], row["step"]))
    trials = run.read_rows(TRIALS)
    run.replace_rows(results, RESULTS)  # in the order of the optimizers, not in that in which the runs ended
    run.replace_rows(curves, CURVES)
    targets = target_table(results, curves, setting.targets)
    summary = []
    for metric, higher in METRICS.items():
        if any(row[metric] is not None for row in results):
            rows = summary_rows(results, metric, setting.reference, higher_is_better=higher)
            summary += [{"metric": metric, **row} for row in rows]
    tables = Tables(
        results=results,
        curves=curves,
        trials=trials,
        tuned=measured.tuned,
        summary=summary,
        at_steps=losses_at(results, curves, setting.report_steps),
        targets=targets,
        target_summary=target_rows(targets),
        cost=measured.times,
        cost_summary=cost_rows(measured.times, measured.memory, setting.reference) if measured.times else [],
        memory=measured.memory,
        coverage=measured.coverage,
    )
    for name in ("summary", "at_steps", "targets", "target_summary", "cost", "cost_summary", "memory", "coverage"):
        rows = getattr(tables, name)
        if rows:
            run.replace_rows(rows, name)
    return tables


def figures(run: RunDir, setting: Setting, tables: Tables, plots: Mapping[str, PlotFunction]) -> list[tuple[str, Path]]:
    """(name, path of the PNG) of each figure for which there is a table; `plots` names its table, others get curves."""
    references = {
        name.removeprefix("reference."): number["value"]
        for name, number in numbers(tables.results, [], []).items()
        if name.startswith("reference.") and number["value"] is not None
    }
    sources: dict[str, list[Row]] = {
        "tuning": tables.trials,
        "profile": profile_rows(tables.targets),
        "cost": [*tables.cost],
    }
    task, plan = setting.task, setting.plan
    batch = "full batch" if task.batch_size is None else f"batch {task.batch_size}"
    title = f"{name_of(task.model)} on {name_of(task.data)}, {batch}, {len(plan.seeds)} seeds"
    found = []
    for name, plot in plots.items():
        rows = sources.get(name, tables.curves)
        if rows:
            figure = plot(pandas.DataFrame(rows), references, title=title)
            found.append((name, run.save_figure(name, figure)[0]))
    return found


def profile_rows(targets: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows {optimizer, task, cost} of a performance profile: a task is a seed with a target, its cost the steps."""
    return [
        {"optimizer": row["optimizer"], "task": f"seed {row['seed']}, {row['target']}", "cost": row["step"]}
        for row in targets
    ]


def failures(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What went wrong in reported runs, beside divergence."""
    return [f"{row['optimizer']}, seed {row['seed']}: {row['message']}" for row in results if row["status"] == "failed"]


def status_of(results: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """Status and exit code of the comparison."""
    failed = failures(results)
    for line in failed[:SHOWN_FAILURES]:
        logger.error("a reported run failed: %s", line)
    if len(failed) > SHOWN_FAILURES:
        logger.error("and %d more: see results.csv", len(failed) - SHOWN_FAILURES)
    return ("failed", FAILED) if failed else ("completed", COMPLETED)


def conclude(run: RunDir, setting: Setting, measured: Measured, plots: Mapping[str, PlotFunction]) -> Outcome:
    """Tables, figures, reports and summary.json; the table on the console."""
    tables = tables_of(run, setting, measured)
    found = numbers(tables.results, tables.at_steps, tables.targets)
    verdicts = judge(setting.expected, found)
    drawn = figures(run, setting, tables, plots)
    status, exit_code = status_of(tables.results)
    statuses = [row["status"] for row in tables.results]
    summary = {
        "status": status,
        "exit_code": exit_code,
        "reference": setting.reference,
        "runs": len(statuses),
        **{name: statuses.count(name) for name in ("completed", "diverged", "failed")},
        "steps": setting.plan.steps,
        "seeds": list(setting.plan.seeds),
        "numbers": {name: number["value"] for name, number in found.items()},
        "verdicts": verdicts,
        "summary": tables.summary,
        "tuned": tables.tuned,
        "cost": tables.cost_summary,
        "figures": [str(path) for _, path in drawn],
        **measured.work,
    }
    run.write_summary(summary)
    for line in verdict_lines(verdicts):
        logger.info("%s", line)
    return Outcome(status, exit_code, summary)
