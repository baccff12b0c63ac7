"""The commands of docs/sweeps.md and docs/skip_training.md for a cluster: symlab takes the arguments of each, and the
tables of sweeps.md say what the scripts do."""

import importlib.util
import re
import shlex
from collections.abc import Iterator

import pytest

from symlab.cli import main
from tests.scripts.stand_ins import SCRIPTS

DOCS = SCRIPTS.parent / "docs"
PAGES = ("sweeps.md", "skip_training.md")


def commands(page: str) -> Iterator[str]:
    """The lines of the page's shell blocks, a loop's as those of its body."""
    for block in re.findall(r"^```sh\n(.*?)^```$", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            yield re.sub(r"^for optimizer in .*; do (.*); done$", r"\1", line).replace("$optimizer", "gd")


def symlab_arguments(line: str) -> list[str] | None:
    """What symlab gets by that line, a grid's as a sweep; None for a line of another program."""
    words = [word for word in shlex.split(line) if not word.startswith("SYMLAB_PYTHON=")]
    if words[0] == "symlab":
        return words[1:]
    if words[0] == "torchrun":
        return words[words.index("symlab") + 1 :]
    if words[0] != "sbatch":
        return None
    position = next(number for number, word in enumerate(words) if word.endswith(".sbatch"))
    assert (SCRIPTS.parent / words[position]).is_file()
    assert all(word.startswith("--") for word in words[1:position])
    given = words[position + 1 :]
    if words[position].endswith("grid.sbatch"):
        assert "--" in given
        check_array(words[1:position], given[given.index("--") + 1 :])
        given = ["-m", *(word for word in given if word not in ("--", "-m"))]
    return ["train", *given]


def check_array(options: list[str], axes: list[str]) -> None:
    """The array has one task per combination."""
    (array,) = [word.removeprefix("--array=").partition("%")[0] for word in options if word.startswith("--array=")]
    combinations = 1
    for axis in axes:
        combinations *= len(axis.split(","))
    assert array == f"0-{combinations - 1}"


def test_other_programs_of_the_pages():
    others = {shlex.split(line)[0] for page in PAGES for line in commands(page) if symlab_arguments(line) is None}
    assert others == {"pip", "mkdir"}


LINES = [(page, line) for page in PAGES for line in commands(page) if symlab_arguments(line) is not None]
CLUSTER = [(page, line) for page, line in LINES if page == "sweeps.md" or not line.startswith("symlab")]


@pytest.mark.parametrize(("page", "line"), CLUSTER, ids=[f"{page}: {line}" for page, line in CLUSTER])
def test_symlab_takes_the_arguments(page, line, tmp_path, monkeypatch, capsys):
    """--help checks the other arguments first: names of groups and options, and Hydra's grammar."""
    arguments = symlab_arguments(line)
    launcher = next((word for word in arguments if word.startswith("hydra/launcher=")), "").partition("=")[2]
    plugin = f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher"
    if launcher and (not importlib.util.find_spec("hydra_plugins") or not importlib.util.find_spec(plugin)):
        pytest.skip(f"{plugin} is not installed")
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--help"]) == 0, capsys.readouterr().err
    assert "symlab" in capsys.readouterr().out


def test_the_page_names_what_the_scripts_do():
    text = (DOCS / "sweeps.md").read_text()
    for script in ("train.sbatch", "seeds.sbatch", "grid.sbatch", "distributed.sbatch"):
        directives = (SCRIPTS / script).read_text()
        assert f"(../scripts/{script})" in text
        (notice,) = re.findall(r"#SBATCH --signal=USR1@(\d+)", directives)
        (cores,) = re.findall(r"#SBATCH --cpus-per-task=(\d+)", directives)
        (requeues,) = re.findall(r"SYMLAB_MAX_REQUEUES:-(\d+)", directives)
        assert f"| {notice} s before the time limit |" in text
        assert f"`distributed`: {cores})" in text if script == "distributed.sbatch" else f"({cores};" in text
        assert f"at most {requeues} times" in text
