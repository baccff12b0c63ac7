"""The table of docs/networks.md, row by row; and torchvision's nets in training mode."""

import re
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
import torchvision

from symlab.symmetry import inspect_symmetry
from symlab.symmetry.tables import share_on_axes

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
ROWS = [re.findall(r"[^|]+", line) for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
TABLE = {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in ROWS if len(cells) == 9}
MODELS = ["resnet18", "resnet50", "vgg11", "mobilenet_v3_small", "convnext_tiny", "vit_b_16", "densenet121"]


def test_the_table_has_the_models():
    assert list(TABLE) == MODELS


def inspected(name, size, training):
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None).train(training)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is free that was not expected to be
        return inspect_symmetry(model, torch.randn(2 if training else 1, 3, size, size), verify=not training)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_row_of_the_table(name):
    size, weights, uncovered, axes, blocks, factors, largest, groups = TABLE[name]
    found = inspected(name, int(size), training=False)
    symmetry = found.symmetry
    off = round((1 - share_on_axes(symmetry)) * symmetry.num_parameters)
    assert f"{symmetry.num_parameters:,}" == weights
    assert f"all but {off:,}" == uncovered
    assert (len(symmetry.groups), len(symmetry.blocks)) == (int(axes), int(blocks))
    assert f"{symmetry.num_factors:,}" == factors
    assert f"{max(block.copies for block in symmetry.blocks):,}" == largest
    count = Counter(group.name[0].replace("S", "B") for group in symmetry.groups.values())
    assert ", ".join(f"{n} {letter}" for letter, n in sorted(count.items(), reverse=True)) == groups
    free = {axis.role for axis in found.axes if axis.error is None and axis.size > 1}
    assert free <= {"input", "output", "kernel", "position", "free"}
    assert [axis.label for axis in found.axes if axis.error is None and axis.role == "free" and axis.size > 1] == []
    assert max(axis.error for axis in found.axes if axis.error is not None) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "convnext_tiny", "densenet121"])
def test_training_mode_gives_the_same_axes(name):
    _, _, _, axes, blocks, factors, *_ = TABLE[name]
    symmetry = inspected(name, 64, training=True).symmetry
    assert (len(symmetry.groups), len(symmetry.blocks)) == (int(axes), int(blocks))
    assert f"{symmetry.num_factors:,}" == factors


def test_a_small_net_of_torchvision_has_its_row():
    symmetry = inspected("mobilenet_v3_small", 32, training=True).symmetry
    assert f"{symmetry.num_factors:,}" == TABLE["mobilenet_v3_small"][5]
