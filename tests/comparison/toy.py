"""A toy problem whose runs take milliseconds: least squares of two weights, with optimizers to order."""

from functools import partial

import torch
from torch import nn

from symlab.comparison.trial import Task, Trial
from symlab.data.dataset import Dataset
from symlab.search import Tunable
from symlab.training.losses import half_mean_squared_error


def line(*, seed=0, rows=40):
    """y = X w + noise with w drawn from the seed."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(2, 1, generator=generator)
    inputs = torch.randn(2 * rows, 2, generator=generator)
    targets = inputs @ weights + 0.1 * torch.randn(2 * rows, 1, generator=generator)
    split = (inputs[:rows], targets[:rows], inputs[rows:], targets[rows:])
    return Dataset("line", *split, references={"noise": 0.005})


def linear(input_shape, output_size, generator):
    net = nn.Linear(input_shape[0], output_size)
    for parameter in net.parameters():
        nn.init.normal_(parameter, generator=generator)
    return net


def descent(model, inputs, *, lr=0.1, fail_above=1e9):
    """Gradient descent, refusing a rate above `fail_above` as a bug in a library would."""
    if lr > fail_above:
        raise RuntimeError(f"no such rate:\n{lr}")
    return torch.optim.SGD(model.parameters(), lr=lr)


def steady(step, total_steps):
    return 1.0


def falling(step, total_steps, *, final=0.1):
    return final ** (step / total_steps)


RATES = {"lr": {"low": 1e-3, "high": 1.0, "scale": "log"}}
FINALS = {"final": {"low": 1e-2, "high": 1.0, "scale": "log"}}


def task(**changes):
    values = {
        "model": linear,
        "data": line,
        "loss": half_mean_squared_error,
        "steps": 10,
        "batch_size": 8,
        "warmup_steps": 0,
        "eval_batch_size": 100,
        "dtype": "float32",
        "vary_data": True,
        "validation_fraction": 0.25,
        "deterministic": True,
    }
    return Task(**{**values, **changes})


def trial(label="descent", seed=0, split="test", settings=None, **options):
    optimizer = Tunable(descent, {"lr": 0.1} | options, RATES)
    return Trial(
        label, optimizer, Tunable(falling, {"final": 0.1}, FINALS), "falling", seed, split, 5, None, settings or {}
    )


quick = partial(task, steps=4)
