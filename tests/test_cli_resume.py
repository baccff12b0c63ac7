"""Continuing one run: the saved config, the keys that may change, the claim, signals and deaths."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from symlab.cli import resume, task
from symlab.cli.arguments import override_text, pasteable
from symlab.cli.signals import Stopped
from symlab.rundir import RunDir
from tests.cli_lab import Here, Lab


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def steps(run: Path) -> list[int]:
    return [row["step"] for row in RunDir(run).read_rows()]


def test_a_completed_run_changes_only_if_there_is_more_to_do(lab: Lab) -> None:
    run = lab.cwd / "r"
    assert lab("toy", "rate=2", "hydra.run.dir=r").returncode == 0
    before = files(run)
    done = lab("toy", "resume=r/")
    assert done.returncode == 0
    assert f"already completed: {run}" in done.stdout
    assert files(run) == before
    done = lab("toy", "resume=r", "epochs=5", "sleep_s=0.01")
    assert done.returncode == 0, done.stderr
    assert steps(run) == [0, 1, 2, 3, 4]
    config = OmegaConf.load(run / "config.yaml")
    assert (config.epochs, config.rate, config.sleep_s) == (5, 2.0, 0.01)
    environment = json.loads((run / "environment.json").read_text())
    assert [entry["command_line"] for entry in environment] == [
        "symlab toy rate=2 hydra.run.dir=r",
        "symlab toy resume=r epochs=5 sleep_s=0.01",
    ]
    assert "step 0" in (run / "log.txt").read_text()
    assert "step 4" in (run / "log.txt").read_text()


def test_other_changes_are_refused_and_leave_the_run_alone(here: Here) -> None:
    assert here("toy", "hydra.run.dir=r").returncode == 0
    before = files(here.cwd / "r")
    for change in ("rate=3", "optimizer=fancy", "optimizer.lr=1", "+epochs=4", "~note", "epochs=oops"):
        done = here("toy", "resume=r", change)
        assert done.returncode == 2, done.stdout
        assert change in done.stderr
        assert "Traceback" not in done.stderr
    assert "only these may change: epochs, sleep_s" in here("toy", "resume=r", "rate=3").stderr
    assert files(here.cwd / "r") == before


def test_a_file_of_the_run_that_cannot_be_read_is_named(here: Here) -> None:
    assert here("toy", "hydra.run.dir=r").returncode == 0
    for name, content in (("config.yaml", "- 1"), ("summary.json", '{"status"'), ("environment.json", "{}")):
        path = here.cwd / "r" / name
        before = path.read_text()
        path.write_text(content)
        done = here("toy", "resume=r", "epochs=9")
        assert done.returncode == 2, done.stderr
        assert name in done.stderr
        path.write_text(before)


def test_a_run_that_died_starts_anew_without_a_checkpoint(lab: Lab) -> None:
    run = RunDir(lab.cwd / "r")
    assert lab("toy", "hydra.run.dir=r").returncode == 0
    (run.path / "checkpoints" / "last.pt").unlink()
    (run.path / "summary.json").unlink()
    with (run.path / "metrics.csv").open("a") as table:
        table.write("3,0.")  # killed while it wrote
    assert run.status == "died"
    done = lab("toy", "resume=r")
    assert done.returncode == 0, done.stderr
    assert run.status == "completed"
    assert steps(run.path) == [0, 1, 2]


def test_a_run_that_is_being_written_is_refused(lab: Lab) -> None:
    assert lab("toy", "hydra.run.dir=r").returncode == 0
    with RunDir(lab.cwd / "r").claimed():
        done = lab("toy", "resume=r", "epochs=9")
    assert done.returncode == 2
    assert "another process is writing this run" in done.stderr


def test_a_failed_start_does_not_undo_a_completed_run(lab: Lab) -> None:
    (lab.cwd / "d").mkdir()
    assert lab("toy", "hydra.run.dir=r", "root=d").returncode == 0
    (lab.cwd / "d").rmdir()
    done = lab("toy", "resume=r", "epochs=9")
    assert done.returncode == 2
    assert "there is no such directory" in done.stderr
    assert RunDir(lab.cwd / "r").status == "completed"


@pytest.mark.parametrize("name", ["a=1", "dé p", "a,b", "a[1]", "a(b)", "#1", "~", "it's"])
def test_directories_of_any_name(name: str, here: Here) -> None:
    done = here("toy", override_text("hydra.run.dir", f"./{name}"), "epochs=1")
    assert done.returncode == 0, done.stderr
    done = here("toy", override_text("resume", f"./{name}/"), "epochs=2")
    assert done.returncode == 0, done.stderr
    assert steps(here.cwd / name) == [0, 1]


def test_a_name_that_needs_quotes_is_answered_with_the_quoted_form(here: Here) -> None:
    for text in ("a=1", "a(b", "dé"):
        done = here("toy", f"resume={text}")
        assert done.returncode == 2
        assert pasteable("resume", text) in done.stderr or "there is no such directory" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_save_and_the_printed_command_continues(number: int, lab: Lab) -> None:
    process = lab.start("toy", "sleep_s=0.3", "hydra.run.dir='a b'", "hydra.job.chdir=true")
    log = lab.cwd / "a b" / "log.txt"
    while not (log.exists() and "step 0" in log.read_text()):
        time.sleep(0.02)
    os.killpg(process.pid, number)
    output = process.communicate()[0]
    assert process.returncode == 128 + number
    assert "Traceback" not in output
    assert RunDir(lab.cwd / "a b").status == "interrupted"
    assert "to resume: symlab toy 'resume=\"a b\"'" in output
    done = lab("toy", 'resume="a b"', "sleep_s=0")
    assert done.returncode == 0, done.stderr
    assert steps(lab.cwd / "a b") == [0, 1, 2]


def test_signals_in_the_first_second(lab: Lab) -> None:
    for delay in (0.1, 0.2, 0.3):
        process = lab.start("toy", "sleep_s=0.5", f"hydra.run.dir=early{delay}")
        time.sleep(delay)
        process.terminate()
        output = process.communicate()[0]
        assert process.returncode in (143, -signal.SIGTERM), output  # the latter: before Python runs symlab at all
        assert "Traceback" not in output
        assert RunDir(lab.cwd / f"early{delay}").status in ("interrupted", "empty")


TEXT = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda values: st.lists(values) | st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), values),
    max_leaves=10,
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), plain, max_size=4))
def test_a_saved_config_reads_back_equal(config: dict[str, Any]) -> None:
    text = resume.to_yaml(config)
    assert OmegaConf.to_container(OmegaConf.create(text), resolve=True) == config


def test_a_stop_that_was_swallowed_before_the_job_is_obeyed(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops an exception that a signal's handler raises inside a finalizer or a callback."""
    monkeypatch.setattr(task, "received", lambda: Stopped(signal.SIGTERM))
    done = here("toy", "hydra.run.dir=swallowed")
    assert done.returncode == 143
    run = RunDir(here.cwd / "swallowed")
    assert run.status == "interrupted"
    assert run.read_rows() == []
