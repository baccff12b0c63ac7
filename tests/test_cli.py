"""The command line itself, on a job that needs no PyTorch: help, listings, one run, messages, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import symlab
from tests.cli_lab import Here, Lab, plant

FORBIDDEN = set("=,[]()#~ ")


def python(lab: Lab, code: str, **extra: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=lab.cwd, env=lab.environment(extra), capture_output=True, text=True, check=False)


def test_listing_and_version_need_neither_hydra_nor_torch(lab: Lab) -> None:
    code = "import sys; from symlab.cli import main; assert main({words}) == 0; print(sorted(sys.modules))"
    for words in ([], ["--help"], ["--version"]):
        text = python(lab, code.format(words=words)).stdout
        assert "'hydra'" not in text
        assert "'torch'" not in text
        assert ("toy " in text and "Count to a number" in text) or f"symlab {symlab.__version__}" in text


def test_help_of_a_job_shows_groups_and_keys_and_makes_nothing(lab: Lab) -> None:
    done = lab("toy", "optimizer=fancy", "--help")
    assert done.returncode == 0
    assert "optimizer  [fancy] plain" in done.stdout
    for text in ("rate: 1.0", "damping: 0.0", "Count to a number", "resume=DIR"):
        assert text in done.stdout
    assert lab("toy", "--cfg", "job", "--resolve").stdout.startswith("optimizer:\n  _target_: symlab.optim.plain.plain")
    assert "note: x" in lab("toy", "note=x", "--cfg", "all", "--resolve").stdout
    assert "toy" in lab("toy", "--info", "defaults").stdout
    assert not lab.runs()


def test_one_run_leaves_a_complete_record(lab: Lab) -> None:
    done = lab("toy", "optimizer.lr=0.5", "note=a b", SECRET_TOKEN="do-not-leak")
    assert done.returncode == 0, done.stderr
    (run,) = lab.runs()
    assert not FORBIDDEN & set("".join(path.name for path in [run, *run.rglob("*")]))
    assert (run / "config.yaml").read_text().startswith("optimizer:\n  _target_: symlab.optim.plain.plain\n  lr: 0.5\n")
    assert (run / "overrides.yaml").read_text() == '- "optimizer.lr=0.5"\n- "note=a b"\n'
    assert (run / "metrics.csv").read_text() == "step,value\n0,0.0\n1,0.5\n2,1.0\n"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["exit_code"] == 0
    assert summary["final"] == {"value": 1.0}
    (entry,) = json.loads((run / "environment.json").read_text())
    assert entry["command_line"] == "symlab toy optimizer.lr=0.5 'note=a b'"
    assert entry["versions"]["torch"]
    assert entry["versions"]["hydra-core"]
    assert entry["seed"] == 0
    assert "do-not-leak" not in "".join(path.read_text() for path in run.rglob("*") if path.is_file())
    log = (run / "log.txt").read_text()
    for text in ("run directory:", "step 0", "step 2"):
        assert log.count(text) == 1
        assert done.stderr.count(text) == 1
    assert str(run) in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tooy"], "there is no job 'tooy'; did you mean toy?"),
        (["epochs=1"], "the job comes first"),
        (["toy", "epochs"], "expected KEY=VALUE"),
        (["toy", "optimizer=fanzy"], "optimizer=fanzy: there is no such option; did you mean fancy?"),
        (["toy", "optimizer=null"], "optimizer=null: names no option; leave it out, or write ~optimizer to go without"),
        (["toy", "optimizer="], "optimizer=: names no option"),
        (["toy", "-m", "optimizer=plain,null"], "optimizer=plain,null: names no option"),
        (["toy", "optimzer.lr=1"], "did you mean optimizer.lr?"),
        (["toy", "raet=1"], "did you mean rate?"),
        (["toy", "+optimizer.lrr=1"], "plain has no key lrr; did you mean optimizer.lr?; its keys: lr"),
        (["toy", "++optimizer.damping=1"], "plain has no key damping"),
        (["toy", "+foo=1"], "toy has no key foo"),
        (["toy", "epochs=oops"], "epochs=oops: expected a whole number, got text"),
        (["toy", "epochs=1.5"], "epochs=1.5: expected a whole number"),
        (["toy", "rate=true"], "rate=true: expected a number, got true or false"),
        (["toy", 'rate="1e-3"'], 'rate="1e-3": expected a number, got text'),
        (["toy", "note=3"], "as text: 'note=\"3\"'"),
        (["toy", "names=a"], "names=a: expected a list of text"),
        (["toy", "seed=???"], "seed: Missing mandatory value"),
        (["toy", "note=${oc.env:NOT_SET}"], "Environment variable 'NOT_SET' not found"),
        (["toy", "note=${gone}"], "note: Interpolation key 'gone' not found"),
        (["toy", "note=${gone:1}"], "note: Unsupported interpolation type gone"),
        (["toy", "~optimizer"], "toy needs optimizer"),
        (["toy", "seed=1,2"], "add -m for one run each"),
        (["toy", "root=a(b"], "quote it twice: 'root=\"a(b\"'"),
        (["toy", "root=dé"], "quote it twice: 'root=\"dé\"'"),
        (["toy", "--config-name", "tyo"], "there is no tyo.yaml; did you mean toy?"),
        (["toy", "--config-dir", "nowhere"], "there is no directory"),
        (["toy", "--experimental-rerun", "x.pickle"], "use resume=DIR"),
        (["toy", "resume=nowhere"], "nowhere: there is no such directory"),
        (["two-words", "resume=x"], "two_words cannot be resumed"),
        (["toy", "hydra.rum.dir=x"], "Key 'rum' not in 'HydraConf'"),
    ],
)
def test_bad_input_stops_before_anything_with_one_message(words: list[str], expected: str, here: Here) -> None:
    done = here(*words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("symlab: error: ")
    assert expected in done.stderr
    assert not here.runs()


def test_unknown_flag(lab: Lab) -> None:
    done = lab("toy", "--foo")
    assert done.returncode == 2
    assert "unrecognized arguments: --foo" in done.stderr


def test_bad_input_found_by_the_job_is_on_record_and_short(lab: Lab) -> None:
    done = lab("toy", "optimizer.lr=-1")
    assert done.returncode == 2
    assert "optimizer.lr=-1.0: lr must be positive, got -1.0" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    (run,) = lab.runs()
    assert "ValueError: lr must be positive" in (run / "FAILED").read_text()
    assert "Traceback" in (run / "log.txt").read_text()
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"
    shown = lab("toy", "root=nowhere", HYDRA_FULL_ERROR="1")
    assert shown.returncode == 2
    assert "Traceback" in shown.stderr


def test_a_failure_while_running_is_exit_code_1(lab: Lab) -> None:
    done = lab("toy", "fail_at=1")
    assert done.returncode == 1
    assert "RuntimeError: failed as asked" in done.stderr
    assert "Traceback" not in done.stderr
    (run,) = lab.runs()
    assert "RuntimeError: failed as asked" in (run / "FAILED").read_text()
    assert (run / "metrics.csv").read_text() == "step,value\n0,0.0\n"


def test_a_directory_is_used_once(lab: Lab) -> None:
    assert lab("toy", "hydra.run.dir=fixed").returncode == 0
    before = {path: path.read_bytes() for path in (lab.cwd / "fixed").rglob("*") if path.is_file()}
    done = lab("toy", "hydra.run.dir=fixed", "rate=2")
    assert done.returncode == 2
    assert "fixed already holds a run" in done.stderr
    assert before == {path: path.read_bytes() for path in (lab.cwd / "fixed").rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["a=1", "dé p", "a,b", "a[1]", "a(b)", "#1", 'q"x', "back\\", "~", "it's", "plain"])
def test_paths_may_hold_any_character_when_quoted(name: str, here: Here) -> None:
    """A path is relative to where it was typed, also if Hydra changes the directory; the saved one is absolute."""
    from symlab.cli.arguments import override_text

    (here.cwd / name).mkdir()
    done = here("toy", override_text("root", f"./{name}/"), "hydra.job.chdir=true", "epochs=1")
    assert done.returncode == 0, done.stderr
    (run,) = here.runs()
    assert OmegaConf.load(run / "config.yaml").root == str(here.cwd / name)


def test_relative_paths_and_config_dir_from_another_directory(lab: Lab) -> None:
    here = lab.cwd / "here"
    (here / "d").mkdir(parents=True)
    (here / "extra" / "optimizer").mkdir(parents=True)
    (here / "extra" / "optimizer" / "mine.yaml").write_text("_target_: symlab.optim.plain.plain\nlr: 7.0\n")
    (here / "extra" / "mine.yaml").write_text("defaults: [toy, _self_]\nrate: 3.0\n")
    words = (
        "toy",
        "root=d",
        "optimizer=mine",
        "--config-dir",
        "extra",
        "--config-name",
        "mine",
        "hydra.job.chdir=true",
    )
    done = lab(*words, cwd=here)
    assert done.returncode == 0, done.stderr
    (run,) = (here / "runs" / "toy").iterdir()
    text = (run / "config.yaml").read_text()
    assert f"root: {here / 'd'}" in text
    assert "lr: 7.0" in text
    assert "rate: 3.0" in text
    assert os.listdir(lab.cwd) == ["here"]


def test_home_and_display_do_not_matter(lab: Lab) -> None:
    done = lab("toy", HOME="/nonexistent", DISPLAY="localhost:64.0", MPLBACKEND="TkAgg")
    assert done.returncode == 0, done.stderr


def test_a_directory_without_write_permission_fails_clean(lab: Lab) -> None:
    if os.geteuid() == 0:
        blocked = "/proc/symlab-cannot-write-here"  # root may write everywhere else
    else:
        (lab.cwd / "closed").mkdir(mode=0o555)
        blocked = "closed/run"
    done = lab("toy", f"hydra.run.dir={blocked}")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert Path(blocked).name in done.stderr


def test_completion_of_jobs_groups_and_keys(lab: Lab) -> None:
    def complete(line: str, shell: str = "bash") -> list[str]:
        return lab("-sc", f"query={shell}", COMP_LINE=line).stdout.split()

    assert complete("symlab ") == ["toy", "two-words"]
    assert complete("symlab tw") == ["two-words"]
    assert complete("symlab toy optimizer=") == ["optimizer=fancy", "optimizer=plain"]
    assert complete("symlab toy -m seed=1,2 rat", "fish") == ["rate="]
    assert "optimizer=" in complete("symlab toy -m seed=1,2 ", "zsh")
    assert complete("symlab toy --nonsense ra") == []
    for shell in ("bash", "zsh", "fish"):
        assert "symlab" in lab("-sc", f"install={shell}").stdout
    assert not lab.runs()


def test_completion_does_not_import_torch(lab: Lab) -> None:
    code = (
        "import sys; from symlab.cli import main; main(['-sc', 'query=bash']); main(['toy', '--help']);"
        "assert 'hydra' in sys.modules; assert not {'torch', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    done = python(lab, code, COMP_LINE="symlab toy optimizer=")
    assert done.returncode == 0, done.stderr
    assert "optimizer=plain" in done.stdout


def test_runs_under_optimised_python(lab: Lab) -> None:
    done = lab("toy", "-m", "seed=range(0,3)", PYTHONOPTIMIZE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("completed") == 3


def test_many_processes_get_distinct_directories(lab: Lab) -> None:
    processes = [lab.start("toy") for _ in range(4)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert len(lab.runs()) == 4
    for run in lab.runs():
        assert (run / "metrics.csv").read_text().count("\n") == 4


def test_a_wheel_carries_its_configuration_inside_the_package(lab: Lab, tmp_path: Path) -> None:
    tree = tmp_path / "site"
    plant(tree)
    (tree / "conf").rename(tree / "symlab" / "conf")
    installed = Lab(tree, tmp_path)
    assert "Count to a number" in installed("--help").stdout
    done = installed("toy", "optimizer=fancy")
    assert done.returncode == 0, done.stderr
    assert len(installed.runs()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("size", ["8k", "24k"])
def test_a_full_disk_is_one_message(lab: Lab, size: str) -> None:
    disk = lab.cwd / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this machine does not let root mount a file system")
    try:
        done = lab("toy", "hydra.run.dir=disk/run", "epochs=2000")
        assert done.returncode in (1, 2), done.stderr
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        table = disk / "run" / "metrics.csv"
        assert not table.exists() or table.read_text() == "" or table.read_text().endswith("\n")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
