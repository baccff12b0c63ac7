"""Fixtures that several test files share."""

import logging
from pathlib import Path

import pytest

import symlab.jobs
import symlab.optim
from symlab.cli import listing
from tests.cli_lab import TOY, Here, Lab, plant


@pytest.fixture(scope="session")
def toy_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A symlab with the job `toy`; see tests/cli_lab.py."""
    tree = tmp_path_factory.mktemp("toy_tree")
    plant(tree)
    return tree


@pytest.fixture
def lab(toy_tree: Path, tmp_path: Path) -> Lab:
    """Runs command lines of that symlab in an empty directory, each in its own process."""
    return Lab(toy_tree, tmp_path)


@pytest.fixture
def here(toy_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Runs command lines of that symlab in an empty directory, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(listing, "__file__", str(toy_tree / "symlab" / "cli" / "listing.py"))
    for package, name in ((symlab.jobs, "jobs"), (symlab.optim, "optim")):
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(TOY / name)])
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    return Here(tmp_path, capsys)
