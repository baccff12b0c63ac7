"""Sweeps: one directory per run, failures that stop nothing, the table, continuing, Ctrl-C."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from symlab.cli.resolvers import sweep_subdir
from tests.cli_lab import Lab


def only_sweep(lab: Lab) -> Path:
    (sweep,) = lab.runs()
    return sweep


def status(run: Path) -> str:
    return json.loads((run / "summary.json").read_text())["status"]


def runs(sweep: Path) -> dict[str, Path]:
    """First override -> directory."""
    return {json.loads(p.read_text().splitlines()[0][2:]): p.parent for p in sweep.glob("*/overrides.yaml")}


def test_failures_stop_nothing_and_are_all_reported(lab: Lab) -> None:
    done = lab("toy", "-m", "optimizer.lr=0.1,-1,nan,0.01", "note=same")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    found = runs(only_sweep(lab))
    assert {name: status(run) for name, run in found.items()} == {
        "optimizer.lr=0.1": "completed",
        "optimizer.lr=-1": "failed",
        "optimizer.lr=nan": "failed",
        "optimizer.lr=0.01": "completed",
    }
    for value in ("-1", "nan"):
        run = found[f"optimizer.lr={value}"]
        assert "lr must be positive, got" in (run / "FAILED").read_text()
        assert "Traceback" in (run / "log.txt").read_text()
        assert not (run / "metrics.csv").exists()
    table = done.stdout.splitlines()
    assert table[0] == f"sweep directory: runs/toy/{only_sweep(lab).name}"
    assert table[1].split() == ["directory", "overrides", "status", "final.value"]
    assert sorted(line.split()[1:3] for line in table[2:]) == sorted([name, status(run)] for name, run in found.items())
    log = (found["optimizer.lr=0.01"] / "log.txt").read_text()  # of the last run: each message once
    assert log.count("step 1") == 1
    assert "run directory" in log
    assert done.stderr.count("step 1") == 2


def test_a_sweep_with_a_key_taken_out(lab: Lab) -> None:
    done = lab("toy", "-m", "optimizer.lr=0.1,0.01", "~note")
    assert done.returncode == 0, done.stderr
    directories = [line.split()[0] for line in done.stdout.splitlines()[2:]]
    assert all(name.startswith("optimizer.lr-") for name in directories)
    assert len(directories) == 2


def test_a_bad_choice_stops_the_sweep_before_its_first_run(lab: Lab) -> None:
    for words in (["optimizer=plain,fanzy"], ["optimizer=fancy,plain", "optimizer.damping=1"], ["raet=1,2"]):
        done = lab("toy", "-m", *words)
        assert done.returncode == 2
        assert "there is no" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not lab.runs()


def test_a_value_of_the_wrong_type_fails_its_own_run_only(lab: Lab) -> None:
    done = lab("toy", "-m", "epochs=oops,1", "++optimizer.damping=1", "optimizer=fancy,plain")
    assert done.returncode == 1
    assert "epochs=oops: expected a whole number" in done.stderr
    assert "plain has no key damping" in done.stderr
    states = [status(run) for run in only_sweep(lab).iterdir() if run.is_dir()]
    assert sorted(states) == ["completed", "failed", "failed", "failed"]


def test_a_sweeps_directory_is_used_once_and_continued_by_config(lab: Lab) -> None:
    sweep = lab.cwd / "s"
    assert lab("toy", "-m", "rate=1,2", "hydra.sweep.dir=s").returncode == 0
    before = {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}
    again = lab("toy", "-m", "rate=5", "hydra.sweep.dir=s")
    assert again.returncode == 2
    assert "already holds runs" in again.stderr
    assert before == {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}
    more = lab("toy", "-m", "rate=3,2,1", "resume=s")
    assert more.returncode == 0, more.stderr
    assert more.stderr.count("already completed") == 2
    assert len(runs(sweep)) == 3
    assert more.stdout.count("completed") == 3
    lost = lab("toy", "-m", "rate=1", "resume=elsewhere")
    assert lost.returncode == 2
    assert "there is no sweep" in lost.stderr


def test_a_continued_sweep_refuses_a_run_of_another_config(lab: Lab) -> None:
    assert lab("toy", "-m", "rate=1,2", "hydra.sweep.dir=s").returncode == 0
    config = runs(lab.cwd / "s")["rate=2"] / "config.yaml"
    config.write_text(config.read_text().replace("note: text", "note: other"))
    done = lab("toy", "-m", "rate=1,2", "resume=s")
    assert done.returncode == 2
    assert "was made with another configuration: note=other, now text" in done.stderr


def test_names_of_runs() -> None:
    name = sweep_subdir(["seed=1", 'data.root="a=1, [x] #~(y) é"'])
    assert name == sweep_subdir(['data.root="a=1, [x] #~(y) é"', "seed=1"])
    assert name.startswith("data.root-a-1-x-y-_seed-1-")
    assert sweep_subdir(["seed=1", "rate=2"], ["rate"]).startswith("seed-1-")
    assert sweep_subdir(["seed=1", "rate=2"], ["rate"]) == sweep_subdir(["seed=1", "rate=3"], ["rate"])
    assert sweep_subdir(["seed=1", "rate=2"]) != sweep_subdir(["seed=1", "rate=3"])
    assert len(sweep_subdir([f"key{i}=value" for i in range(100)])) <= 120
    assert sweep_subdir([]).startswith("run-")


def wait_for(condition: object, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_sweep_and_the_run_is_resumable(lab: Lab, number: int, code: int) -> None:
    process = lab.start("toy", "-m", "rate=1,2,3", "sleep_s=0.2", "hydra.sweep.dir=s")
    second = lambda: any("step 0" in p.read_text() for p in (lab.cwd / "s").glob("rate-2-*/log.txt"))  # noqa: E731
    wait_for(second, process)
    os.killpg(process.pid, number)
    os.killpg(process.pid, number)
    output = process.communicate()[0]
    assert process.returncode == code, output
    assert "Traceback" not in output
    found = runs(lab.cwd / "s")
    assert {name: status(run) for name, run in found.items()} == {"rate=1": "completed", "rate=2": "interrupted"}
    assert "symlab toy -m rate=1,2,3 sleep_s=0.2 hydra.sweep.dir=s resume=s" in output
    done = lab("toy", "-m", "rate=1,2,3", "sleep_s=0.2", "resume=s")
    assert done.returncode == 0, done.stderr
    for rate in (1, 2, 3):
        rows = (runs(lab.cwd / "s")[f"rate={rate}"] / "metrics.csv").read_text()
        assert [line.split(",")[0] for line in rows.splitlines()] == ["step", "0", "1", "2"]


@pytest.mark.slow
def test_a_launcher_that_uses_other_processes(lab: Lab) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    done = lab("toy", "-m", "rate=1,2", "fail_at=null,1", *launcher)
    assert done.returncode == 1
    states = [status(path.parent) for path in only_sweep(lab).glob("*/summary.json")]
    assert sorted(states) == ["completed", "completed", "failed", "failed"]
    assert done.stdout.count("completed") == 2
    assert done.stdout.count("failed") == 2


@pytest.mark.slow
def test_sixteen_processes_in_the_same_instant(lab: Lab) -> None:
    processes = [lab.start("toy") for _ in range(16)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 16, outputs
    assert len(lab.runs()) == 16
