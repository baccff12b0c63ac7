"""A copy of symlab with one more job, `toy`, which needs no PyTorch: the command line itself is symlab's own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import symlab
from symlab.cli import main

PACKAGE = Path(symlab.__file__).parent
TOY = Path(__file__).parent / "toy"


@dataclass(frozen=True)
class Lab:
    """`lab("toy", "epochs=2")` runs a command line in `cwd` and returns the finished process."""

    tree: Path
    cwd: Path

    def environment(self, extra: Mapping[str, str | None]) -> dict[str, str]:
        changes = {"PYTHONPATH": str(self.tree), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **extra}
        merged = {**os.environ, **changes}
        return {name: value for name, value in merged.items() if value is not None}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "symlab", *words]

    def __call__(self, *words: str, cwd: Path | None = None, **extra: str | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=cwd or self.cwd,
            env=self.environment(extra),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            cwd=self.cwd,
            env=self.environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def runs(self, job: str = "toy") -> list[Path]:
        return sorted((self.cwd / "runs" / job).iterdir()) if (self.cwd / "runs" / job).is_dir() else []


@dataclass(frozen=True)
class Here:
    """Like Lab, but in this process: `here("toy", "epochs=2")`. Saves the start of a process."""

    cwd: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        self.capture.readouterr()
        try:
            code = main(words)
        finally:
            close_handlers()
        out, err = self.capture.readouterr()
        return subprocess.CompletedProcess(words, code, out, err)

    def runs(self) -> list[Path]:
        return sorted((self.cwd / "runs" / "toy").iterdir()) if (self.cwd / "runs" / "toy").is_dir() else []


def close_handlers() -> None:
    """Undo what Hydra configured in this process: the log file of the last run is still open."""
    for logger in (logging.getLogger(), logging.getLogger("symlab.file")):
        for handler in list(logger.handlers):
            if type(handler) in (logging.StreamHandler, logging.FileHandler):
                logger.removeHandler(handler)
                handler.close()


def plant(tree: Path) -> None:
    """symlab/ and conf/ below `tree`, by links, with the toy's files among them."""
    package = tree / "symlab"
    package.mkdir(parents=True)
    for entry in PACKAGE.iterdir():
        if entry.name not in ("jobs", "optim", "__pycache__"):
            (package / entry.name).symlink_to(entry)
    for name in ("jobs", "optim"):
        (package / name).mkdir()
        (package / name / "__init__.py").touch()
        for source in (TOY / name).glob("*.py"):
            (package / name / source.name).symlink_to(source)
    conf = tree / "conf"
    (conf / "optimizer").mkdir(parents=True)
    (conf / "base.yaml").symlink_to(PACKAGE.parent / "conf" / "base.yaml")
    for source in TOY.joinpath("conf").rglob("*.yaml"):
        (conf / source.relative_to(TOY / "conf")).symlink_to(source)
