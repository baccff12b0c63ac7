"""`symlab compare` as a whole: what it writes, that it is fair, that it continues, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from symlab.cli import main
from symlab.rundir import RunDir
from tests.cli_lab import close_handlers

SMALL = (
    "data.num_train=60",
    "data.num_test=20",
    "steps=6",
    "trials=2",
    "rounds=1",
    "seeds=3",
    "workers=0",
    "timing_repeats=2",
)
FAST = ("optimizers=[gd,adam]",)


def compare(folder, *words, name="run"):
    """Exit code and run of a comparison."""
    try:
        code = main(["compare", *words, f"hydra.run.dir={folder / name}"])
    finally:
        close_handlers()
    return code, RunDir(folder / name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison of three optimizers with everything."""
    folder = tmp_path_factory.mktemp("compare")
    words = ("optimizers=[gd,adam,symo]", "report_steps=[2]", "targets=[1.0]", "vary_data=true")
    code, run = compare(folder, *SMALL, *words, "expected={gd.test_loss.6: [0, 100], symo.test_loss.2: [0, 1e-9]}")
    assert code == 0
    return run


def test_tables(finished):
    results = finished.read_rows("results")
    assert [(row["optimizer"], row["seed"]) for row in results] == [
        (name, seed) for name in ("gd", "adam", "symo") for seed in range(3)
    ]
    assert {row["status"] for row in results} == {"completed"}
    curves = finished.read_rows("curves")
    assert {row["step"] for row in curves} == set(range(7))
    trials = finished.read_rows("trials")
    assert {(row["optimizer"], row["seed"], row["status"]) for row in trials} == {
        (name, 1000, "completed") for name in ("gd", "adam", "symo")
    }
    assert len(trials) == 6
    for name in ("gd", "adam", "symo"):
        own = [row for row in trials if row["optimizer"] == name]
        best = min(own, key=lambda row: row["value"])
        (tuned,) = [row for row in finished.read_rows("tuned") if row["optimizer"] == name]
        assert json.loads(tuned["settings"]) == json.loads(best["settings"])
        assert tuned["value"] == best["value"]
        used = {json.dumps({k: json.loads(row["settings"])[k] for k in json.loads(best["settings"])}, sort_keys=True)
                for row in results if row["optimizer"] == name}  # fmt: skip
        assert used == {json.dumps(json.loads(best["settings"]), sort_keys=True)}
    assert {row["optimizer"] for row in finished.read_rows("coverage")} == {"gd", "adam", "symo"}
    assert [row["optimizer"] for row in finished.read_rows("cost_summary")] == ["gd", "adam", "symo"]
    assert {(row["optimizer"], row["step"]) for row in finished.read_rows("at_steps")} == {
        (name, step) for name in ("gd", "adam", "symo") for step in (2, 6)
    }


def test_same_start_for_all(finished):
    """Before the first update all optimizers have the same losses on the same rows, each seed its own."""
    starts = {}
    for row in finished.read_rows("curves"):
        if row["step"] == 0:
            starts.setdefault(row["seed"], set()).add((row["train_loss"], row["test_loss"]))
    assert [len(values) for values in starts.values()] == [1, 1, 1]
    assert len(set.union(*starts.values())) == 3


def test_summary_statistics(finished):
    """Means and the count of seeds, from the rows."""
    results = finished.read_rows("results")
    for row in finished.read_rows("summary"):
        own = [result[row["metric"]] for result in results if result["optimizer"] == row["optimizer"]]
        assert row["mean"] == pytest.approx(sum(own) / 3)
        assert (row["min"], row["max"], row["runs"]) == (min(own), max(own), 3)
    summary = finished.read_summary()
    assert summary["verdicts"]["gd.test_loss.6"]["verdict"] == "within"
    assert summary["verdicts"]["symo.test_loss.2"]["verdict"] == "outside"
    assert summary["numbers"]["gd.reached.1"] + summary["numbers"]["symo.reached.1"] <= 6


class Images(HTMLParser):
    def __init__(self):
        super().__init__()
        self.sources = []

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.sources.append(dict(attrs)["src"])


def test_reports_and_figures(finished):
    for name in ("steps", "seconds", "tuning", "profile", "cost"):
        for kind in ("png", "pdf"):
            assert (finished.path / "figures" / f"{name}.{kind}").stat().st_size > 1000
    text = (finished.path / "report.md").read_text("utf-8")
    assert "outside" in text
    assert text.index("## In short") < text.index("## Test loss after")
    assert "With 3 seeds that cannot be" in text
    assert "gd" in text
    for link in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (finished.path / link).is_file()
    images = Images()
    images.feed((finished.path / "report.html").read_text("utf-8"))
    assert len(images.sources) == 5
    assert all(source.startswith("data:image/png;base64,") for source in images.sources)


def test_order_of_the_list_changes_nothing(tmp_path):
    code, one = compare(tmp_path, *SMALL, "optimizers=[gd,adam]", name="one")
    assert code == 0
    code, two = compare(tmp_path, *SMALL, "optimizers=[adam,gd]", name="two")
    assert code == 0
    for table, columns in (("results", ("optimizer", "seed", "test_loss")), ("trials", ("optimizer", "value"))):
        rows = [sorted(tuple(row[c] for c in columns) for row in run.read_rows(table)) for run in (one, two)]
        assert rows[0] == rows[1]
    assert [row["optimizer"] for row in two.read_rows("results")][:1] == ["adam"]
    assert two.read_summary()["reference"] == "adam"


def test_more_seeds_and_optimizers_are_added_to_what_is_there(tmp_path):
    _, run = compare(tmp_path, *SMALL, *FAST)
    before = {row["key"]: row for row in run.read_rows("results")}
    try:
        assert main(["compare", f"resume={run.path}", "seeds=4", "workers=0"]) == 0
    finally:
        close_handlers()
    after = {row["key"]: row for row in run.read_rows("results")}
    assert len(after) == 8
    assert all(after[key] == row for key, row in before.items())  # the seconds too: not done again
    assert run.read_summary()["runs_done"] == 2


def test_diverged_runs_are_counted(tmp_path):
    """A rate that destroys the run is a result, not a failure."""
    words = [word for word in SMALL if not word.startswith(("trials", "steps"))]
    rates = ("optimizers.gd.lr=100", "steps=60", "trials=0", "schedules=[constant]", "model.activation=relu")
    code, run = compare(tmp_path, *words, *FAST, *rates)
    assert code == 0
    summary = run.read_summary()
    assert (summary["diverged"], summary["completed"], summary["failed"]) == (3, 3, 0)
    row = next(row for row in summary["summary"] if row["optimizer"] == "gd")
    assert (row["diverged"], row["mean"]) == (3, None)
    assert "3" in (run.path / "report.md").read_text("utf-8")


def test_two_labels_with_the_same_content_are_two_optimizers(tmp_path):
    """A comparison of a thing with itself: equal losses, both on record."""
    words = ("optimizers=[gd,again]", "+optimizer@optimizers.again=gd", "trials=0")
    code, run = compare(tmp_path, *SMALL, *words)
    assert code == 0
    rows = run.read_rows("results")
    assert [(row["optimizer"], row["seed"]) for row in rows] == [(n, s) for n in ("gd", "again") for s in range(3)]
    assert [row["test_loss"] for row in rows[:3]] == [row["test_loss"] for row in rows[3:]]
    assert [row["ratio"] for row in run.read_rows("summary") if row["metric"] == "test_loss"] == [1.0, 1.0]


def test_an_optimizer_that_could_not_be_tuned_is_a_failure(tmp_path, capsys):
    """Every setting diverges: the configured values must not pass for tuned ones."""
    words = ["optimizers.gd._tune_.lr.low=90", "optimizers.gd._tune_.lr.high=100", "model.activation=relu"]
    words += ["schedules=[constant]", "steps=60", "optimizers.gd.lr=95"]
    code, run = compare(tmp_path, *(w for w in SMALL if not w.startswith("steps")), *FAST, *words)
    assert code == 1
    summary = run.read_summary()
    assert summary["status"] == "failed"
    (problem,) = [text for text in summary["problems"] if text.startswith("gd was not tuned")]
    assert "2 diverged" in problem
    assert "not tuned" in (run.path / "report.md").read_text("utf-8")
    assert "not tuned" in capsys.readouterr().err


def test_another_objective_is_another_choice_among_the_same_runs(tmp_path):
    words = [w for w in SMALL if not w.startswith("trials")]
    words += ["trials=6", "eval_train_size=20", "data=digits", "steps=5", "optimizers=[adam]"]
    _, run = compare(tmp_path, *words)
    by_loss = {row["key"]: row for row in run.read_rows("trials")}
    try:
        assert main(["compare", f"resume={run.path}", "objective=validation_accuracy", "workers=0", "rounds=1"]) == 0
    finally:
        close_handlers()
    by_accuracy = run.read_rows("trials")
    assert {row["key"] for row in by_accuracy} == by_loss.keys()
    for row in by_accuracy:
        assert row["value"] == pytest.approx(1 - row["test_accuracy"])
        assert by_loss[row["key"]]["value"] == row["test_loss"]
    (tuned,) = run.read_rows("tuned")
    assert tuned["value"] == min(row["value"] for row in by_accuracy)
    assert tuned["within_10_percent"] == sum(row["value"] <= 1.1 * tuned["value"] for row in by_accuracy)


def test_what_an_earlier_question_left_does_not_stay(tmp_path):
    _, run = compare(tmp_path, *SMALL, *FAST)
    try:
        assert (
            main(["compare", f"resume={run.path}", "optimizers=[gd]", "trials=0", "timing_repeats=0", "workers=0"]) == 0
        )
    finally:
        close_handlers()
    for table in ("tuned", "cost", "cost_summary", "memory", "trials"):
        assert run.read_rows(table) == [], table
    assert {row["optimizer"] for row in run.read_rows("coverage")} == {"gd"}
    assert sorted(path.name for path in (run.path / "figures").glob("*.png")) == [
        "profile.png",
        "seconds.png",
        "steps.png",
    ]


def test_a_result_without_its_curve_is_done_again(tmp_path):
    _, run = compare(tmp_path, *SMALL, *FAST, "trials=0")
    before = run.read_rows("results")
    lines = (run.path / "curves.csv").read_text().splitlines(keepends=True)
    (run.path / "curves.csv").write_text("".join(lines[:-3]))  # the end of the last run's curve is lost
    try:
        assert main(["compare", f"resume={run.path}", "targets=[1.0]", "workers=0"]) == 0
    finally:
        close_handlers()
    assert run.read_summary()["runs_done"] == 1
    after = run.read_rows("results")
    assert [row["test_loss"] for row in after] == [row["test_loss"] for row in before]
    assert len(run.read_rows("curves")) == len(lines) - 1


@pytest.mark.parametrize(("table", "column"), [("results", "key"), ("results", "status"), ("trials", "test_loss")])
def test_a_damaged_table_is_named_and_the_old_outcome_kept(table, column, tmp_path, capsys):
    _, run = compare(tmp_path, *SMALL, *FAST)
    path = run.path / f"{table}.csv"
    path.write_text(path.read_text().replace(column, f"{column}_", 1))
    try:
        assert main(["compare", f"resume={run.path}", "seeds=4", "workers=0"]) == 2
    finally:
        close_handlers()
    assert f"{table}.csv has no column {column}" in capsys.readouterr().err
    assert run.read_summary()["status"] == "completed"


@pytest.mark.parametrize("label", ["nan", "True", "_x"])
def test_labels_that_a_table_would_read_as_something_else(label, tmp_path, capsys):
    code, _ = compare(tmp_path, *SMALL, f"+optimizer@optimizers.{label}=gd")
    assert code == 2
    assert "label" in capsys.readouterr().err


def test_a_plot_that_does_not_fit_costs_no_report(tmp_path):
    code, run = compare(tmp_path, *SMALL, *FAST, "+plot@plots.map=performance_profile", "trials=0")
    assert code == 1
    assert "plots.map" in run.read_summary()["problems"][0]
    assert (run.path / "report.html").is_file()


def test_other_code_is_named(tmp_path, monkeypatch, caplog):
    _, run = compare(tmp_path, *SMALL, *FAST, "trials=0", "seeds=1")
    monkeypatch.setattr("symlab.jobs.compare.made_with", lambda *a: "symlab 9.9, torch 9.9, cpu of elsewhere")
    try:
        assert main(["compare", f"resume={run.path}", "seeds=2", "workers=0"]) == 0
    finally:
        close_handlers()
    made = {row["seed"]: row["made_with"] for row in run.read_rows("results")}
    assert "torch" in made[0]
    assert made[1].startswith("symlab 9.9")
    text = (run.path / "report.md").read_text("utf-8")
    assert "not all made with the same code" in text
    assert text.count("symlab compare") >= 2  # both starts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizers=[gd,adm]"], "adm"),
        (["reference=adm"], "reference=adm"),
        (["seeds=0"], "seeds"),
        (["seeds=[1,1]"], "seeds"),
        (["tuning_seeds=[1]"], "tuning_seeds"),
        (["steps=0"], "steps"),
        (["threads=0"], "threads"),
        (["workers=-1"], "workers"),
        (["batch_size=61"], "batch_size=61"),
        (["batch_size=60"], "48 training rows"),  # what the hold-out leaves
        (["report_steps=[7]"], "report_steps"),
        (["validation_fraction=1.5"], "validation_fraction"),
        (["objective=validation_accuracy"], "validation_accuracy"),
        (["objective=loss"], "objective"),
        (["optimizers.gd.lr=-1"], "optimizers.gd.lr=-1"),
        (["optimizers.gd._tune_.lr.low=20"], "low"),
        (["expected={gd.test_loss.5: [0, 1]}"], "gd.test_loss.5"),
        (["schedule_of={gd: linear}"], "schedule_of.gd=linear"),
        (["device=cuda:9"], "cuda:9"),
        (["trials=-1"], "trials"),
        (["rounds=0"], "rounds"),
        (["validation_fraction=nan"], "validation_fraction"),
        (["targets=[0.5,nan]"], "targets[1]"),
        (["schedules.geometric._tune_.final.low=-3"], "schedules.geometric._tune_"),
    ],
)
def test_bad_input_ends_before_the_first_run(words, message, tmp_path, capsys):
    code, run = compare(tmp_path, *SMALL, *FAST, *words)
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (run.path / "trials.csv").exists()
    assert not (run.path / "results.csv").exists()


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGTERM, id="TERM"), pytest.param(signal.SIGINT, id="INT", marks=pytest.mark.slow)],
)
def test_a_signal_to_the_whole_group_loses_at_most_the_runs_in_flight(number, tmp_path):
    """Stopped in the middle with worker processes, continued: the same tables as a comparison that nobody stopped."""
    words = ["data.num_train=60", "data.num_test=20", "optimizers=[gd,adam]", "steps=200", "trials=6", "seeds=3"]
    words += ["timing_repeats=0", "workers=2", f"hydra.run.dir={tmp_path / 'run'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "symlab", "compare", *words]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, stderr=subprocess.PIPE)
    trials = tmp_path / "run" / "trials.csv"
    deadline = time.monotonic() + 90
    while not (trials.exists() and trials.read_text().count("\n") > 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number, error.decode()
    run = RunDir(tmp_path / "run")
    assert run.recorded_status == "interrupted"
    done = {row["key"]: row for row in run.read_rows("trials")}
    assert 2 <= len(done) < 12
    assert {row["status"] for row in done.values()} <= {"completed", "diverged"}
    assert "resume=" in error.decode()
    try:
        assert main(["compare", f"resume={tmp_path / 'run'}", "workers=0", "progress=false"]) == 0
    finally:
        close_handlers()
    after = {row["key"]: row for row in run.read_rows("trials")}
    assert len(after) == 12
    assert all(after[key] == row for key, row in done.items())
    code, straight = compare(tmp_path, *words[:-2], "workers=0", name="straight")
    assert code == 0
    losses = [sorted((row["optimizer"], row["seed"], row["test_loss"]) for row in r.read_rows("results"))
              for r in (run, straight)]  # fmt: skip
    assert losses[0] == losses[1]
    assert not Path(f"/proc/{process.pid}").exists()
