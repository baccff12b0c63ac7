"""The array over a grid: which combination a task runs, what it refuses, and one run in several processes."""

import itertools
from pathlib import Path

import pytest

from tests.scripts.stand_ins import Cluster, make_cluster

AXES = ("model.shortcut=conv,avgpool_conv", "optimizer.lr=0.2,0.1,5e-2", "seed=0,1")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return make_cluster(tmp_path)


def test_the_tasks_of_an_array_are_the_product_of_the_values(cluster):
    lists = [[f"{axis.partition('=')[0]}={value}" for value in axis.partition("=")[2].split(",")] for axis in AXES]
    expected = list(itertools.product(*lists))
    for task in range(12):
        done = cluster.run("grid.sbatch", "experiment=x", "a='1,2'", "--", *AXES, task=task)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"combination {task} of 0-11: {' '.join(expected[task])}\n"
    for task, (call, words) in enumerate(zip(cluster.arguments(), expected, strict=True)):
        run = f"runs/train/slurm-40_{task}"
        ending = (f"hydra.run.dir={run}", f"hydra.sweep.dir={run}")
        assert call == ("train", "threads=3", "experiment=x", "a='1,2'", *words, *ending)
    assert len(set(expected)) == 12


def test_a_task_past_the_last_combination_is_refused(cluster):
    done = cluster.run("grid.sbatch", "--", *AXES, task=12)
    assert (done.returncode, cluster.calls("srun")) == (2, [])
    assert "task 12: there are 12 combinations; submit with --array=0-11" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no keys to combine behind --"),
        (["a=1,2"], "no keys to combine behind --"),
        (["a=1", "--"], "no keys to combine behind --"),
        (["--", "a"], "a: behind -- stands KEY=VALUE"),
        (["--", "a=1,,2"], "a=1,,2: behind --"),
        (["--", "a=1,2,"], "a=1,2,: behind --"),
        (["--", "b=1,2", "a=[1,2],[3]"], "a=[1,2],[3]: behind --"),
        (["--", "a='x,y'"], "a='x,y': behind --"),
        (["--", "seed=range(10)"], "seed=range(10): behind --"),
    ],
)
def test_what_is_no_grid_is_refused(cluster, words, message):
    done = cluster.run("grid.sbatch", *words, task=0)
    assert (done.returncode, cluster.calls("srun")) == (2, [])
    assert message in done.stderr


def test_outside_an_array_the_usage_is_shown(cluster):
    done = cluster.run("grid.sbatch", "--", *AXES)
    assert (done.returncode, cluster.calls("srun")) == (2, [])
    assert "mkdir -p runs/slurm && sbatch --array=" in done.stderr


def test_a_requeued_task_continues_and_another_grid_with_its_id_is_refused(cluster):
    assert cluster.run("grid.sbatch", "--", *AXES, task=4, SYMLAB_CODE="138").returncode == 138
    assert cluster.arguments("scontrol") == [("requeue", "40_4")]
    assert cluster.run("grid.sbatch", "--", *AXES, task=4).returncode == 0
    assert cluster.arguments()[1] == ("train", "resume=runs/train/slurm-40_4")
    done = cluster.run("grid.sbatch", "--", *AXES[::-1], task=4)
    assert done.returncode == 2
    assert "belongs to another job with this id" in done.stderr
    assert "its arguments were: model.shortcut=conv optimizer.lr=5e-2 seed=0" in done.stderr


def test_a_task_may_be_a_sweep(cluster):
    """Few long tasks in place of many short ones."""
    done = cluster.run("grid.sbatch", "-m", "optimizer.lr=0.2,0.1", "--", "seed=5,6", task=1)
    assert done.returncode == 0
    assert cluster.arguments()[0][:5] == ("train", "threads=3", "-m", "optimizer.lr=0.2,0.1", "seed=6")


@pytest.mark.parametrize(("script", "task"), [("distributed.sbatch", None), ("grid.sbatch", 0), ("train.sbatch", None)])
def test_srun_starts_every_process_of_the_job(cluster, script, task):
    words = ("--", "seed=0,1") if script == "grid.sbatch" else ()
    assert cluster.run(script, *words, task=task, SLURM_NTASKS="16").returncode == 0
    (srun,) = cluster.calls("srun")
    assert srun.arguments[:2] == ("--ntasks=16", "--cpus-per-task=3")
    assert {"--kill-on-bad-exit=0", "--wait=300"} <= set(srun.arguments)  # all may save before SLURM kills the others


def test_a_distributed_run_is_not_an_array(cluster):
    done = cluster.run("distributed.sbatch", task=0)
    assert (done.returncode, cluster.calls("srun")) == (2, [])
    assert "use scripts/grid.sbatch" in done.stderr
