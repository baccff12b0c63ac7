"""`symlab train` as several processes, started as torchrun and srun start them."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from symlab.rundir import RunDir
from symlab.rundir.processes import find_place, port_of
from tests.training.problems import assert_same_state, rows_without_time

pytestmark = pytest.mark.slow

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "symlab"]
SMALL = ["train", "optimizer=adam", "data.num_train=60", "data.num_test=21", "batch_size=20", "threads=1", "device=cpu"]


def environment(**more):
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | more


def torchrun(folder, *words, **options):
    command = [*TORCHRUN, *words]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=180, **options
    )


def the_run(folder):
    (path,) = (folder / "runs" / "train").iterdir()
    return RunDir(path)


def test_torchrun_leaves_one_run_and_one_log(tmp_path):
    done = torchrun(tmp_path, *SMALL, "epochs=2")
    assert done.returncode == 0, done.stderr
    run = the_run(tmp_path)
    assert [row["step"] for row in run.read_rows()] == [0, 3, 6]
    log = (run.path / "log.txt").read_text("utf-8")
    for text in (log, done.stderr):
        assert len(re.findall("run directory:", text)) == len(re.findall("completed at step 6 of 6", text)) == 1
    assert len(run.read_environment()) == 1
    assert run.read_environment()[0]["processes"] == 2
    assert run.status == "completed"


def test_what_several_processes_cannot_share_is_refused_once(tmp_path):
    for words, message in (
        (["train", "-m", "seed=0,1"], "a sweep (-m) runs in one process, and this command was started as 2"),
        (["symmetry"], "symmetry runs in one process, and this command was started as 2"),
        (["train", "optimizer=kfca"], "optimizer=kfca: there is no such option"),
    ):
        done = torchrun(tmp_path, *words)
        assert done.returncode != 0
        assert done.stderr.count(f"symlab: error: {message}") == 1
    assert not (tmp_path / "runs").exists()


def test_help_is_printed_once(tmp_path):
    done = torchrun(tmp_path, "train", "--help")
    assert done.returncode == 0
    assert done.stdout.count("checkpoint_every_s") >= 1
    assert done.stdout.count("symlab train") == subprocess.run(
        [sys.executable, "-m", "symlab", "train", "--help"], capture_output=True, text=True, cwd=tmp_path
    ).stdout.count("symlab train")


def test_a_signal_to_all_saves_and_a_resumed_run_equals_the_uninterrupted_one(tmp_path):
    words = [*SMALL, "epochs=2000", "eval_every=500", "model=mlp"]
    (tmp_path / "stopped").mkdir()
    process = subprocess.Popen([*TORCHRUN, *words], cwd=tmp_path / "stopped", env=environment(), start_new_session=True)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "stopped").glob("runs/train/*/metrics.csv")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(60)
    run = the_run(tmp_path / "stopped")
    summary = run.read_summary()
    assert (summary["status"], summary["exit_code"]) == ("interrupted", 143)
    assert 0 <= summary["step"] < 6000
    done = torchrun(tmp_path, "train", f"resume={run.path}")
    assert done.returncode == 0, done.stderr
    assert "already completed" in torchrun(tmp_path, "train", f"resume={run.path}").stdout
    (tmp_path / "straight").mkdir()
    assert torchrun(tmp_path / "straight", *words).returncode == 0
    straight = the_run(tmp_path / "straight")
    assert rows_without_time(straight) == rows_without_time(run)
    assert_same_state(straight.load_checkpoint("last")["model"], run.load_checkpoint("last")["model"])


def test_the_variables_of_srun(tmp_path):
    """Two tasks of a step; the port follows from the job's number."""
    job = str(os.getpid())
    slurm = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "3", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "localhost"}
    command = [sys.executable, "-m", "symlab", *SMALL, "epochs=2", "hydra.run.dir=runs/train/one"]
    tasks = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment(**slurm, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (1, 0)
    ]
    said = [task.communicate(timeout=120)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert said[0] == ""  # rank 0 speaks for both
    assert the_run(tmp_path).read_summary()["processes"] == 2
    assert find_place(slurm | {"SLURM_PROCID": "1"}).port == port_of(int(job), 3)


def test_a_run_directory_that_is_taken_stops_all(tmp_path):
    assert torchrun(tmp_path, *SMALL, "epochs=1", "hydra.run.dir=one").returncode == 0
    done = torchrun(tmp_path, *SMALL, "epochs=1", "hydra.run.dir=one")
    assert done.returncode != 0
    assert done.stderr.count("already holds a run") == 1
    assert Path(tmp_path / "one" / "summary.json").exists()
