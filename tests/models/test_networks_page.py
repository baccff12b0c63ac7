"""The table of symlab's own models in docs/networks.md, row by row."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "networks.md").read_text("utf-8")
ROWS = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
MODELS = {row[0]: row[1:] for row in ROWS if len(row) == 5}


def weights(name, classes, **keys):
    make = getattr(import_module(f"symlab.models.{name}"), name)
    model = make(keys.pop("shape", (3, 32, 32)), classes, torch.Generator().manual_seed(0), **keys)
    return f"{sum(p.numel() for p in model.parameters()):,}"


def test_every_residual_net_is_in_the_table():
    options = {path.stem for path in (ROOT / "conf" / "model").glob("*resnet*.yaml")} - {"normalised_resnet"}
    assert set(MODELS) == options


@pytest.mark.parametrize("name", MODELS)
def test_every_row_of_the_table(name):
    small, large, *_ = MODELS[name]
    assert (weights(name, 10), weights(name, 1000, stem="imagenet")) == (small, large)


def test_the_mnist_nets_sizes():
    sizes = [
        weights("mnist_skip_net", 10, shape=(1, 28, 28), variant=variant, layers=layers)
        for variant, layers in (("chain", "code"), ("res", "code"), ("chain", "text"))
    ]
    assert sizes == ["9,850", "9,970", "10,490"]
    assert all(re.search(rf"\b{size}\b", PAGE) for size in sizes)
