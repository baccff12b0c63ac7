"""The sbatch scripts with stand-ins for srun and scontrol: same id, same run; requeue; exit codes; quoting."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from symlab.rundir import RunDir
from tests.scripts.runs import TOY, assert_same_runs
from tests.scripts.stand_ins import SCRIPTS, Cluster, make_cluster

BOTH = [("train.sbatch", None, "7"), ("seeds.sbatch", 3, "40_3"), ("distributed.sbatch", None, "7")]
both = pytest.mark.parametrize(("script", "task", "job"), BOTH, ids=["train", "seeds", "distributed"])
ARRAYS = ("seeds.sbatch", "grid.sbatch")
PROCESSES = {
    "grid.sbatch": {"ntasks-per-node": "1"},
    "distributed.sbatch": {"ntasks-per-node": "8", "gpus-per-node": "8"},
}
every = pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.name)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return make_cluster(tmp_path)


def start(job: str) -> list[str]:
    return [f"hydra.run.dir=runs/train/slurm-{job}", f"hydra.sweep.dir=runs/train/slurm-{job}"]


# ---- the text


def directives(path: Path) -> dict[str, str]:
    """The #SBATCH lines; SLURM reads them only above the first command."""
    lines = path.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    found = [line for line in lines if line.startswith("#SBATCH ")]
    assert found == [line for line in lines[:first] if line.startswith("#SBATCH ")]
    pairs = [line.removeprefix("#SBATCH --").partition("=") for line in found]
    return {name: value for name, _, value in pairs}


@every
def test_directives(path):
    found = directives(path)
    array = path.name in ARRAYS
    assert found["open-mode"] == "append"  # a requeued job goes on in the log that it has
    assert found["requeue"] == ""
    assert re.fullmatch(r"USR1@\d+", found["signal"])  # to the steps: no B:
    assert int(found["signal"].partition("@")[2]) >= 60
    assert found["output"] == ("runs/slurm/%x_%A_%a.log" if array else "runs/slurm/%x_%j.log")
    assert ("array" in found) == array
    assert found["nodes"] == "1"
    processes = {name: value for name, value in found.items() if name.startswith(("ntasks", "gpus"))}
    assert processes == PROCESSES.get(path.name, {"ntasks": "1"})
    assert not set("=,[]()#~ ") & set(found["output"] + found["job-name"])


@every
def test_strict_and_executable(path):
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    commands = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    assert path.stat().st_mode & 0o111


def test_the_folder_of_the_logs_comes_with_a_checkout():
    tracked = subprocess.run(
        ["git", "ls-files", "runs"], cwd=SCRIPTS.parent, capture_output=True, text=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    assert "runs/slurm/.gitkeep" in tracked.stdout.splitlines()


def test_the_scripts_differ_in_their_heads_only():
    """SLURM runs a copy of the script from its spool, so neither can read a file that lies beside it."""
    tails = [path.read_text().partition("\n# ---- ")[2] for path in SCRIPTS.glob("*.sbatch")]
    assert len(tails) == 4
    assert len(set(tails)) == 1
    assert len(tails[0].splitlines()) > 40


def test_shellcheck():
    program = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("shellcheck is not installed (apt-get install shellcheck)")
    done = subprocess.run([program, *SCRIPTS.glob("*.sbatch")], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


# ---- which run


@both
def test_the_same_id_continues_its_run(cluster, script, task, job):
    for _ in range(2):
        done = cluster.run(script, "optimizer=symo", "epochs=3", task=task)
        assert (done.returncode, done.stderr) == (0, "")
    first, second = cluster.arguments()
    seed = [] if task is None else ["seed=3"]
    assert first == ("train", "threads=3", "optimizer=symo", "epochs=3", *seed, *start(job))
    assert second == ("train", f"resume=runs/train/slurm-{job}")


def test_array_tasks_have_runs_and_seeds_of_their_own(cluster):
    for task in range(4):
        assert cluster.run("seeds.sbatch", "seed=77", task=task).returncode == 0
    for task, call in enumerate(cluster.arguments()):
        assert call == ("train", "threads=3", "seed=77", f"seed={task}", *start(f"40_{task}"))
    assert len(list((cluster.submit_dir / "runs" / "train").iterdir())) == 4


@both
def test_a_sweep_is_given_its_arguments_again(cluster, script, task, job):
    for _ in range(2):
        assert cluster.run(script, "-m", "optimizer=gd,adam", task=task).returncode == 0
    first, second = cluster.arguments()
    seed = [] if task is None else ["seed=3"]
    assert first == ("train", "threads=3", "-m", "optimizer=gd,adam", *seed, *start(job))
    assert second == ("train", "threads=3", "-m", "optimizer=gd,adam", *seed, f"resume=runs/train/slurm-{job}")


def test_a_directory_without_a_run_is_not_resumed(cluster):
    """The first start may have been killed before it wrote anything."""
    (cluster.submit_dir / "runs" / "train" / "slurm-7").mkdir(parents=True)
    assert cluster.run("train.sbatch").returncode == 0
    assert cluster.arguments() == [("train", "threads=3", *start("7"))]


def test_another_job_with_the_same_id_is_refused(cluster):
    assert cluster.run("train.sbatch", "optimizer=adam", "data.root='a b'").returncode == 0
    done = cluster.run("train.sbatch", "optimizer=symo")
    assert done.returncode == 2
    assert r"runs/train/slurm-7 belongs to another job with this id; its arguments were: optimizer=adam" in done.stderr
    assert len(cluster.calls("symlab")) == 1


# ---- how symlab is called


@both
def test_arguments_arrive_unchanged(cluster, script, task, job):
    typed = ["model.hidden=[3, 4]", 'data.root="/d/a=1, b(c) [2] #~é"', "+x='$HOME `id`'", "y=\\*", ""]
    assert cluster.run(script, *typed, task=task).returncode == 0
    assert list(cluster.arguments()[0][2 : 2 + len(typed)]) == typed


@both
def test_srun_gets_one_task_with_the_job_s_cores_where_sbatch_was_called(cluster, script, task, job):
    assert cluster.run(script, task=task).returncode == 0
    (srun,), (symlab,) = cluster.calls("srun"), cluster.calls("symlab")
    assert srun.arguments[:2] == ("--ntasks=1", "--cpus-per-task=3")
    assert "symlab" in srun.arguments[2:5]
    assert (srun.cwd, srun.threads) == (symlab.cwd, symlab.threads) == (str(cluster.submit_dir), "3")


def test_one_thread_where_slurm_names_no_number(cluster):
    assert cluster.run("train.sbatch", SLURM_CPUS_PER_TASK=None).returncode == 0
    assert cluster.arguments() == [("train", "threads=1", *start("7"))]


def test_a_python_of_its_own(cluster):
    python = cluster.folder / "an environment" / "python"
    python.parent.mkdir()
    python.symlink_to(cluster.folder / "bin" / "symlab")
    assert cluster.run("train.sbatch", "epochs=1", SYMLAB_PYTHON=str(python)).returncode == 0
    assert cluster.arguments() == [("-m", "symlab", "train", "threads=3", "epochs=1", *start("7"))]


def test_a_missing_symlab_is_named(cluster):
    (cluster.folder / "bin" / "symlab").unlink()
    done = cluster.run("train.sbatch")
    assert (done.returncode, cluster.calls("srun")) == (2, [])
    assert "symlab: no such program; activate symlab's environment or set SYMLAB_PYTHON" in done.stderr
    done = cluster.run("train.sbatch", SYMLAB_PYTHON="/no/python")
    assert (done.returncode, cluster.calls("srun")) == (2, [])
    assert "/no/python: no such program" in done.stderr


@both
def test_outside_slurm_the_usage_is_shown(cluster, script, task, job):
    nowhere = {"SLURM_JOB_ID": None, "SLURM_ARRAY_JOB_ID": None, "SLURM_ARRAY_TASK_ID": None}
    done = cluster.run(script, task=task, **nowhere)
    assert (done.returncode, cluster.calls("srun")) == (2, [])
    assert "mkdir -p runs/slurm && sbatch" in done.stderr
    assert f"scripts/{script}" in done.stderr


def test_one_run_is_not_an_array(cluster):
    done = cluster.run("train.sbatch", task=0)
    assert (done.returncode, cluster.calls("srun")) == (2, [])
    assert "use scripts/seeds.sbatch" in done.stderr


# ---- the end


@both
@pytest.mark.parametrize("code", [0, 1, 2, 3, 130, 137, 138, 143])
def test_exit_codes_are_passed_on_and_saved_runs_queued_again(cluster, script, task, job, code):
    done = cluster.run(script, task=task, SYMLAB_CODE=str(code))
    assert (done.returncode, done.stderr) == (code, "")
    assert cluster.arguments("scontrol") == ([("requeue", job)] if code in (138, 143) else [])


@pytest.mark.parametrize("code", [0, 138, 143])
def test_a_job_that_slurm_ends_is_not_queued_again(cluster, code):
    """scancel and the time limit send TERM to the shell as well, which waits for Python to save."""
    done = cluster.run("train.sbatch", SYMLAB_CODE=str(code), SIGNAL_SHELL="TERM")
    assert (done.returncode, cluster.calls("scontrol")) == (code, [])


def test_usr1_to_the_shell_as_well_does_no_harm(cluster):
    done = cluster.run("train.sbatch", SYMLAB_CODE="138", SIGNAL_SHELL="USR1")
    assert (done.returncode, cluster.arguments("scontrol")) == (138, [("requeue", "7")])


def test_a_job_is_not_queued_again_for_ever(cluster):
    done = cluster.run("train.sbatch", SYMLAB_CODE="138", SLURM_RESTART_COUNT="99")
    assert (done.returncode, len(cluster.calls("scontrol"))) == (138, 1)
    done = cluster.run("train.sbatch", SYMLAB_CODE="138", SLURM_RESTART_COUNT="100")
    assert (done.returncode, len(cluster.calls("scontrol"))) == (138, 1)
    assert "not queued again after 100 restarts (SYMLAB_MAX_REQUEUES)" in done.stderr
    done = cluster.run("train.sbatch", SYMLAB_CODE="138", SLURM_RESTART_COUNT="100", SYMLAB_MAX_REQUEUES="101")
    assert (done.returncode, len(cluster.calls("scontrol"))) == (138, 2)


def test_a_refused_requeue_keeps_the_code_and_says_how_to_continue(cluster):
    done = cluster.run("train.sbatch", SYMLAB_CODE="143", SCONTROL_CODE="1")
    assert done.returncode == 143
    assert "could not be queued again; to continue: symlab train resume=runs/train/slurm-7" in done.stderr


# ---- the real symlab

STOPPING_LOSS = '''
import os, pathlib, signal
import torch
from symlab.training.losses import half_mean_squared_error

CALLS = []
MARK = pathlib.Path(__file__).with_suffix(".mark")

def stopping(outputs, targets):
    """Half the mean squared error; in the sixth call of the first process the signal comes."""
    if torch.is_grad_enabled():
        CALLS.append(1)
        if len(CALLS) == 6 and not MARK.exists():
            MARK.touch()
            os.kill(os.getpid(), signal.SIGUSR1)
    return half_mean_squared_error(outputs, targets)
'''


@pytest.mark.slow  # a real SLURM on this machine
def test_a_preempted_run_is_queued_again_and_ends_as_if_nothing_had_happened(cluster):
    plugin = cluster.folder / "a plugin"
    plugin.mkdir()
    (plugin / "stopping_loss.py").write_text(STOPPING_LOSS)
    python = {"SYMLAB_PYTHON": sys.executable, "SYMLAB_PLUGINS": "stopping_loss", "SLURM_CPUS_PER_TASK": "1"}
    python["PYTHONPATH"] = f"{plugin}:{SCRIPTS.parent}"
    words = (*TOY, "loss._target_=stopping_loss.stopping")

    first = cluster.run("train.sbatch", *words, **python)
    assert first.returncode == 138, first.stderr
    assert cluster.arguments("scontrol") == [("requeue", "7")]
    run = RunDir.open(cluster.submit_dir / "runs" / "train" / "slurm-7")
    assert run.status == "interrupted"
    assert 0 < run.read_rows()[-1]["step"] < 12

    second = cluster.run("train.sbatch", *words, SLURM_RESTART_COUNT="1", **python)
    assert second.returncode == 0, second.stderr
    straight = cluster.run("train.sbatch", *words, SLURM_JOB_ID="8", **python)
    assert straight.returncode == 0, straight.stderr
    assert (run.status, len(run.read_rows()), len(run.read_environment())) == ("completed", 13, 2)
    assert_same_runs(run.path, run.path.with_name("slurm-8"))
    assert len(cluster.calls("scontrol")) == 1


@every
def test_the_commands_in_the_head_are_commands(path, tmp_path, monkeypatch, capsys):
    """Each line `sbatch ... scripts/NAME ARGUMENTS` in the head holds arguments that symlab takes."""
    from symlab.cli import main

    monkeypatch.chdir(tmp_path)
    lines = [line for line in path.read_text().splitlines() if line.startswith("#   sbatch ")]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line.removeprefix("#"), comments=True)
        arguments = [word for word in words[words.index(f"scripts/{path.name}") + 1 :] if word != "--"]
        sweep = ["-m"] if path.name == "grid.sbatch" and "-m" not in arguments else []
        assert main(["train", *sweep, *arguments, "--help"]) == 0  # checks them first
        assert "optimizer" in capsys.readouterr().out
