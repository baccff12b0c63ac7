"""Runs in worker processes, the record of them, and picking up where a comparison stopped."""

import os
import signal

import pytest
import torch

from symlab.comparison.ledger import CURVES, RESULTS, TRIALS, Ledger
from symlab.comparison.run_trial import TrialResult, TrialRunner
from symlab.comparison.session import Session
from symlab.comparison.tuning import Family, Search, Tuner, round_counts
from symlab.comparison.workers import devices_of_workers, run_trials
from symlab.rundir import RunDir
from symlab.search.quasi_random import quasi_random
from symlab.training.evaluate import never
from tests.comparison.toy import task, trial

CPU = torch.device("cpu")


def session(path, stop=never, workers=0, **changes):
    ticks = []

    def tick(runs, *, fresh):
        ticks.append(runs)

    made = Session(task(**changes), Ledger(RunDir(path)), CPU, ["cpu"] * workers, 1, stop, tick)
    return made, ticks


def tuner(trials=3):
    counts = round_counts(trials, 1, 2)[0]
    return Tuner("descent", [Family(trial(), Search(quasi_random, counts, 5), (7,), "validation_loss")])


def test_parallel_runs_equal_runs_in_this_process(tmp_path):
    trials = [trial(label=label, seed=seed, lr=lr) for seed in (0, 1) for label, lr in (("a", 0.1), ("b", 0.3))]
    made, ticks = session(tmp_path, workers=2)
    made.report(trials)
    assert (sum(ticks), made.done) == (4, 4)
    curves = RunDir(tmp_path).read_rows(CURVES)
    for tried in trials:
        expected = TrialRunner(task(), CPU, 1).run(tried, lambda row: True)
        found = [row for row in curves if (row["optimizer"], row["seed"]) == (tried.label, tried.seed)]
        assert [row["test_loss"] for row in found] == [row["test_loss"] for row in expected.rows]
    assert {row["status"] for row in RunDir(tmp_path).read_rows(RESULTS)} == {"completed"}


def test_what_is_on_record_is_not_done_again(tmp_path):
    trials = [trial(seed=seed) for seed in range(3)]
    first, _ = session(tmp_path)
    first.report(trials[:2])
    before = RunDir(tmp_path).read_rows(RESULTS)
    second, ticks = session(tmp_path)
    second.report(trials)
    assert (second.done, sum(ticks)) == (1, 3)
    assert RunDir(tmp_path).read_rows(RESULTS)[:2] == before
    third, _ = session(tmp_path, steps=5)  # other runs
    third.report(trials[:1])
    assert third.done == 1
    third.ledger.settle((RESULTS, CURVES), third.used)
    assert [row["step"] for row in RunDir(tmp_path).read_rows(RESULTS)] == [5]
    assert {row["step"] for row in RunDir(tmp_path).read_rows("former_results")} == {10}
    back, _ = session(tmp_path)  # the former ones are found again
    back.report(trials)
    assert back.done == 0
    back.ledger.settle((RESULTS, CURVES), back.used)
    assert len(RunDir(tmp_path).read_rows(RESULTS)) == 3
    assert len(RunDir(tmp_path).read_rows(CURVES)) == 9


def test_interrupted_tuning_ends_as_if_nothing_had_happened(tmp_path):
    stops = iter([False] * 6)
    stopped, _ = session(tmp_path / "a", stop=lambda: next(stops, True))
    cut = tuner()
    (tmp_path / "a").mkdir()
    stopped.tune([cut])
    assert not cut.finished
    assert stopped.done > 0
    continued, ticks = session(tmp_path / "a")
    resumed = tuner()
    continued.tune([resumed])
    assert sum(ticks) == 3
    (tmp_path / "b").mkdir()
    straight, whole = session(tmp_path / "b")[0], tuner()
    straight.tune([whole])
    assert continued.done == 3 - stopped.done
    assert resumed.summary() == whole.summary()
    assert resumed.best()[1].point == whole.best()[1].point


def test_failed_runs_are_named_and_tried_again(tmp_path):
    made, _ = session(tmp_path, workers=1)
    bad = [trial(label="bad", seed=seed, lr=0.5, fail_above=0.2) for seed in (0, 1)]
    made.report([*bad, trial()])
    rows = {(row["optimizer"], row["seed"]): row for row in RunDir(tmp_path).read_rows(RESULTS)}
    assert rows["bad", 0]["message"] == "RuntimeError: no such rate: 0.5"
    assert [rows[key]["status"] for key in (("bad", 0), ("bad", 1), ("descent", 0))] == [
        "failed",
        "failed",
        "completed",
    ]
    again, _ = session(tmp_path)
    again.report([*bad, trial()])
    assert again.done == 2
    again.ledger.settle((RESULTS,), again.used)
    assert len(RunDir(tmp_path).read_rows(RESULTS)) == 3  # of two attempts the later one


def die(model, inputs, *, lr=0.1):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_one_failed_run(tmp_path):
    from dataclasses import replace

    trials = [replace(trial(label="dead"), optimizer=die), trial(seed=1)]
    results = {
        tried.label: result
        for tried, result in run_trials(
            task(), ["cpu"], 1, iter([*trials, None, None]).__next__, lambda t, r: True, never
        )
    }
    assert results["dead"].status == "failed"
    assert "signal 9" in results["dead"].message
    assert results["descent"].status == "completed"


def test_curve_of_a_run_that_was_cut_off_is_dropped(tmp_path):
    """Killed between the rows of the curve and the row of the result: the run is done again, its curve stands once."""
    made, _ = session(tmp_path)
    made.report([trial()])
    run = RunDir(tmp_path)
    curve = run.read_rows(CURVES)
    run.append_rows([row | {"key": "0123456789abcdef", "seed": 9} for row in curve], CURVES)
    Ledger(run)
    assert run.read_rows(CURVES) == curve


def test_ledger_of_tuning_runs(tmp_path):
    ledger = Ledger(RunDir(tmp_path))
    row = {"step": 10, "test_loss": 0.5, "train_loss": None}
    ledger.add_trial(
        "k1", {"round": 1, "trial": 0, "value": 0.5}, trial(), TrialResult("completed", rows=[row], step=10)
    )
    ledger.add_trial(
        "k2", {"round": 1, "trial": 1, "value": 0.5}, trial(), TrialResult("diverged", "step 3: nan\nmore")
    )
    ledger.add_trial("k3", {"round": 1, "trial": 2, "value": 0.5}, trial(), TrialResult("failed", "killed"))
    again = Ledger(RunDir(tmp_path))
    assert again.trial("k1").rows == [
        {"step": 10, "train_loss": None, "test_loss": 0.5, "train_accuracy": None, "test_accuracy": None}
    ]
    assert again.trial("k2").status == "diverged"
    assert again.trial("k3") is None  # a failure is no result
    assert again.trial("k4") is None
    assert RunDir(tmp_path).read_rows(TRIALS)[1]["message"] == "step 3: nan more"


def test_devices():
    assert devices_of_workers("cpu", CPU, 3, 1) == ["cpu"] * 3
    available = len(os.sched_getaffinity(0))
    assert len(devices_of_workers("auto", CPU, None, 1)) == available
    assert len(devices_of_workers("auto", CPU, None, 10_000)) == 1


def test_several_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    first, third = torch.device("cuda:0"), torch.device("cuda:2")
    assert devices_of_workers("auto", first, None, 1) == ["cuda:0", "cuda:1", "cuda:2"]
    assert devices_of_workers("cuda", first, 4, 1) == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert devices_of_workers("cuda:2", third, 2, 1) == ["cuda:2", "cuda:2"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_workers_share_the_gpus():
    count = torch.cuda.device_count()
    assert devices_of_workers("cuda", torch.device("cuda:0"), 2 * count, 1) == [f"cuda:{i}" for i in range(count)] * 2
