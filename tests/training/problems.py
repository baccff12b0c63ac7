"""Small problems, nets and runs that the tests of training share."""

from functools import partial
from typing import Any

import torch
from torch import nn

from symlab.data.dataset import Dataset
from symlab.jobs.train import train
from symlab.optim.adam import adam
from symlab.optim.adamw import adamw
from symlab.optim.gd import gd
from symlab.optim.muon import muon
from symlab.optim.sgd import sgd
from symlab.optim.symo import symo
from symlab.plots.loss import loss as loss_plot
from symlab.rundir import Outcome, RunDir
from symlab.schedules.constant import constant
from symlab.training.losses import auto

OPTIMIZERS = {
    "gd": partial(gd, lr=0.1),
    "sgd": partial(sgd, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(adam, lr=0.01),
    "adamw": partial(adamw, lr=0.01),
    "muon": partial(muon, lr=0.02, adamw_lr=0.01),
    "symo": partial(symo, lr=0.02),
}


def regression(rows: int = 10, seed: int = 0, test_rows: int = 7, noise: float = 0.1) -> Dataset:
    """`rows` rows of 4 inputs and 3 targets: a linear map with noise, in float64."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows + test_rows, 4, generator=generator, dtype=torch.float64)
    weights = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    targets = inputs @ weights + noise * torch.randn(rows + test_rows, 3, generator=generator, dtype=torch.float64)
    parts = (inputs[:rows], targets[:rows], inputs[rows:], targets[rows:])
    return Dataset("toy regression", *parts, num_classes=None, references={"zero": 2.0})


def classification(rows: int = 12, classes: int = 3, seed: int = 0) -> Dataset:
    """`rows` training and 8 test rows of 4 inputs, labels by the largest of `classes` linear scores, in float64."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows + 8, 4, generator=generator, dtype=torch.float64)
    labels = (inputs @ torch.randn(4, classes, generator=generator, dtype=torch.float64)).argmax(1)
    parts = (inputs[:rows], labels[:rows], inputs[rows:], labels[rows:])
    return Dataset("toy classes", *parts, num_classes=classes, references={})


def small_net(
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    *,
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> nn.Module:
    """4-5-C with tanh, weights and biases from `generator`."""
    norm = [nn.BatchNorm1d(5)] if batch_norm else []
    drop = [nn.Dropout(dropout)] if dropout else []
    model = nn.Sequential(nn.Linear(input_shape[0], 5), *norm, nn.Tanh(), *drop, nn.Linear(5, output_size))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model


def run_job(run: RunDir, **changes: Any) -> Outcome:
    """`train` on the toy regression with Adam in float64, 4 epochs, no bar; `changes` replace its arguments."""
    arguments: dict[str, Any] = {
        "model": small_net,
        "data": regression,
        "optimizer": OPTIMIZERS["adam"],
        "schedule": constant,
        "loss": auto,
        "plot": loss_plot,
        "dtype": "float64",
        "device": "cpu",
        "epochs": 4,
        "progress": False,
    }
    return train(run, **(arguments | changes))


def rows_without_time(run: RunDir) -> list[dict[str, Any]]:
    """The metrics rows, but for the one column that no two runs share."""
    return [{name: value for name, value in row.items() if name != "time_s"} for row in run.read_rows()]


def assert_same_state(one: Any, other: Any, path: str = "") -> None:
    """Equal bit for bit: nested mappings and sequences of tensors (dtype, values) and plain values."""
    assert type(one) is type(other), path
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, path
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert list(one) == list(other), path
        for key in one:
            assert_same_state(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same_state(left, right, f"{path}/{index}")
    else:
        assert one == other, path
