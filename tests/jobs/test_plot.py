"""The plot job on runs written to disk: which are drawn, how they are grouped, what it writes, and without torch."""

import csv
import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure

from symlab.jobs.plot import plot
from symlab.plots.loss import loss
from symlab.rundir import BadInput, RunDir

TARGETS = {"adam": "symlab.optim.adam.adam", "gd": "symlab.optim.gd.gd"}


class Recorder:
    """A plot that keeps what it was given and draws the loss."""

    def __init__(self) -> None:
        self.table = pd.DataFrame()
        self.references: Mapping[str, float] = {}
        self.title = ""

    def __call__(self, table: pd.DataFrame, references: Mapping[str, float], *, title: str) -> Figure:
        self.table, self.references, self.title = table, references, title
        return loss(table, references, title=title)


def write_run(
    path: Path,
    optimizer: str = "adam",
    *,
    seed: int = 0,
    status: str | None = "completed",
    losses: tuple[float, ...] = (1.0, 0.5, 0.25),
    reference: float = 0.3,
    reached: int | None = 2,
    **keys: Any,
) -> Path:
    """A run directory as the training job leaves it; status None: the process died."""
    path.mkdir(parents=True)
    run = RunDir(path)
    config = {
        "seed": seed,
        "epochs": 2,
        "model": {"_target_": "symlab.models.mlp.mlp", "hidden": [7]},
        "data": {"_target_": "symlab.data.teacher_student.teacher_student", "seed": seed, "root": str(path)},
        "optimizer": {"_target_": TARGETS[optimizer], "lr": keys.get("lr", 0.1)},
    }
    run.write_config(yaml.safe_dump(config), [])
    run.write_environment({})
    run.append_rows(
        [
            {"step": i, "epoch": float(i), "lr": 0.1, "train_loss": 0.9 * value, "test_loss": value, "time_s": 0.1 * i}
            for i, value in enumerate(losses)
        ]
    )
    if status is not None:
        run.write_summary(
            {
                "status": status,
                "references": {"linear least squares": reference},
                "target_losses": {"0.3": 0.3},
                "steps_to_target": {"0.3": reached},
                "seconds_to_target": {"0.3": None if reached is None else 0.1 * reached},
            }
        )
    return path


def draw(tmp_path: Path, runs, **keys) -> tuple[RunDir, Recorder, Mapping[str, Any]]:
    own = RunDir.create(tmp_path / "plots")
    recorder = Recorder()
    outcome = plot(own, runs=runs, plot=recorder, **keys)
    assert (outcome.status, outcome.exit_code) == ("completed", 0)
    return own, recorder, outcome.summary


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_groups_over_seeds_and_writes_tables_and_figures(tmp_path):
    for seed, last in enumerate((0.1, 0.2, 0.6)):
        write_run(tmp_path / "runs" / f"adam{seed}", seed=seed, losses=(1.0, last))
    write_run(tmp_path / "runs" / "gd0", "gd", losses=(1.0, 0.8), reached=None)
    own, recorder, summary = draw(tmp_path, tmp_path / "runs" / "*")

    table = recorder.table
    assert sorted(table["group"].unique()) == ["optimizer=adam", "optimizer=gd"]
    assert table.groupby("group")["run"].nunique().to_dict() == {"optimizer=adam": 3, "optimizer=gd": 1}
    assert recorder.title == "teacher_student, mlp"
    assert recorder.references == {"linear least squares": 0.3}
    assert (own.path / "figures" / "runs.png").stat().st_size > 2000
    assert (own.path / "figures" / "runs.pdf").stat().st_size > 2000

    rows = read_csv(own.path / "runs.csv")
    assert len(rows) == 8
    assert {row["status"] for row in rows} == {"completed"}
    assert [row["test_loss"] for row in rows if row["run"].endswith("adam2")] == ["1.0", "0.6"]
    groups = {row["group"]: row for row in read_csv(own.path / "groups.csv")}
    adam = groups["optimizer=adam"]
    assert adam["runs"] == adam["test_loss_n"] == "3"
    assert float(adam["test_loss_mean"]) == pytest.approx(0.3)
    assert float(adam["test_loss_std"]) == pytest.approx(0.07**0.5)
    assert groups["optimizer=gd"]["test_loss_std"] == ""
    assert not any("accuracy" in column for column in adam), "columns that no run has"
    targets = {row["group"]: row for row in read_csv(own.path / "targets.csv")}
    assert (targets["optimizer=adam"]["reached"], targets["optimizer=adam"]["steps_median"]) == ("3", "2")
    assert (targets["optimizer=gd"]["reached"], targets["optimizer=gd"]["steps_median"]) == ("0", "")
    assert len(summary["runs"]) == 4
    assert summary["groups"][0]["runs"] == 3


def test_a_sweep_directory_a_run_a_pattern_and_a_list(tmp_path):
    sweep = tmp_path / "sweep"
    paths = [write_run(sweep / f"lr-{i}", seed=i) for i in range(3)]
    for runs, count in (
        (sweep, 3),
        (paths[0], 1),
        (tmp_path / "*", 3),
        ([paths[1], sweep / "lr-*"], 3),
        (sweep / "lr-[01]", 2),
    ):
        assert len(draw(tmp_path / "out", runs)[2]["runs"]) == count


def test_relative_patterns_start_at_the_working_directory(tmp_path, monkeypatch):
    write_run(tmp_path / "runs" / "a")
    monkeypatch.chdir(tmp_path)
    assert draw(tmp_path / "out", [Path("runs/*")])[2]["runs"] == [str(tmp_path / "runs" / "a")]


STATUSES = ("diverged", "interrupted", "failed", None)


def mixed(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for seed in range(2):
        write_run(folder / f"good{seed}", seed=seed)
    for status in STATUSES:
        write_run(folder / f"bad-{status}", seed=5, status=status, losses=(1.0, 100.0))
    (folder / "empty").mkdir()
    RunDir(folder / "empty").write_config("seed: 0\n", [])
    return folder


def test_unfinished_runs_are_left_out_named_and_counted(tmp_path, caplog):
    folder = mixed(tmp_path)
    with caplog.at_level(logging.INFO, logger="symlab"):
        _, recorder, summary = draw(tmp_path, folder)
    assert sorted({Path(run).name for run in recorder.table["run"]}) == ["good0", "good1"]
    assert recorder.title == "teacher_student, mlp, adam (not drawn: 1 died, 1 diverged, 1 failed, 1 interrupted)"
    found = {Path(path).name: status for path, status in summary["left_out"].items()}
    expected = {f"bad-{status}": status or "died" for status in STATUSES}
    assert found == expected
    assert [Path(path).name for path in summary["without_rows"]] == ["empty"]
    for name in (*expected, "empty"):
        assert str(folder / name) in caplog.text


def test_unfinished_runs_on_request_are_groups_of_their_own(tmp_path):
    _, recorder, _ = draw(tmp_path, mixed(tmp_path), include_unfinished=True)
    groups = recorder.table.groupby("group")["run"].nunique().to_dict()
    assert groups == {"": 2, "(died)": 1, "(diverged)": 1, "(failed)": 1, "(interrupted)": 1}
    assert recorder.title == "teacher_student, mlp, adam"


def test_a_run_that_is_being_written_is_left_out(tmp_path):
    write_run(tmp_path / "runs" / "done")
    with RunDir(write_run(tmp_path / "runs" / "going", status=None)).claimed():
        _, recorder, _ = draw(tmp_path, tmp_path / "runs")
    assert recorder.title.endswith("(not drawn: 1 running)")


def test_same_seed_twice_is_told(tmp_path, caplog):
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name, seed=3)
    with caplog.at_level(logging.WARNING, logger="symlab"):
        draw(tmp_path, tmp_path / "runs")
    assert "2 runs of group '' have the same seed 3" in caplog.text


def test_references_are_averaged_in_a_group_and_told_apart_between_groups(tmp_path):
    for seed, reference in enumerate((0.2, 0.4)):
        write_run(tmp_path / "one" / f"a{seed}", seed=seed, reference=reference)
    assert draw(tmp_path, tmp_path / "one")[1].references == {"linear least squares": pytest.approx(0.3)}
    write_run(tmp_path / "one" / "gd", "gd", reference=0.9)
    assert draw(tmp_path, tmp_path / "one")[1].references == {
        "linear least squares (optimizer=adam)": pytest.approx(0.3),
        "linear least squares (optimizer=gd)": 0.9,
    }


def test_group_by_and_title(tmp_path):
    for index, rate in enumerate((0.1, 0.2)):
        write_run(tmp_path / "runs" / f"a{index}", lr=rate, seed=index)
    _, recorder, _ = draw(tmp_path, tmp_path / "runs")
    assert list(recorder.table["group"].unique()) == ["lr=0.1", "lr=0.2"]
    _, recorder, _ = draw(tmp_path, tmp_path / "runs", group_by=["optimizer"], title="mine")
    assert list(recorder.table["group"].unique()) == ["optimizer=adam"]
    assert recorder.title == "mine"
    with pytest.raises(ValueError, match="group_by"):
        draw(tmp_path, tmp_path / "runs", group_by=["lrr"])


def test_runs_with_other_columns_share_the_table(tmp_path):
    write_run(tmp_path / "runs" / "a")
    path = write_run(tmp_path / "runs" / "b", seed=1, losses=())
    RunDir(path).append_rows([{"step": 0, "train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5}])
    own, _, _ = draw(tmp_path, tmp_path / "runs")
    assert [row["test_accuracy"] for row in read_csv(own.path / "runs.csv")] == ["", "", "", "0.5"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "none*", ["none*", "matches nothing"]),
        (lambda folder: folder / "text.txt", ["text.txt", "holds no run"]),
        (lambda folder: folder / "dead", ["1 diverged", "include_unfinished=true"]),
        (lambda folder: folder / "empty", ["metrics", "empty"]),
        (lambda folder: [], ["runs=[]"]),
        (lambda folder: folder / "broken", ["broken", "config.yaml"]),
        (lambda folder: folder / "scalar", ["scalar", "config.yaml"]),
    ],
)
def test_nothing_to_draw_is_one_clear_message_and_writes_nothing(make, words, tmp_path):
    folder = tmp_path / "runs"
    write_run(folder / "dead", status="diverged")
    (folder / "text.txt").write_text("no run")
    (folder / "empty").mkdir()
    RunDir(folder / "empty").write_config("seed: 0\n", [])
    for name, text in (("broken", "a: [1,\n"), ("scalar", "3\n")):
        write_run(folder / name)
        (folder / name / "config.yaml").write_text(text)
    own = RunDir.create(tmp_path / "plots")
    with pytest.raises(BadInput) as caught:
        plot(own, runs=make(folder), plot=Recorder())
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert list(own.path.iterdir()) == []


def test_reads_no_code_from_a_config(tmp_path):
    """A config.yaml from somebody else is data: a YAML tag that would call Python is refused."""
    path = write_run(tmp_path / "runs" / "a")
    marker = tmp_path / "called"
    (path / "config.yaml").write_text(f'seed: !!python/object/apply:os.system ["touch {marker}"]\n')
    with pytest.raises(BadInput, match=r"config\.yaml cannot be read"):
        draw(tmp_path, path)
    assert not marker.exists()


def test_sixty_runs(tmp_path):
    for seed in range(60):
        write_run(tmp_path / "runs" / f"r{seed}", seed=seed, losses=tuple(1 / (step + 1) for step in range(20)))
    own, recorder, _ = draw(tmp_path, tmp_path / "runs")
    assert recorder.table["run"].nunique() == 60
    assert len(read_csv(own.path / "runs.csv")) == 1200


def test_works_where_torch_cannot_be_imported(tmp_path):
    write_run(tmp_path / "runs" / "a")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "sys.modules['torch'] = None  # any import of torch now raises ModuleNotFoundError\n"
        "from symlab.jobs.plot import plot\n"
        "from symlab.plots.loss import loss\n"
        "from symlab.rundir import RunDir\n"
        "root = Path(sys.argv[1])\n"
        "print(plot(RunDir.create(root / 'out'), runs=root / 'runs', plot=loss).summary['figures'][0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_file()


def test_losses_of_different_data_do_not_share_an_axis(tmp_path):
    write_run(tmp_path / "a", "adam")
    write_run(tmp_path / "b", "gd")
    digits = write_run(tmp_path / "c", "adam")
    config = yaml.safe_load((digits / "config.yaml").read_text())
    config["data"] = {"_target_": "symlab.data.digits.digits"}
    (digits / "config.yaml").write_text(yaml.safe_dump(config))
    own, recorder, summary = draw(tmp_path, [tmp_path / name for name in "abc"])
    assert [Path(figure).name for figure in summary["figures"]] == ["runs_teacher_student.png", "runs_digits.png"]
    assert set(recorder.table["run"]) == {str(digits)}  # the last figure has the run on digits alone
    assert len(own.read_rows("runs")) == 9


def test_group_by_may_name_a_key_that_only_some_data_have(tmp_path):
    write_run(tmp_path / "a", "adam")
    digits = write_run(tmp_path / "c", "adam")
    config = yaml.safe_load((digits / "config.yaml").read_text())
    config["data"] = {"_target_": "symlab.data.digits.digits", "image": True}
    (digits / "config.yaml").write_text(yaml.safe_dump(config))
    _, recorder, summary = draw(tmp_path, [tmp_path / "a", tmp_path / "c"], group_by=["data.image"])
    assert len(summary["figures"]) == 2
    assert set(recorder.table["group"]) == {"image=true"}
