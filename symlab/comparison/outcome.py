"""From the runs of a comparison to its tables, figures, reports and summary."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from symlab.comparison.content import METRICS, Question, Tables, draw_figures, report_content, sources
from symlab.comparison.ledger import CURVES, RESULTS, TRIALS
from symlab.comparison.numbers import losses_at, numbers, reached_targets
from symlab.comparison.report import markdown_report
from symlab.comparison.report_html import html_report
from symlab.comparison.statistics import cost_rows, sensitivity, summary_rows, target_rows
from symlab.comparison.tables import markdown_table, summary_table
from symlab.rundir import Outcome, RunDir
from symlab.rundir.bands import judge, verdict_lines
from symlab.rundir.outcome import COMPLETED, FAILED
from symlab.training.factories import PlotFunction

Row = dict[str, Any]
SHOWN_PROBLEMS = 5
DERIVED = ("tuned", "summary", "at_steps", "targets", "target_summary", "cost", "cost_summary", "memory", "coverage")

logger = logging.getLogger("symlab")


@dataclass(frozen=True)
class Measured:
    """What is known beside the runs on record."""

    tuned: list[Row]
    coverage: list[Row]
    times: list[Row]
    memory: list[Row]
    work: Mapping[str, Any] = field(default_factory=dict)


def tables_of(run: RunDir, setting: Question, measured: Measured) -> Tables:
    """Read back what the runs left, and derive the rest; the derived tables are written."""
    order = {label: i for i, label in enumerate(setting.plan.optimizers)}
    results = sorted(run.read_rows(RESULTS), key=lambda row: (order[row["optimizer"]], row["seed"]))
    curves = sorted(run.read_rows(CURVES), key=lambda row: (order[row["optimizer"]], row["seed"], row["step"]))
    trials = run.read_rows(TRIALS)
    run.replace_rows(results, RESULTS)  # in the order of the optimizers, not in that in which the runs ended
    run.replace_rows(curves, CURVES)
    targets = reached_targets(results, curves, setting.targets)
    times = sorted(measured.times, key=lambda row: (order[row["optimizer"]], row["repeat"]))
    near = {row["optimizer"]: row["within_10_percent"] for row in sensitivity(trials)}
    summary = []
    for metric, higher in METRICS.items():
        if any(row[metric] is not None for row in results):
            rows = summary_rows(results, metric, setting.reference, higher_is_better=higher)
            summary += [{"metric": metric, **row} for row in rows]
    tables = Tables(
        results=results,
        curves=curves,
        trials=trials,
        tuned=[row | {"within_10_percent": near[row["optimizer"]]} for row in measured.tuned],
        summary=summary,
        at_steps=losses_at(results, curves, setting.report_steps),
        targets=targets,
        target_summary=target_rows(targets),
        cost=times,
        cost_summary=cost_rows(times, measured.memory, setting.reference) if times else [],
        memory=measured.memory,
        coverage=measured.coverage,
    )
    for name in DERIVED:
        run.replace_rows(getattr(tables, name), name)  # also without rows: those of an earlier question must not stay
    return tables


def failures(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What went wrong in reported runs, beside divergence."""
    failed = [row for row in results if row["status"] == "failed"]
    return [f"{row['optimizer']}, seed {row['seed']} failed: {row['message']}" for row in failed]


def not_tuned(tuned: Sequence[Mapping[str, Any]]) -> list[str]:
    """Optimizers none of whose settings completed: they ran with their configured values."""
    return [
        f"{row['optimizer']} was not tuned: none of its {row['trials']} settings completed "
        f"({row['diverged']} diverged, {row['failed']} failed), so it ran with its configured values"
        for row in tuned
        if row["value"] is None
    ]


def status_of(problems: Sequence[str]) -> tuple[str, int]:
    """Status and exit code of the comparison; its problems are logged."""
    for line in problems[:SHOWN_PROBLEMS]:
        logger.error("%s", line)
    if len(problems) > SHOWN_PROBLEMS:
        logger.error("and %d more: see summary.json", len(problems) - SHOWN_PROBLEMS)
    return ("failed", FAILED) if problems else ("completed", COMPLETED)


def conclude(
    run: RunDir, setting: Question, measured: Measured, plots: Mapping[str, PlotFunction], late_signal: int
) -> Outcome:
    """Tables, figures, reports and summary.json; the table of results on the console.

    `late_signal`: the exit code of a signal that came after the last run, of which a sweep must still learn; else 0.
    """
    tables = tables_of(run, setting, measured)
    found = numbers(tables.results, tables.at_steps, tables.targets)
    verdicts = judge(setting.expected, found)
    drawn, problems = draw_figures(run, setting, tables, plots)
    problems = [*failures(tables.results), *not_tuned(measured.tuned), *problems]
    status, exit_code = status_of(problems)
    lost = [row for row in tables.trials if row["status"] == "failed"]
    if lost:
        logger.warning("%d tuning runs failed, the first: %s, %s", len(lost), lost[0]["optimizer"], lost[0]["message"])
    made_with = sources(tables)
    if len(made_with) > 1:
        logger.warning("the runs were not all made with the same code and machine: %s", "; ".join(made_with))
    statuses = [row["status"] for row in tables.results]
    every = [*tables.results, *tables.trials]
    work = {**measured.work, "run_s_all_starts": sum(row["duration_s"] or 0.0 for row in every)}
    summary = {
        "status": status,
        "exit_code": exit_code,
        "reference": setting.reference,
        "runs": len(statuses),
        **{name: statuses.count(name) for name in ("completed", "diverged", "failed")},
        "problems": problems,
        "steps": setting.plan.steps,
        "seeds": list(setting.plan.seeds),
        "numbers": {name: number["value"] for name, number in found.items()},
        "verdicts": verdicts,
        "summary": tables.summary,
        "tuned": tables.tuned,
        "cost": tables.cost_summary,
        "figures": [str(path) for _, path in drawn],
        **work,
    }
    run.write_summary(summary)
    content = report_content(run, setting, tables, verdicts, drawn, {**work, "problems": problems})
    run.save_report("report.md", markdown_report(content))
    run.save_report("report.html", html_report(content))
    shown = next(iter(METRICS))
    rows = [row for row in tables.summary if row["metric"] == shown]
    logger.info("%s\n%s", content.title, markdown_table(summary_table(rows, setting.reference)))
    for line in verdict_lines(verdicts):
        logger.info("%s", line)
    logger.info("report: %s", run.path / "report.html")
    return Outcome(status, late_signal or exit_code, summary)
