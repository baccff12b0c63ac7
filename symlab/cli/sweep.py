"""What a sweep left behind: a table of its runs, read back from disk, and its exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from symlab.cli.validation import key_figures
from symlab.rundir import BadInput, RunDir
from symlab.rundir.outcome import BAD_INPUT, COMPLETED, FAILED

RESUME_ERROR = "resume_error"  # in the summary of a run whose last continuation could not start
FIGURES = 5  # columns, where the job does not name its own


def runs_in(folder: Path) -> list[RunDir]:
    """The runs of a sweep, by name."""
    return [run for path in sorted(folder.iterdir()) if path.is_dir() and (run := RunDir(path)).status != "empty"]


def refuse_used(folder: Path) -> None:
    """Raises BadInput if the directory holds a sweep or a run already."""
    if folder.is_dir() and ((folder / "multirun.yaml").exists() or RunDir(folder).holds_run or runs_in(folder)):
        raise BadInput(f"{folder} already holds runs; take another hydra.sweep.dir, or resume=... to continue them")


def exit_code(runs: Sequence[RunDir]) -> int:
    return COMPLETED if runs and all(exit_code_of(run) == COMPLETED for run in runs) else FAILED


def exit_code_of(run: RunDir) -> int:
    """What the run's last start ended with, from its summary."""
    if run.status in ("died", "running", "empty"):
        return FAILED
    summary = run.read_summary()
    return BAD_INPUT if RESUME_ERROR in summary else int(summary.get("exit_code", FAILED))


def table(job: str, runs: Sequence[RunDir]) -> str:
    """One line per run: directory, what differs, status, key figures."""
    summaries = [dict(_flat(run.read_summary())) for run in runs]
    figures = _figures(job, summaries)
    varied = _varied([run.read_overrides() for run in runs])
    head = ["directory", "overrides", "status", *figures]
    body = [
        [run.path.name, overrides, run.status, *(_number(summary.get(name)) for name in figures)]
        for run, overrides, summary in zip(runs, varied, summaries, strict=True)
    ]
    return _aligned([head, *body])


def _varied(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Of each run's overrides those that not every run has."""
    common = set.intersection(*(set(own) for own in overrides)) if len(overrides) > 1 else set()
    return [" ".join(override for override in own if override not in common) for own in overrides]


def _figures(job: str, summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    present = dict.fromkeys(name for summary in summaries for name in summary)
    named = key_figures(job)
    if named is not None:
        return [name for name in named if name in present]
    return [name for name in present if name not in ("exit_code", "starts")][:FIGURES]


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a nested summary, by dotted name."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{key}", value


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)
