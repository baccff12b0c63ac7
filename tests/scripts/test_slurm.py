"""The sbatch scripts on a real SLURM of one node, which this file starts and stops: preempted, requeued, same result.

cred_expire=10 in its configuration lets a requeued job start after 11 s; by default it is two minutes.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from symlab.cli import main
from symlab.rundir import RunDir
from tests.cli_lab import close_handlers
from tests.scripts.one_node_slurm import OneNodeSlurm, missing, one_node_slurm, wait_until
from tests.scripts.runs import assert_same_runs
from tests.scripts.stand_ins import SCRIPTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=f"needs SLURM: {missing()}"),
]

TRAIN, SEEDS, GRID, DISTRIBUTED = (
    str(SCRIPTS / f"{name}.sbatch") for name in ("train", "seeds", "grid", "distributed")
)
RUN = (
    "epochs=300",
    "batch_size=1250",
    "eval_every=7",
    "threads=1",
    "device=cpu",
)  # 1200 updates of the default problem
SEED = 1


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNodeSlurm]:
    environment = {**os.environ, "SYMLAB_PYTHON": sys.executable}
    with one_node_slurm(tmp_path_factory.mktemp("slurm"), environment) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where sbatch is called."""
    path = tmp_path_factory.mktemp("here") / "a folder, of runs"
    (path / "runs" / "slurm").mkdir(parents=True)
    return path


@pytest.fixture(scope="module")
def straight(slurm: OneNodeSlurm, folder: Path) -> Path:
    """The run of SEED that nobody disturbs."""
    job = slurm.submit(folder, TRAIN, *RUN, f"seed={SEED}")
    assert slurm.wait_for_state(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", log(folder, f"train_{job}")
    return run_path(folder, job)


def run_path(folder: Path, job: str) -> Path:
    return folder / "runs" / "train" / f"slurm-{job}"


def log(folder: Path, name: str) -> str:
    return (folder / "runs" / "slurm" / f"{name}.log").read_text()


def wait_for_rows(path: Path, number: int = 10) -> None:
    wait_until(lambda: len(RunDir(path).read_rows()) >= number, f"{number} rows in {path}", 60)


def assert_came_back(slurm: OneNodeSlurm, folder: Path, job: str, text: str, straight: Path) -> None:
    """The job was queued again once, continued where it had saved, and ended like the run that nobody disturbed."""
    state = slurm.wait_for_state(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), text
    path = run_path(folder, job)
    assert "interrupted at step" in text
    assert f"continuing {path} at step" in text
    run = RunDir.open(path)
    assert (run.status, len(run.read_environment())) == ("completed", 2)
    assert_same_runs(path, straight)


def test_a_job_preempted_with_usr1_ends_as_if_nothing_had_happened(slurm, folder, straight):
    job = slurm.submit(folder, TRAIN, *RUN, f"seed={SEED}")
    wait_for_rows(run_path(folder, job))
    slurm.command("scancel", "--signal=USR1", job)
    wait_until(lambda: slurm.job(job)["JobState"] == "PENDING", "the job in the queue again", 30)
    assert RunDir.open(run_path(folder, job)).status == "interrupted"
    slurm.wait_for_state(job, "COMPLETED", "FAILED")
    assert_came_back(slurm, folder, job, log(folder, f"train_{job}"), straight)


def test_a_job_requeued_by_slurm_ends_as_if_nothing_had_happened(slurm, folder, straight):
    job = slurm.submit(folder, TRAIN, *RUN, f"seed={SEED}")
    wait_for_rows(run_path(folder, job))
    slurm.command("scontrol", "requeue", job)
    slurm.wait_for_state(job, "COMPLETED", "FAILED")
    assert_came_back(slurm, folder, job, log(folder, f"train_{job}"), straight)


def test_a_job_that_makes_room_for_another_ends_as_if_nothing_had_happened(slurm, folder, straight):
    """Preemption with a grace time: TERM to the step, and the node is free as soon as Python has saved."""
    job = slurm.submit(folder, "--cpus-per-task=8", TRAIN, *RUN, f"seed={SEED}")
    wait_for_rows(run_path(folder, job))
    urgent = slurm.submit(folder, "--partition=urgent", "--cpus-per-task=8", "--output=urgent.log", "--wrap=true")
    slurm.wait_for_state(urgent, "COMPLETED")
    slurm.wait_for_state(job, "COMPLETED", "FAILED")
    assert_came_back(slurm, folder, job, log(folder, f"train_{job}"), straight)


def test_an_array_over_seeds_of_which_one_task_is_preempted(slurm, folder, straight):
    """The last task: its job id is the array's own."""
    array = slurm.submit(folder, f"--array=0-{SEED}", SEEDS, *RUN)
    jobs = [f"{array}_{seed}" for seed in range(SEED + 1)]
    wait_for_rows(run_path(folder, jobs[SEED]))
    assert slurm.job(jobs[SEED])["JobId"] == array
    slurm.command("scancel", "--signal=USR1", jobs[SEED])
    for job in jobs:
        slurm.wait_for_state(job, "COMPLETED", "FAILED")
    assert_came_back(slurm, folder, jobs[SEED], log(folder, f"seeds_{jobs[SEED]}"), straight)
    assert slurm.job(jobs[0])["Restarts"] == "0"
    first, last = (RunDir.open(run_path(folder, job)).read_rows()[-1] for job in jobs)
    assert first["step"] == last["step"]
    assert first["test_loss"] != last["test_loss"]


def test_a_preempted_run_in_two_processes_ends_as_if_nothing_had_happened(slurm, folder):
    """Both get the signal, stop after the same update, and rank 0 saves; each has its share of every batch."""
    options = ("--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=1")
    undisturbed = slurm.submit(folder, *options, DISTRIBUTED, *RUN)
    assert slurm.wait_for_state(undisturbed, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", log(
        folder, f"distributed_{undisturbed}"
    )
    assert "2 processes" in log(folder, f"distributed_{undisturbed}")
    job = slurm.submit(folder, *options, DISTRIBUTED, *RUN)
    wait_for_rows(run_path(folder, job))
    slurm.command("scancel", "--signal=USR1", job)
    slurm.wait_for_state(job, "COMPLETED", "FAILED")
    assert_came_back(slurm, folder, job, log(folder, f"distributed_{job}"), run_path(folder, undisturbed))


def test_an_array_over_a_grid_becomes_tables_of_variants(slurm, folder, monkeypatch, capsys):
    """Two shortcuts, two seeds: each task is its own combination, and `symlab variants` pairs them by seed."""
    pytest.importorskip("sklearn")
    words = ("model=preact_resnet18", "model.width=4", "data=digits", "data.num_train=60", "data.num_test=20")
    words += ("optimizer=sgd", "schedule=constant", "batch_size=20", "epochs=2", "threads=1", "device=cpu")
    axes = ("model.shortcut=conv,avgpool_conv", "seed=0,1")
    array = slurm.submit(folder, "--array=0-3", "--gpus=1", GRID, *words, "--", *axes)
    for task in range(4):
        state = slurm.wait_for_state(f"{array}_{task}", "COMPLETED", "FAILED")
        assert state["JobState"] == "COMPLETED", log(folder, f"grid_{array}_{task}")
    assert "combination 2 of 0-3: model.shortcut=avgpool_conv seed=0" in log(folder, f"grid_{array}_2")
    monkeypatch.chdir(folder)
    try:
        assert main(["variants", f"runs='runs/train/slurm-{array}_*'"]) == 0, capsys.readouterr().err
    finally:
        close_handlers()
    (found,) = (folder / "runs" / "variants").iterdir()
    summary = RunDir.open(found).read_summary()
    assert (summary["trials"], summary["missing"], summary["paired_seeds"]) == (4, 0, 2)
    assert [row["variant"] for row in summary["variants"]] == ["conv", "avgpool_conv"]


def test_a_preempted_sweep_repeats_no_run(slurm, folder):
    job = slurm.submit(folder, TRAIN, "-m", "optimizer=gd,adam", *RUN)
    path = run_path(folder, job)
    wait_until(lambda: len(list(path.glob("*/summary.json"))) >= 1, "the end of the first run", 60)
    wait_until(lambda: len(list(path.glob("*/metrics.csv"))) >= 2, "the second run", 60)
    slurm.command("scancel", "--signal=USR1", job)
    state = slurm.wait_for_state(job, "COMPLETED", "FAILED")
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), log(folder, f"train_{job}")
    runs = [RunDir.open(file.parent) for file in path.glob("*/config.yaml")]
    assert [run.status for run in runs] == ["completed"] * 2
    assert sorted(len(run.read_environment()) for run in runs) == [1, 2]


def test_a_cancelled_job_saves_and_does_not_come_back(slurm, folder, straight):
    job = slurm.submit(folder, TRAIN, *RUN, f"seed={SEED}")
    path = run_path(folder, job)
    wait_for_rows(path)
    slurm.command("scancel", job)
    assert slurm.wait_for_state(job, "CANCELLED", "PENDING", "COMPLETED")["JobState"] == "CANCELLED"
    wait_until(lambda: RunDir.open(path).status != "running", "the end of the process", 30)
    assert RunDir.open(path).status == "interrupted"
    assert slurm.job(job)["Restarts"] == "0"


def test_a_run_is_continued_by_hand_in_a_new_job(slurm, folder):
    job = slurm.submit(folder, TRAIN, *RUN, "epochs=2")
    slurm.wait_for_state(job, "COMPLETED", "FAILED")
    again = slurm.submit(folder, TRAIN, f"resume=runs/train/slurm-{job}", "epochs=4")
    slurm.wait_for_state(again, "COMPLETED", "FAILED")
    run = RunDir.open(run_path(folder, job))
    assert (run.status, run.read_rows()[-1]["step"], len(run.read_environment())) == ("completed", 16, 2)
    assert not run_path(folder, again).exists()


@pytest.mark.parametrize(("word", "code"), [("epochs=oops", "2:0"), ("optimizer.lr=100", "3:0")])
def test_bad_input_and_divergence_end_the_job_with_symlab_s_code(slurm, folder, word, code):
    job = slurm.submit(folder, TRAIN, *RUN, "optimizer=gd", word)
    state = slurm.wait_for_state(job, "COMPLETED", "FAILED")
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("FAILED", code, "0")
