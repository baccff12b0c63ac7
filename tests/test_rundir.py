"""Run directories: what is written reads back equal, is whole or absent, and belongs to one writer."""

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from symlab.rundir import BadInput, Outcome, RunDir, environment, files, tables

FORBIDDEN = set("=,[]()#~ ")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "runs")


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def strict_json(path: Path) -> Any:
    return json.loads(path.read_text(), parse_constant=refuse_constant)


# ---- directories


def test_processes_started_together_get_their_own_directories(tmp_path: Path) -> None:
    code = "import sys; from symlab.rundir import RunDir\nfor _ in range(50): print(RunDir.create(sys.argv[1]).path)"
    command = [sys.executable, "-c", code, str(tmp_path / "runs")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    names = [line for process in processes for line in process.communicate()[0].splitlines()]
    assert len(names) == 200
    assert len(set(names)) == 200
    assert not FORBIDDEN & set("".join(Path(name).name for name in names))


def test_a_name_that_is_taken_is_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suggestions = iter(["a", "a", "a", "b"])
    monkeypatch.setattr("symlab.rundir.directory.run_name", lambda: next(suggestions))
    assert RunDir.create(tmp_path).path.name == "a"
    assert RunDir.create(tmp_path).path.name == "b"


def test_open_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"no run directory {tmp_path}/gone"):
        RunDir.open(tmp_path / "gone")
    with pytest.raises(BadInput, match=r"has no config\.yaml"):
        RunDir.open(tmp_path)
    (tmp_path / "config.yaml").touch()
    assert RunDir.open(tmp_path).path == tmp_path


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDir("r")
    run.path.mkdir()
    monkeypatch.chdir("/")
    run.write_config("a: 1\n", [])
    assert (tmp_path / "r" / "config.yaml").read_text() == "a: 1\n"


def test_the_config_is_written_once(run: RunDir) -> None:
    overrides = ["a=1", 'note="é, \n"', "x='y'"]
    run.write_config("a: 1\n", overrides)
    assert run.read_overrides() == overrides
    with pytest.raises(BadInput, match="already holds a run"):
        run.write_config("a: 2\n", [])
    assert run.read_config_text() == "a: 1\n"
    assert run.read_overrides() == overrides


def test_one_process_writes(run: RunDir) -> None:
    other = RunDir(run.path)
    assert not run.is_claimed
    with run.claimed():
        run.claim()  # again is harmless
        assert other.is_claimed
        assert other.status == "running"
        with pytest.raises(BadInput, match=f"is being written by process {os.getpid()}"):
            other.claim()
    other.claim()
    other.release()
    assert not run.is_claimed


def test_a_claim_ends_with_its_process(run: RunDir) -> None:
    code = (
        "import sys, os; from symlab.rundir import RunDir; r = RunDir(sys.argv[1]); r.claim(); r.write_config('', []); "
    )
    killed = subprocess.run([sys.executable, "-c", code + "os.kill(os.getpid(), 9)", str(run.path)], check=False)
    assert killed.returncode == -9
    assert run.status == "died"
    run.claim()
    run.release()


# ---- status


def test_status_over_a_life(run: RunDir) -> None:
    assert run.status == "empty"
    run.write_config("", [])
    run.write_environment({})
    assert run.status == "died"
    run.write_summary({"status": "interrupted", "exit_code": 143})
    assert run.status == "interrupted"

    again = RunDir(run.path)
    again.write_environment({})
    assert run.status == "died"  # the second start has said nothing yet
    again.mark_failed("Traceback ...\nValueError: x\n", exit_code=2)
    assert run.status == "failed"
    assert run.read_summary() == {"status": "failed", "exit_code": 2, "error": "ValueError: x", "starts": 2}
    assert (run.path / "FAILED").read_text().endswith("ValueError: x\n")

    last = RunDir(run.path)
    last.write_environment({})
    last.write_summary({"status": "completed"})
    assert run.status == "completed"
    assert not (run.path / "FAILED").exists()


def test_an_outcome_has_a_known_status() -> None:
    assert Outcome() == Outcome("completed", 0, {})
    with pytest.raises(ValueError, match="one of completed, diverged, interrupted, failed, got 'done'"):
        Outcome("done")


# ---- tables


cells = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=True)
    | st.sampled_from(["text", 'a,b "c"', "é"])
)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.fixed_dictionaries({"step": st.integers(), "x": cells, "y": cells}), min_size=1, max_size=5))
def test_rows_read_back_equal(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    run = RunDir.create(tmp_path_factory.mktemp("rows"))
    run.append_rows(rows[:1])
    run.append_rows(rows[1:])
    found = run.read_rows()
    assert found == rows
    for row, original in zip(found, rows, strict=True):
        assert {key: type(cell) for key, cell in row.items()} == {key: type(cell) for key, cell in original.items()}
    assert run.rows_written == len(rows)


def test_tensors_and_numpy_numbers_as_cells(run: RunDir) -> None:
    single = torch.tensor(0.1, dtype=torch.float32)
    run.append_rows([{"step": torch.tensor(3).item(), "loss": single.item(), "array": single.numpy()[()]}])
    assert run.read_rows() == [{"step": 3, "loss": single.item(), "array": single.item()}]
    run.append_rows([{"step": 4, "loss": math.nan}])
    assert math.isnan(run.read_rows()[1]["loss"])
    assert run.read_rows()[1]["array"] is None


def test_a_row_must_fit_its_table(run: RunDir) -> None:
    run.append_rows([{"step": 0, "loss": 1.0}])
    with pytest.raises(ValueError, match="columns step, loss, got a row with los"):
        run.append_rows([{"step": 1, "los": 1.0}])
    for value in ("two\nlines", [1], single_object()):
        with pytest.raises(ValueError, match="a cell holds a number"):
            run.append_rows([{"step": 1, "loss": value}])
    assert run.read_rows() == [{"step": 0, "loss": 1.0}]


def single_object() -> object:
    return object()


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_line_cut_by_a_kill_is_repaired(run: RunDir, cut: int) -> None:
    rows = [{"step": step, "loss": 0.5} for step in range(3)]
    run.append_rows(rows)
    table = run.path / "metrics.csv"
    table.write_bytes(table.read_bytes()[:-cut])
    whole = [row for row in rows if row in run.read_rows()]
    assert len(whole) == (2 if cut <= 6 else 1)
    run.append_rows(rows[len(whole) :])
    assert run.read_rows() == rows
    assert table.read_text() == "step,loss\n0,0.5\n1,0.5\n2,0.5\n"


def test_a_header_cut_by_a_kill_is_repaired(run: RunDir) -> None:
    (run.path / "metrics.csv").write_text("step,lo")
    assert run.read_rows() == []
    run.append_rows([{"step": 0, "loss": 1.0}])
    assert (run.path / "metrics.csv").read_text() == "step,loss\n0,1.0\n"


@pytest.mark.parametrize("content", ["", "step,lo", "step,loss"])
def test_a_table_killed_in_its_first_line_is_continued(run: RunDir, content: str) -> None:
    (run.path / "metrics.csv").write_text(content)
    run.truncate_rows(-1)
    run.append_rows([{"step": 0, "loss": 1.0}])
    assert (run.path / "metrics.csv").read_text() == "step,loss\n0,1.0\n"


@pytest.mark.parametrize(
    "content", [b"step,loss\nx,0.5\n", b"0,0.5\n1,0.5\n", b"step,loss\n1\n", b"step,loss\n\xff,1\n"]
)
def test_a_damaged_table_is_named(run: RunDir, content: bytes) -> None:
    (run.path / "metrics.csv").write_bytes(content)
    with pytest.raises(BadInput, match=r"metrics\.csv"):
        run.truncate_rows(0)


@pytest.mark.parametrize("content", ["", "{", "[1]", "3"])
def test_a_damaged_summary_is_named(run: RunDir, content: str) -> None:
    (run.path / "summary.json").write_text(content)
    with pytest.raises(BadInput, match=r"summary\.json is damaged"):
        _ = run.status


def test_what_a_killed_writer_left_goes_with_the_next_claim(run: RunDir) -> None:
    (run.path / "checkpoints").mkdir()
    left = [run.path / "checkpoints" / ".last.pt.0123abcd.tmp", run.path / ".summary.json.0123abcd.tmp"]
    for path in left:
        path.write_text("half")
    with run.claimed():
        assert not any(path.exists() for path in left)


def test_truncation_for_a_resumed_run(run: RunDir) -> None:
    run.truncate_rows(0)
    run.append_rows([{"step": step, "loss": 1 / 3} for step in range(5)])
    text = (run.path / "metrics.csv").read_text()
    run.truncate_rows(2)
    assert (run.path / "metrics.csv").read_text() == "".join(text.splitlines(keepends=True)[:4])
    run.truncate_rows(-1)
    assert run.read_rows() == []
    run.append_rows([{"step": 0, "loss": 1.0}])
    assert run.read_rows() == [{"step": 0, "loss": 1.0}]


def test_a_full_disk_leaves_the_rows_that_were_there(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run.append_rows([{"step": 0, "loss": 1.0}])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        run.append_rows([{"step": 1, "loss": 2.0}])
    with pytest.raises(OSError, match="No space left"):
        run.write_summary({"status": "completed"})
    with pytest.raises(OSError, match="No space left"):
        run.save_checkpoint("last", {"step": 1})
    monkeypatch.undo()
    assert (run.path / "metrics.csv").read_text() == "step,loss\n0,1.0\n"
    assert not run.has_checkpoint("last")
    assert sorted(path.name for path in run.path.rglob("*")) == ["checkpoints", "metrics.csv"]


def test_names_of_tables_and_figures_are_plain(run: RunDir) -> None:
    for name in ("a=1", "../x", "a b", ".hidden", "", "a/b", "ü"):
        with pytest.raises(ValueError, match="letters, digits"):
            run.append_rows([{"step": 0}], table=name)
    run.append_rows([{"step": 0}], table="spectrum_0.5")
    assert run.read_rows("spectrum_0.5") == [{"step": 0}]


# ---- JSON


def test_json_is_strict(run: RunDir) -> None:
    summary = {
        "loss": math.nan,
        "best": {"value": math.inf},
        "list": [1.5, -math.inf],
        "path": Path("/x"),
        "numpy": torch.tensor(0.5).numpy()[()],
        "text": "é",
    }
    run.write_summary(summary)
    assert strict_json(run.path / "summary.json") == {
        "loss": None,
        "loss_note": "nan",
        "best": {"value": None, "value_note": "inf"},
        "list": [1.5, None],
        "path": "/x",
        "numpy": 0.5,
        "text": "é",
        "starts": 0,
    }
    with pytest.raises(TypeError, match="type Tensor as JSON"):
        run.write_summary({"loss": torch.tensor(1.0)})
    assert run.read_summary()["text"] == "é"


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.write_text(path, "old")

    def interrupted(file: Any) -> None:
        file.write(b"new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(path, interrupted)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_environment_has_one_entry_per_start(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "do-not-leak")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    run.write_environment({"command_line": "symlab x"})
    run.write_environment({"device": "cpu", "threads": 2})
    RunDir(run.path).write_environment({"command_line": "symlab y"})
    first, second = strict_json(run.path / "environment.json")
    assert (first["command_line"], first["device"], first["threads"]) == ("symlab x", "cpu", 2)
    assert second["command_line"] == "symlab y"
    assert first["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert first["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert first["slurm"] == {"SLURM_JOB_ID": "17"}
    assert first["host"]
    assert first["cpu"]
    assert "do-not-leak" not in (run.path / "environment.json").read_text()


def test_git_commit_and_whether_files_differ(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert environment._git(tmp_path) is None
    git("init", "-q")
    assert environment._git(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "--no-verify", "-m", "x")
    (tmp_path / "untracked").touch()
    assert environment._git(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "a").write_text("2")
    assert environment._git(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": True}


# ---- checkpoints and figures


def test_checkpoints_load_with_weights_only(run: RunDir) -> None:
    assert not run.has_checkpoint("last")
    with pytest.raises(BadInput, match=r"no checkpoint .*last\.pt"):
        run.load_checkpoint("last")
    state = {
        "weights": torch.randn(3, dtype=torch.bfloat16),
        "step": 3,
        "rng": torch.get_rng_state(),
        "rows": [{"a": 1.5}],
    }
    run.save_checkpoint("last", state)
    loaded = run.load_checkpoint("last")
    assert loaded["step"] == 3
    assert loaded["rows"] == [{"a": 1.5}]
    assert loaded["weights"].dtype == torch.bfloat16
    assert torch.equal(loaded["weights"], state["weights"])
    run.save_checkpoint("last", {"step": 4})
    assert run.load_checkpoint("last") == {"step": 4}
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["last.pt"]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04cut"])
def test_a_broken_checkpoint_is_named(run: RunDir, content: bytes) -> None:
    (run.path / "checkpoints").mkdir()
    (run.path / "checkpoints" / "last.pt").write_bytes(content)
    with pytest.raises(BadInput, match=r"cannot read checkpoint .*last\.pt"):
        run.load_checkpoint("last")


def test_a_changed_byte_of_a_checkpoint_is_noticed(run: RunDir) -> None:
    run.save_checkpoint("last", {"weights": torch.arange(1000)})
    path = run.path / "checkpoints" / "last.pt"
    content = bytearray(path.read_bytes())
    content[content.index(torch.arange(500, 502).numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"cannot read checkpoint .*damaged in its part .*data/0"):
        run.load_checkpoint("last")


def test_a_checkpoint_of_something_else_is_named(run: RunDir) -> None:
    (run.path / "checkpoints").mkdir()
    torch.save([1, 2], run.path / "checkpoints" / "last.pt")
    with pytest.raises(BadInput, match="holds a list"):
        run.load_checkpoint("last")


def test_a_checkpoint_cannot_run_code(run: RunDir) -> None:
    (run.path / "checkpoints").mkdir()
    torch.save({"path": Path("/x")}, run.path / "checkpoints" / "last.pt")
    with pytest.raises(BadInput, match="cannot read checkpoint"):
        run.load_checkpoint("last")


def test_figures_are_saved_as_png_and_pdf(run: RunDir) -> None:
    figure = Figure()
    figure.subplots().plot([1, 2])
    png, pdf = run.save_figure("loss", figure)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert sorted(path.name for path in (run.path / "figures").iterdir()) == ["loss.pdf", "loss.png"]


def test_a_report_replaces_the_one_before_and_nothing_else(run: RunDir) -> None:
    run.save_report("report.md", "old, and longer than the new one")
    path = run.save_report("report.md", "Größe: 3 ± 1\n")
    assert path == run.path / "report.md"
    assert path.read_text(encoding="utf-8") == "Größe: 3 ± 1\n"
    assert [item.name for item in run.path.iterdir() if "report" in item.name] == ["report.md"]
    for name in ("config.yaml", "../report.md", "summary.json", ".md"):
        with pytest.raises(ValueError, match="name"):
            run.save_report(name, "x")


def test_neither_torch_nor_pandas_is_needed_to_read_a_run(run: RunDir) -> None:
    run.append_rows([{"step": 0, "loss": 0.5}])
    code = (
        "import sys; from symlab.rundir import RunDir; r = RunDir(sys.argv[1]); print(r.read_rows(), r.status);"
        "assert not {'torch', 'pandas', 'numpy', 'matplotlib', 'hydra'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[{'step': 0, 'loss': 0.5}] empty\n"


def test_append_keeps_a_table_of_another_writer(run: RunDir) -> None:
    """Columns come from the file, not from the order of the keys."""
    run.append_rows([{"step": 0, "loss": 0.5}])
    tables.append_rows(run.path / "metrics.csv", [{"loss": 0.25, "step": 1}])
    assert run.read_rows() == [{"step": 0, "loss": 0.5}, {"step": 1, "loss": 0.25}]


def test_rows_that_are_not_wanted_go(run: RunDir) -> None:
    run.keep_rows(lambda row: False, "blocks")  # no table, nothing to drop
    run.append_rows([{"seed": seed, "value": seed / 3, "text": "a,b"} for seed in range(4)], table="blocks")
    run.keep_rows(lambda row: row["seed"] in (1, 3), "blocks")
    assert run.read_rows("blocks") == [{"seed": seed, "value": seed / 3, "text": "a,b"} for seed in (1, 3)]


# ---- arrays


def test_arrays_read_back_equal(run: RunDir) -> None:
    arrays = {"matrix": np.array([[1.5, float("nan")], [0.0, -2.0]]), "names": np.array(["a", "layers.0.weight"])}
    path = run.save_arrays("hessian_step0", arrays)
    assert path == run.path / "arrays" / "hessian_step0.npz"
    back = run.read_arrays("hessian_step0")
    assert list(back) == ["matrix", "names"]
    np.testing.assert_array_equal(back["matrix"], arrays["matrix"])
    assert back["names"].tolist() == ["a", "layers.0.weight"]
    assert run.array_names() == ["hessian_step0"]


def test_arrays_that_are_not_there_or_damaged_are_named(run: RunDir) -> None:
    with pytest.raises(BadInput, match=r"no arrays .*missing\.npz"):
        run.read_arrays("missing")
    path = run.save_arrays("matrix", {"matrix": np.arange(1000.0)})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"cannot read arrays .*matrix\.npz"):
        run.read_arrays("matrix")


def test_arrays_of_objects_are_refused(run: RunDir) -> None:
    with pytest.raises(ValueError, match="array what holds Python objects"):
        run.save_arrays("bad", {"what": np.array([{}, None])})
    assert run.array_names() == []
