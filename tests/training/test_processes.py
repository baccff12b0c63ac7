"""Two processes on the CPU: the run of one process to rounding, written once, stopped together."""

import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from symlab.optim.kfac import kfac
from symlab.rundir import BadInput, RunDir
from symlab.rundir.processes import Meeting, Place, find_place, first_host, port_of
from symlab.training import processes as processes_module
from symlab.training.build import check_observer, synchronise
from symlab.training.execution import Execution
from symlab.training.processes import Processes, _claim_device, _failed_before
from tests.training.problems import assert_same_state, regression, rows_without_time, run_job, small_net
from tests.training.several_runs import settings

ROOT = Path(__file__).parents[2]
EXACT = ["full", "batches", "symo", "pieces", "clipped", "classes", "shifted"]  # without batch norm and dropout


def start(folder, names, rank, port, world=2):
    environment = os.environ | {
        **{"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
    }
    command = [sys.executable, "-W", "error", "-m", "tests.training.several_runs", str(folder), *names]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def together(folder, *names, world=2, within=120):
    """Exit codes and outputs of `world` processes that run these settings."""
    port = free_port()
    processes = [start(folder, names, rank, port, world) for rank in range(world)]
    deadline = time.monotonic() + within
    try:
        outputs = [process.communicate(timeout=max(1, deadline - time.monotonic()))[0] for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        pytest.fail(f"still running after {within} s: {names}")
    return [process.returncode for process in processes], outputs


def alone(folder, name):
    run = RunDir(folder / f"{name}-alone")
    run.path.mkdir()
    return run_job(run, threads=1, **settings(name)), run


def assert_close(one, other, path=""):
    """Equal but for the rounding of float64 sums in another order (SymO takes roots of small eigenvalues)."""
    if isinstance(one, torch.Tensor) and one.is_floating_point():
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7, msg=lambda message: f"{path}: {message}")
    elif isinstance(one, dict):
        for key in one:
            assert_close(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_close(left, right, f"{path}/{index}")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-7), path
    else:
        assert_same_state(one, other, path)


def states(folder, name, world=2):
    return [torch.load(folder / f"{name}-{rank}.pt") for rank in range(world)]


def test_two_processes_make_the_run_of_one(tmp_path):
    """Unequal shares, short batches, pieces, clipping, averages: rows, weights and statistics to rounding; both ranks
    bit for bit alike; evaluations count every row once; one process writes; then a signal to one of them stops both."""
    codes, outputs = together(tmp_path, *EXACT, "stopped")
    assert codes == [143, 143], outputs
    for name in EXACT:
        run = RunDir(tmp_path / name)
        _, single = alone(tmp_path, name)
        assert_close(rows_without_time(run), rows_without_time(single), name)
        for part in ("model", "optimizer"):
            assert_close(run.load_checkpoint("last")[part], single.load_checkpoint("last")[part], f"{name}/{part}")
        assert_same_state(*states(tmp_path, name), name)
        assert run.read_environment()[0]["processes"] == run.read_summary()["processes"] == 2
        assert len(run.read_environment()) == 1
    assert not list(tmp_path.glob("rank-*/checkpoints"))
    first, second = states(tmp_path, "stopped")
    assert RunDir(tmp_path / "stopped").read_summary()["step"] == 3
    assert_same_state(first["optimizer"], second["optimizer"])


@pytest.mark.slow
def test_a_stopped_run_of_two_processes_resumes_exactly(tmp_path):
    """With dropout and batch norm, whose masks and statistics differ between the processes."""
    assert together(tmp_path, "dropout")[0] == [0, 0]
    assert together(tmp_path, "stopped")[0] == [143, 143]
    assert together(tmp_path, "stopped+again")[0] == [0, 0]
    straight, stopped = RunDir(tmp_path / "dropout"), RunDir(tmp_path / "stopped")
    assert rows_without_time(straight) == rows_without_time(stopped)
    for name in ("last", "best"):
        one, other = straight.load_checkpoint(name), stopped.load_checkpoint(name)
        assert_same_state(
            {k: v for k, v in one.items() if k != "seconds"}, {k: other[k] for k in one if k != "seconds"}
        )
    _, single = alone(tmp_path, "dropout")
    assert single.read_rows()[-1]["test_loss"] != straight.read_rows()[-1]["test_loss"]


@pytest.mark.slow
def test_batch_norm_normalises_each_share_by_its_own_rows(tmp_path):
    """The running statistics are those of rank 0's rows: the mean over its first share moves them first."""
    assert together(tmp_path, "batch_norm")[0] == [0, 0]
    _, single = alone(tmp_path, "batch_norm")
    found = RunDir(tmp_path / "batch_norm").load_checkpoint("last")["model"]
    assert int(found["1.num_batches_tracked"]) == int(single.load_checkpoint("last")["model"]["1.num_batches_tracked"])
    assert RunDir(tmp_path / "batch_norm").read_rows()[-1]["test_loss"] != single.read_rows()[-1]["test_loss"]


@pytest.mark.slow
def test_a_number_that_is_not_finite_in_one_process_ends_all_of_them_at_the_same_step(tmp_path):
    codes, outputs = together(tmp_path, "nan")
    assert codes == [3, 3], outputs
    summary = RunDir(tmp_path / "nan").read_summary()
    assert (summary["status"], summary["step"]) == ("diverged", 2)
    assert summary["message"].startswith("step 2: the loss of the batch is nan")
    first, second = states(tmp_path, "nan")
    assert_same_state(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["error", "killed"])
def test_when_one_process_dies_the_others_end(tmp_path, name):
    codes, outputs = together(tmp_path, name, within=60)
    assert all(code != 0 for code in codes)
    assert (tmp_path / name / "metrics.csv").exists()
    if name == "error":  # the first says what happened to the second, not only that its connection was closed
        assert "RuntimeError: process 1 of 2: this process fails" in outputs[0]
        assert "process 0 of 2" not in outputs[1]
    else:
        assert "RuntimeError: process 0 of 2: another process has gone without a word" in outputs[0]


@pytest.mark.slow
def test_three_processes_of_which_one_may_have_no_row_to_evaluate(tmp_path):
    assert together(tmp_path, "classes", "full", world=3)[0] == [0, 0, 0]
    for name in ("classes", "full"):
        _, single = alone(tmp_path, name)
        assert_close(rows_without_time(RunDir(tmp_path / name)), rows_without_time(single), name)


@pytest.mark.slow
def test_images_in_bfloat16_and_channels_last(tmp_path):
    """Also no warning of torch's about memory layouts: warnings are errors in these processes."""
    codes, outputs = together(tmp_path, "images")
    assert codes == [0, 0], outputs
    _, single = alone(tmp_path, "images")
    for one, other in zip(RunDir(tmp_path / "images").read_rows(), single.read_rows(), strict=True):
        assert one["test_loss"] == pytest.approx(other["test_loss"], rel=0.02)


@pytest.mark.slow
def test_batches_with_fewer_rows_than_processes_are_refused_by_all(tmp_path):
    codes, outputs = together(tmp_path, "too_small")
    assert codes == [2, 2]
    assert all("too few for 2 processes" in output for output in outputs)


def test_an_optimizer_that_evaluates_the_batch_is_refused():
    model, data = small_net((4,), 3, torch.Generator().manual_seed(0)).double(), regression()
    optimizer = kfac(model, data.train_inputs, lr=0.1)
    how = Execution(processes=Processes(Place(1, 3)))
    with pytest.raises(BadInput, match="KFAC needs the whole batch in one process, and this run was started as 3"):
        check_observer(optimizer, how)
    with pytest.raises(BadInput, match="accumulate must be 1, got 2"):
        check_observer(optimizer, Execution(accumulate=2))
    with pytest.raises(BadInput, match=r"clip_norm=0\.5 cannot reach"):
        check_observer(optimizer, Execution(clip_norm=0.5))
    check_observer(optimizer, Execution(torch.bfloat16))
    check_observer(torch.optim.SGD(model.parameters(), lr=0.1), how)


def test_batch_norms_of_several_processes_are_put_in_place_of_those_of_one():
    """The optimizer's parameters and the names in checkpoints stay; only CUDA devices compute it."""
    several, cuda = Processes(Place(1, 2)), torch.device("cuda:0")
    model = small_net((4,), 3, torch.Generator().manual_seed(0), batch_norm=True)
    parameters, state = list(model.parameters()), {name: value.clone() for name, value in model.state_dict().items()}
    for wanted, processes in ((False, several), (True, Processes(Place()))):
        synchronise(model, wanted, processes, cuda)
        assert type(model[1]) is torch.nn.BatchNorm1d
    synchronise(model, True, several, cuda)
    assert type(model[1]) is torch.nn.SyncBatchNorm
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert_same_state(dict(model.state_dict()), state)
    with pytest.raises(BadInput, match="sync_batch_norm=true needs CUDA devices"):
        synchronise(model, True, several, torch.device("cpu"))
    with pytest.raises(BadInput, match="the model has no batch norm: use false"):
        synchronise(small_net((4,), 3, torch.Generator()), True, several, cuda)


# ---- what one process tells the others


@pytest.fixture
def one_meeting(monkeypatch):
    meeting = Meeting(Place(0, 2, 0, "127.0.0.1", free_port()))
    monkeypatch.setattr(processes_module, "meeting", lambda: meeting)


@pytest.mark.usefixtures("one_meeting")
def test_two_processes_on_one_device_are_refused():
    for _ in range(2):  # also by a second run in the same processes
        _claim_device(Place(0, 3), "first")
        _claim_device(Place(1, 3), "second")
        with pytest.raises(BadInput, match="processes 1 and 2 of 3 have the same CUDA device: start one process per"):
            _claim_device(Place(2, 3), "second")


@pytest.mark.usefixtures("one_meeting")
def test_the_first_failure_is_the_one_that_counts():
    assert _failed_before(Place(1, 3), KeyboardInterrupt()) is None
    assert _failed_before(Place(1, 3), ValueError("no such image")) is None
    for rank in (0, 2, 1):
        found = _failed_before(Place(rank, 3), RuntimeError("connection closed"))
        assert found == "process 1 of 3: no such image"


# ---- where a process finds itself


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29400"}
SRUN = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}
SRUN |= {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_NODELIST": "gpu[05-08]"}


def test_the_variables_of_torchrun_and_srun():
    assert find_place({}) == Place(0, 1)
    assert find_place(TORCHRUN) == Place(3, 4, 1, "n1", 29400)
    elastic = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert find_place(elastic) == Place(3, 4, 1, "n1", 29400, hosted=True, attempt="2")
    assert find_place(SRUN) == Place(2, 4, 0, "gpu07", port_of(77, 0))
    assert find_place(SRUN | {"MASTER_ADDR": "other", "MASTER_PORT": "5000"}) == Place(2, 4, 0, "other", 5000)
    assert find_place(SRUN | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) == Place()
    in_a_batch_script = {key: value for key, value in SRUN.items() if not key.startswith("SLURM_STEP")}
    assert find_place(in_a_batch_script | {"SLURM_PROCID": "0"}) == Place()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "4"}, "process number 4 of 4 cannot be"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number, got 'two'"),
        ({"MASTER_ADDR": ""}, "set MASTER_ADDR"),
    ],
)
def test_variables_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(BadInput, match=message):
        find_place(TORCHRUN | changes)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("gpu[007-012,3]", "gpu007"),
        ("gpu[5,7]", "gpu5"),
        ("rack[1-2]n[3-4],x", "rack1n3"),
        ("a-b.domain", "a-b.domain"),
    ],
)
def test_the_first_of_a_list_of_nodes(nodes, host):
    assert first_host(nodes) == host


def test_neighbouring_jobs_get_different_ports():
    ports = {port_of(job, step) for job in range(1000, 1400) for step in range(8)}
    assert len(ports) == 400 * 8
    assert all(20000 <= port < 32000 for port in ports)


def test_one_process_asks_nobody():
    processes = Processes(Place())
    assert processes.sum([1.5, 2.0]) == [1.5, 2.0]
    assert processes.first("x") == "x"
    assert processes.network(None) is None
    with processes.first_goes_first(), processes.own_part(last=False):
        pass
    assert partial(processes.share.count, 5)() == 5
