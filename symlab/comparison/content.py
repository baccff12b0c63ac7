"""What a comparison was asked, what it found, and both as the content of its report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import torch

from symlab.comparison.numbers import reference_medians
from symlab.comparison.plan import Plan
from symlab.comparison.report import ReportContent
from symlab.comparison.settings import described, space_of
from symlab.comparison.statistics import statistics_notes
from symlab.comparison.tables import (
    Cells,
    cost_table,
    coverage_table,
    number,
    summary_table,
    target_table,
    tuning_table,
)
from symlab.comparison.trial import Task
from symlab.rundir import BadInput, RunDir
from symlab.search.space import Space
from symlab.training.factories import PlotFunction, name_of
from symlab.training.ranges import check_at_least

Row = dict[str, Any]
METRICS = {"test_loss": False, "train_loss": False, "test_accuracy": True}  # -> higher is better


@dataclass(frozen=True)
class Question:
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
    ) -> "Question":
        """Raises BadInput for a reference that is no optimizer and a step to report at which nothing is measured."""
        if reference is not None and reference not in plan.optimizers:
            raise BadInput(f"reference={reference} is not one of the optimizers: {', '.join(plan.optimizers)}")
        check_at_least(0, **{f"targets[{index}]": level for index, level in enumerate(targets)})
        steps = tuple(sorted({*report_steps, plan.steps}))
        for step in steps:
            if step > plan.steps or (step % plan.eval_every and step != plan.steps):
                raise BadInput(
                    f"report_steps: nothing is measured at step {step}; runs have {plan.steps} steps and are measured "
                    f"every eval_every={plan.eval_every}"
                )
        first = next(iter(plan.optimizers))
        return cls(plan, task, reference or first, tuple(targets), steps, expected, device, threads)

    @property
    def trials_each(self) -> str:
        """How the settings of an optimizer are shared among schedules."""
        count = len(self.plan.schedules)
        shared = f", {self.plan.trials // count} or more for each of {count} schedules" if count > 1 else ""
        return f"{self.plan.trials} settings for each optimizer{shared}"

    @property
    def title(self) -> str:
        """Model, data, batch and seeds in a line."""
        task = self.task
        batch = "full batch" if task.batch_size is None else f"batch {task.batch_size}"
        return f"{name_of(task.model)} on {name_of(task.data)}, {batch}, {len(self.plan.seeds)} seeds"

    def described(self) -> dict[str, Any]:
        """The setting as the report shows it."""
        plan, task = self.plan, self.task
        schedules = {name: described(schedule)["keywords"] for name, schedule in plan.schedules.items()}
        tuning: dict[str, Any] = {"tuning": "none: configured values"}
        if plan.trials:
            tuning = {
                "tuning": f"{self.trials_each}, {name_of(plan.search)} in {plan.rounds} rounds",
                "tuning seeds": list(plan.tuning_seeds),
                "chosen by": f"{plan.objective} after {plan.steps} steps",
                "training rows held out while tuning": task.validation_fraction,
                "searched": {label: _ranges(plan, label) for label in plan.optimizers},
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
            "measured every": f"{plan.eval_every} updates, so steps to a target are rounded up to that",
            "schedule of": dict(plan.schedule_of),
            "device": str(self.device),
            "dtype": task.dtype,
            "threads of a run": self.threads,
        }


def _ranges(plan: Plan, label: str) -> str:
    """The declared ranges of an optimizer and of the schedules, which the search may leave."""
    spaces = [("", space_of(plan.optimizers[label]))]
    spaces += [(f"{name}.", space_of(schedule)) for name, schedule in plan.schedules_for(label).items()]
    dimensions = [dimension for prefix, space in spaces for dimension in Space.of(space, prefix).dimensions]
    return ", ".join(
        f"{d.key} in {list(d.choices)}" if d.choices is not None else f"{d.key} {d.low:g} to {d.high:g}"
        for d in dimensions
    )


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


def draw_figures(
    run: RunDir, setting: Question, tables: Tables, plots: Mapping[str, PlotFunction]
) -> tuple[list[tuple[str, Path]], list[str]]:
    """(name, path of the PNG) of each figure for which there are rows, and what went wrong with the others.

    The name says which table: tuning, profile, cost, or else the curves.
    """
    references = reference_medians(tables.results)
    rows_of = {"tuning": tables.trials, "profile": profile_rows(tables.targets), "cost": tables.cost}
    drawn, problems = [], []
    for name, plot in plots.items():
        rows = rows_of.get(name, tables.curves)
        if not rows:
            run.remove_figure(name)  # that of an earlier question
            continue
        try:
            figure = plot(pandas.DataFrame(rows), references, title=setting.title)
        except (ValueError, KeyError, TypeError) as error:
            problems.append(f"plots.{name} does not fit its table: {error}")
        else:
            drawn.append((name, run.save_figure(name, figure)[0]))
    return drawn, problems


def profile_rows(targets: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows {optimizer, task, cost} of a performance profile: a task is a seed with a target, its cost the steps."""
    return [
        {"optimizer": row["optimizer"], "task": f"seed {row['seed']}, {row['target']}", "cost": row["step"]}
        for row in targets
    ]


def report_content(
    run: RunDir,
    setting: Question,
    tables: Tables,
    verdicts: Mapping[str, Mapping[str, Any]],
    drawn: Sequence[tuple[str, Path]],
    work: Mapping[str, Any],
) -> ReportContent:
    """Everything that the report says."""
    starts = run.read_environment() or [{}]
    environment = starts[-1]
    shown = ("versions", "git", "cpu", "cpu_available", "gpus", "platform", "started")
    main = [row for row in tables.summary if row["metric"] == next(iter(METRICS))]
    return ReportContent(
        title=f"Comparison of optimizers: {setting.title}",
        settings=setting.described(),
        tables=[table for table in _sections(setting, tables, verdicts) if table[2]],
        figures=[(CAPTIONS.get(name, name), path.read_bytes(), f"figures/{path.name}") for name, path in drawn],
        environment={key: environment[key] for key in shown if key in environment} | dict(work),
        command_line="\n".join(str(start.get("command_line", "")) for start in starts),
        notes=[*statistics_notes(main, setting.reference), *OWN_NOTES, *_provenance(tables)],
    )


COST_NOTE = "The optimizers take turns; ratios are within one block of ten steps."
OWN_NOTES = (
    "Seconds in curves and to a target are those of the updates alone, while other workers ran; the time per step was "
    "measured apart.",
    "Intervals and tests speak of the seeds; they leave out that the values were chosen by a search with chance in it.",
)


def sources(tables: Tables) -> list[str]:
    """Code, versions and machines that the runs were made with, each once."""
    return list(dict.fromkeys(str(row["made_with"]) for row in [*tables.results, *tables.trials]))


def _provenance(tables: Tables) -> list[str]:
    found = sources(tables)
    if len(found) == 1:
        return [f"All runs were made with {found[0]}."]
    return [f"Attention: the runs were not all made with the same code and machine, but with: {'; '.join(found)}."]


CAPTIONS = {
    "steps": "Loss against updates",
    "seconds": "Loss against seconds of training (updates alone)",
    "tuning": "Every tuned setting: the objective over the tuned values",
    "profile": "Share of seeds and targets reached within a factor of the fewest steps",
    "cost": "Time of a step, relative to the first optimizer",
}


def _sections(
    setting: Question, tables: Tables, verdicts: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str, list[Cells]]]:
    """(heading, note, rows) in the order of the report."""
    sections = [("In short", _short_note(setting), verdict_rows(tables.summary, setting.reference))]
    for metric in METRICS:
        rows = [row for row in tables.summary if row["metric"] == metric]
        heading = f"{metric.replace('_', ' ').capitalize()} after {setting.plan.steps} updates"
        sections.append((heading, "Over the seeds.", summary_table(rows, setting.reference)))
    at_steps = [
        {
            "optimizer": str(row["optimizer"]),
            "step": str(row["step"]),
            "median [min, max]": f"{number(row['median'])} [{number(row['min'])}, {number(row['max'])}]",
        }
        for row in tables.at_steps
    ]
    if len(setting.report_steps) > 1:
        sections.append(("Test loss on the way", "Over the seeds.", at_steps))
    judged = [
        {
            "number": name,
            "found": number(verdict["value"]),
            "expected": f"{verdict['low']:g} to {verdict['high']:g}",
            "verdict": str(verdict["verdict"]),
        }
        for name, verdict in verdicts.items()
    ]
    return [
        *sections,
        ("Expected bands", "Medians over the seeds.", judged),
        ("Updates and seconds to a target", "Test loss.", target_table(tables.target_summary)),
        ("Tuning", _tuning_note(tables), tuning_table(tables.tuned)),
        (
            "Cost of a step",
            "The optimizers take turns; ratios are within one block of ten steps.",
            cost_table(tables.cost_summary, setting.reference),
        ),
        ("Which rule touched which tensor", "", coverage_table(tables.coverage)),
    ]


SIGNIFICANT = 0.05


def verdict_rows(summary: Sequence[Mapping[str, Any]], reference: str) -> list[Cells]:
    """Optimizers by median test loss, each with its ratio to the reference and what the corrected test says of it."""
    rows = sorted((row for row in summary if row["metric"] == "test_loss"), key=lambda row: float(row["median"]))
    return [
        {
            "rank": str(rank),
            "optimizer": str(row["optimizer"]),
            "median test loss": number(row["median"]),
            f"ratio to {reference}": number(row["ratio"]),
            f"against {reference}": _verdict(row, reference),
        }
        for rank, row in enumerate(rows, start=1)
    ]


def _verdict(row: Mapping[str, Any], reference: str) -> str:
    if row["optimizer"] == reference:
        return "the reference"
    if row["p_holm"] is None or row["p_holm"] >= SIGNIFICANT:
        return "undecided"
    if row["ratio"] is None:
        return "different, with runs that diverged or failed"
    return "better" if row["ratio"] < 1 else "worse"


def _short_note(setting: Question) -> str:
    plan = setting.plan
    least = 2.0 ** (1 - len(plan.seeds))
    note = f"Test loss after {plan.steps} updates, smallest first; better and worse: p (Holm) below {SIGNIFICANT:g}."
    if least * max(len(plan.optimizers) - 1, 1) >= SIGNIFICANT:
        note += f" With {len(plan.seeds)} seeds that cannot be: more seeds are needed to decide anything."
    return note


def _tuning_note(tables: Tables) -> str:
    edges = [f"{row['optimizer']} ({row['edges']})" for row in tables.tuned if row["edges"]]
    if not edges:
        return "No best value is at the edge of what was tried."
    return f"At the edge of all that was tried, so a better value may lie beyond: {'; '.join(edges)}."
