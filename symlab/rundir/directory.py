"""The run directory itself.

Layout: config.yaml (resolved) overrides.yaml environment.json metrics.csv summary.json log.txt FAILED
figures/<name>.png|pdf arrays/<name>.npz checkpoints/<name>.pt report.md report.html .lock
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pickle
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symlab.rundir import environment, files, tables
from symlab.rundir.outcome import BadInput

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

FIGURE_KINDS = ("png", "pdf")
CLAIM_SECONDS = 1.0  # a reader that looks at the lock holds it for microseconds


def run_name() -> str:
    """<date>_<time>-<8 hex digits>, e.g. 2026-01-31_142501-9f3c01ab."""
    return f"{datetime.now():%Y-%m-%d_%H%M%S}-{secrets.token_hex(4)}"


def checked_name(name: str) -> str:
    """The name of a table, figure or checkpoint, if it is made of letters, digits, `.`, `_` and `-`."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise ValueError(f"a file's name is made of letters, digits and . _ - only, got {name!r}")
    return name


class RunDir:
    """One run's directory; one process at a time writes to it (`claim`)."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.rows_written = 0  # by this object, all tables
        self._lock: int | None = None
        self._entry: int | None = None  # index of this start in environment.json

    @classmethod
    def create(cls, parent: Path | str) -> RunDir:
        """Make <parent>/<date>_<time>-<suffix>; no two processes get the same one (mkdir is exclusive)."""
        parent = Path(parent).absolute()
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            path = parent / run_name()
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> RunDir:
        """An existing run.

        Raises BadInput, naming the path, if there is no run.
        """
        run = cls(path)
        if not run.path.is_dir():
            raise BadInput(f"there is no run directory {run.path}")
        if not run.holds_run:
            raise BadInput(f"{run.path} is not a run directory: it has no config.yaml")
        return run

    # ---- who writes

    def claim(self) -> None:
        """Become the only writer, until `release` or the end of the process.

        Raises BadInput if another process is writing.
        """
        if self._lock is not None:
            return
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + CLAIM_SECONDS
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"
                os.close(descriptor)
                raise BadInput(f"run directory {self.path} is being written by {holder}")
            time.sleep(0.02)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._lock = descriptor
        for folder in (self.path, *(self.path / name for name in ("checkpoints", "figures", "arrays"))):
            files.remove_leftovers(folder)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_claimed(self) -> bool:
        """Whether a living process (this one included) writes here."""
        try:
            descriptor = os.open(self.path / ".lock", os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    @property
    def holds_run(self) -> bool:
        return (self.path / "config.yaml").is_file()

    # ---- configuration and provenance

    def write_config(self, yaml_text: str, overrides: Sequence[str]) -> None:
        """config.yaml and overrides.yaml of a new run; exclusive, so a run is never written over.

        Raises BadInput if the directory already holds a run.
        """
        try:
            files.create_text(self.path / "config.yaml", yaml_text)
        except FileExistsError:
            raise BadInput(
                f"{self.path} already holds a run; take another directory, or resume=... to continue that run"
            ) from None
        lines = [f"- {json.dumps(override, ensure_ascii=False)}\n" for override in overrides]
        files.write_text(self.path / "overrides.yaml", "".join(lines) or "[]\n")

    def replace_config(self, yaml_text: str) -> None:
        """The configuration of a resumed run, where it was allowed to change."""
        files.write_text(self.path / "config.yaml", yaml_text)

    def read_config_text(self) -> str:
        return (self.path / "config.yaml").read_text(encoding="utf-8")

    def read_overrides(self) -> list[str]:
        """What was typed for this run; empty if it is not known."""
        path = self.path / "overrides.yaml"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line.removeprefix("- ")) for line in lines if line.startswith("- ")]

    def write_environment(self, extra: Mapping[str, Any]) -> None:
        """environment.json: one entry per start. Later calls of the same start add to its entry."""
        entries = self.read_environment()
        if self._entry is None:
            self._entry = len(entries)
            entries.append(environment.collect())
        entries[self._entry] |= extra
        files.write_text(self.path / "environment.json", files.to_json(entries))

    def read_environment(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        return files.read_json(self.path / "environment.json", entries)

    # ---- tables

    def append_rows(self, rows: Sequence[Mapping[str, Any]], table: str = "metrics") -> None:
        """Add rows to <table>.csv and flush them to disk; see `tables.append_rows`."""
        tables.append_rows(self._table(table), rows)
        self.rows_written += len(rows)

    def truncate_rows(self, last_step: int, table: str = "metrics") -> None:
        """Drop the rows after `last_step`, which a resumed run writes anew; nothing if there is no table."""
        if self._table(table).exists():
            tables.truncate_rows(self._table(table), last_step)

    def keep_rows(self, wanted: Callable[[dict[str, Any]], bool], table: str = "metrics") -> None:
        """Drop the rows that are not `wanted`, which a resumed run writes anew; nothing if there is no table."""
        if self._table(table).exists():
            tables.keep_rows(self._table(table), wanted)

    def replace_rows(self, rows: Sequence[Mapping[str, Any]], table: str) -> None:
        """Put these rows in place of <table>.csv, atomically; see `tables.replace_rows`."""
        tables.replace_rows(self._table(table), rows)
        self.rows_written += len(rows)

    def read_rows(self, table: str = "metrics") -> list[dict[str, Any]]:
        """The rows of <table>.csv; none if there is no table yet."""
        return tables.read_rows(self._table(table)) if self._table(table).exists() else []

    def _table(self, table: str) -> Path:
        return self.path / f"{checked_name(table)}.csv"

    # ---- the end

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """summary.json, strict JSON; `starts` is added: the number of starts it speaks of."""
        text = files.to_json({**summary, "starts": len(self.read_environment())})
        files.write_text(self.path / "summary.json", text)
        if summary.get("status") != "failed":
            (self.path / "FAILED").unlink(missing_ok=True)

    def read_summary(self) -> dict[str, Any]:
        """What the last finished start wrote; empty if none has."""
        summary: dict[str, Any] = {}
        return files.read_json(self.path / "summary.json", summary)

    def mark_failed(self, traceback_text: str, exit_code: int = 1) -> None:
        """The file FAILED with the traceback, and status `failed` in the summary."""
        files.write_text(self.path / "FAILED", traceback_text)
        error = (traceback_text.strip().splitlines() or [""])[-1]
        self.write_summary({"status": "failed", "exit_code": exit_code, "error": error})

    @property
    def status(self) -> str:
        """completed, failed, diverged, interrupted, running, died (started, no outcome) or empty."""
        return "running" if self.is_claimed else self.recorded_status

    @property
    def recorded_status(self) -> str:
        """The status but for `running`: what the files say, also while this process holds the claim."""
        summary = self.read_summary()
        starts = len(self.read_environment())
        if summary and summary.get("starts", 0) >= starts:
            return str(summary.get("status", "died"))
        return "died" if self.holds_run or starts else "empty"

    # ---- checkpoints, arrays and figures

    def save_checkpoint(self, name: str, state: Mapping[str, Any]) -> None:
        """checkpoints/<name>.pt: tensors and plain Python types only, so that it loads with weights_only."""
        import torch

        path = self._checkpoint(name)
        path.parent.mkdir(exist_ok=True)
        buffer = io.BytesIO()  # torch's own writer turns a full disk into an error about positions
        torch.save(dict(state), buffer)
        files.write_atomic(path, lambda file: file.write(buffer.getbuffer()))

    def load_checkpoint(self, name: str) -> dict[str, Any]:
        """The state saved under that name, its tensors on the CPU.

        Raises BadInput if there is none or the file cannot be read.
        """
        import torch

        path = self._checkpoint(name)
        if not path.exists():
            raise BadInput(f"there is no checkpoint {path}")
        try:
            files.check_archive(path)  # torch itself does not compare the checksums that it writes
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise BadInput(f"cannot read checkpoint {path}: {error}") from error
        if not isinstance(state, dict):
            raise BadInput(f"cannot read checkpoint {path}: it holds a {type(state).__name__}, not a state by name")
        return state

    def has_checkpoint(self, name: str) -> bool:
        return self._checkpoint(name).exists()

    def _checkpoint(self, name: str) -> Path:
        return self.path / "checkpoints" / f"{checked_name(name)}.pt"

    def save_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> Path:
        """arrays/<name>.npz, compressed: arrays of numbers or of text by name; returns its path.

        Raises ValueError for an array of Python objects, which could not be read back safely.
        """
        path = self._arrays(name)
        path.parent.mkdir(exist_ok=True)
        files.write_bytes(path, files.to_npz(arrays))
        return path

    def read_arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays saved under that name.

        Raises BadInput if there are none or the file cannot be read.
        """
        path = self._arrays(name)
        if not path.exists():
            raise BadInput(f"there are no arrays {path}")
        return files.read_npz(path)

    def array_names(self) -> list[str]:
        """Names of all arrays that the run holds, sorted."""
        return sorted(path.stem for path in (self.path / "arrays").glob("*.npz") if not path.name.startswith("."))

    def _arrays(self, name: str) -> Path:
        return self.path / "arrays" / f"{checked_name(name)}.npz"

    def save_figure(self, name: str, figure: Figure) -> list[Path]:
        """figures/<name>.png and figures/<name>.pdf; returns both paths."""
        folder = self.path / "figures"
        folder.mkdir(exist_ok=True)
        paths = []
        for kind in FIGURE_KINDS:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind)  # at the figure's own resolution
            path = folder / f"{checked_name(name)}.{kind}"
            files.write_bytes(path, buffer.getvalue())
            paths.append(path)
        return paths

    def save_report(self, name: str, text: str) -> Path:
        """<name>, a report for people that ends in .md or .html, written whole or not at all; returns its path.

        Raises ValueError for another ending.
        """
        if not checked_name(name).endswith((".md", ".html")):
            raise ValueError(f"a report's name ends in .md or .html, got {name!r}")
        path = self.path / name
        files.write_text(path, text)
        return path

    def remove_figure(self, name: str) -> None:
        """Remove the files of that figure, if there are any."""
        for kind in FIGURE_KINDS:
            (self.path / "figures" / f"{checked_name(name)}.{kind}").unlink(missing_ok=True)

    @contextmanager
    def claimed(self) -> Iterator[RunDir]:
        """Hold the claim for the length of a `with` block."""
        self.claim()
        try:
            yield self
        finally:
            self.release()


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
