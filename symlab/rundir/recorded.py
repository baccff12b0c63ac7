"""Runs read back from disk: where they are, and what each has left."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from symlab.rundir.directory import RunDir
from symlab.rundir.outcome import BadInput


@dataclass(frozen=True)
class RecordedRun:
    """What a run left on disk."""

    path: Path
    status: str  # see RunDir.status
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def completed(self) -> bool:
        return self.status == "completed"


def run_paths(runs: list[Path] | Path) -> list[Path]:
    """Directories with a config.yaml, in order of their names; each once.

    Raises BadInput, naming the pattern, when one of them matches no run.
    """
    patterns = [runs] if isinstance(runs, (Path, str)) else list(runs)
    if not patterns:
        raise BadInput("runs=[]: give at least one run directory or pattern, e.g. runs='runs/train/*'")
    found: dict[Path, None] = {}
    for pattern in patterns:
        matches = [Path(match) for match in sorted(glob.glob(str(Path(pattern).absolute())))]
        below = [sorted(file.parent for file in match.rglob("config.yaml")) for match in matches if match.is_dir()]
        paths = [path for folder in below for path in folder]
        if not paths:
            detail = "holds no run" if matches else "matches nothing"
            raise BadInput(f"runs={pattern}: {detail}; give run directories, or a pattern such as 'runs/train/*'")
        found |= dict.fromkeys(paths)
    return list(found)


def read_run(path: Path) -> RecordedRun:
    """The run in that directory; `rows` are those of metrics.csv, none if it has not begun.

    Raises BadInput, naming the path, where there is no run or its config.yaml or metrics.csv cannot be read.
    """
    directory = RunDir.open(path)
    config = _read_config(directory)
    return RecordedRun(path, directory.status, config, directory.read_summary(), directory.read_rows())


def counted_statuses(runs: Sequence[RecordedRun]) -> str:
    """E.g. "2 diverged, 1 running", in order of first appearance."""
    return ", ".join(f"{count} {status}" for status, count in Counter(run.status for run in runs).items())


def _read_config(directory: RunDir) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(directory.read_config_text())
    except yaml.YAMLError as error:
        raise BadInput(f"{directory.path}/config.yaml cannot be read: {error}") from error
    if not isinstance(config, Mapping):
        raise BadInput(f"{directory.path}/config.yaml does not hold the keys of a run")
    return config
