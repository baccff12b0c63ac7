"""Fixtures that several test files share."""

from pathlib import Path

import pytest
from tests.cli_lab import Lab, plant


@pytest.fixture(scope="session")
def toy_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A symlab with the job `toy`; see tests/cli_lab.py."""
    tree = tmp_path_factory.mktemp("toy_tree")
    plant(tree)
    return tree


@pytest.fixture
def lab(toy_tree: Path, tmp_path: Path) -> Lab:
    """Runs command lines of that symlab in an empty directory."""
    return Lab(toy_tree, tmp_path)
