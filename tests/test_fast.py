"""fast=train scales every experiment of `symlab train` down to three updates on two dozen rows."""

import importlib.util
import shlex
from pathlib import Path

import pytest

from symlab.cli import main
from symlab.rundir import RunDir
from tests.cli_lab import close_handlers

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "conf" / "experiment"
SMALL = {  # by a part of the name: made-up files in place of those that one has to have, small nets and images
    "resnet": ["model.width=4"],
    "cifar": ["model.width=4"],
    "cifar10": ["data=cifar10_synthetic"],
    "cifar100": ["data=cifar100_synthetic"],  # the later one counts
    "imagenet": ["data=imagenet_synthetic", "data.size=32", "data.resize=36", "data.workers=0", "model.width=4"],
}


def of_train(path: Path) -> bool:
    words = shlex.split(path.read_text("utf-8").splitlines()[2].removeprefix("# "))
    return words[:2] == ["symlab", "train"]


EXPERIMENTS = [path.stem for path in sorted(FOLDER.glob("*.yaml")) if of_train(path)]
OFTEN = ("icml2025_tanh_symo", "resnet_digits_symo", "fashion_resnet", "neurips2023_cifar10", "neurips2023_imagenet")
"""One of each kind; the others are slow tests, which differ from these in numbers."""


def test_there_are_experiments_of_train():
    assert len(EXPERIMENTS) > 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all, so that made-up files are written once."""
    return tmp_path_factory.mktemp("fast")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow]) for name in EXPERIMENTS]
)
def test_a_dry_run_takes_three_updates_on_few_rows(name, folder, monkeypatch, capsys):
    if "fashion" in name and not Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("Fashion-MNIST is not installed (Debian package dataset-fashion-mnist)")
    if "digits" in name and importlib.util.find_spec("sklearn") is None:
        pytest.skip("sklearn is not installed")
    monkeypatch.chdir(folder)
    small = {key.partition("=")[0]: key for mark, keys in SMALL.items() if mark in name for key in keys}
    words = [f"experiment={name}", "fast=train", "threads=1", "device=cpu", *small.values()]
    try:
        code = main(["train", *words, f"hydra.run.dir={name}"])
    finally:
        close_handlers()
    assert code == 0, capsys.readouterr().err
    run = RunDir.open(folder / name)
    summary = run.read_summary()
    assert (summary["status"], summary["step"], summary["train_rows"], summary["test_rows"]) == ("completed", 3, 24, 16)
    assert run.read_rows()[-1]["epoch"] == 1.0


def test_what_is_typed_counts_more(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = ("experiment=icml2025_tanh_gd", "fast=train", "max_steps=5", "data.num_train=30", "device=cpu")
    try:
        assert main(["train", *words, "hydra.run.dir=typed"]) == 0, capsys.readouterr().err
    finally:
        close_handlers()
    summary = RunDir.open(folder / "typed").read_summary()
    assert (summary["step"], summary["train_rows"]) == (5, 30)
