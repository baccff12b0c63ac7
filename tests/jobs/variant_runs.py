"""Run directories of two shortcuts, made up as the training job leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from symlab.rundir import RunDir

PER_EPOCH = 4  # updates


def write_trial(
    path: Path,
    *,
    shortcut: str | None = "conv",
    lr: float = 0.1,
    seed: int = 0,
    status: str | None = "completed",
    losses: tuple[float, ...] = (2.0, 1.0, 0.5),
    accuracies: tuple[float, ...] | None = None,
    steps: tuple[int, ...] | None = None,
    **config: Any,
) -> Path:
    """`losses`: batch_loss of all rows but the first, at `steps` (None: an epoch each); status None: it died."""
    path.mkdir(parents=True)
    run = RunDir(path)
    model = {"_target_": "symlab.models.preact_resnet18.preact_resnet18", "width": 16}
    keys = {
        "seed": seed,
        "epochs": 3,
        "model": model if shortcut is None else model | {"shortcut": shortcut},
        "data": {"_target_": "symlab.data.cifar10.cifar10", "seed": 0},
        "optimizer": {"_target_": "symlab.optim.sgd.sgd", "lr": lr},
    }
    run.write_config(yaml.safe_dump(keys | config), [])
    run.write_environment({})
    steps = steps or tuple(PER_EPOCH * (number + 1) for number in range(len(losses)))
    if not losses and status == "completed":  # an estimate: no training
        run.write_summary({"status": status})
        return path
    values: list[float | None] = [None, *losses]
    run.append_rows(
        [
            {
                "step": step,
                "epoch": step / PER_EPOCH,
                "lr": lr,
                "test_loss": 1.0,
                **({} if accuracies is None else {"test_accuracy": accuracies[number]}),
                "batch_loss": values[number],
                "time_s": 0.1 * step,
            }
            for number, step in enumerate((0, *steps))
        ]
    )
    if status is not None:
        run.write_summary({"status": status})
    return path


def write_sweep(folder: Path, seeds: int = 10, rates: Sequence[float] = (0.02, 0.1, 0.2), epochs: int = 20) -> None:
    """Both shortcuts at several rates, avgpool_conv better; at 0.2 the first six trials of conv diverged."""
    draws = np.random.default_rng(3)
    for lr in rates:
        for seed in range(seeds):
            start = draws.normal(0, 0.1)
            for number, shortcut in enumerate(("avgpool_conv", "conv")):
                diverged = shortcut == "conv" and lr == 0.2 and seed < 6
                count = 3 if diverged else epochs
                decay = np.exp(-np.arange(1, count + 1) * (0.1 + lr) * (1.2 - 0.1 * number))
                losses = (2.3 + start) * decay * np.exp(0.1 * draws.normal(size=count)) + 0.02
                correct = 0.93 - 0.3 * losses / losses[0]
                if diverged:
                    losses, correct = np.array([3.0, 40.0, 900.0]), np.full(3, 0.1)
                write_trial(
                    folder / f"lr-{lr}-{shortcut}-{seed}",
                    shortcut=shortcut,
                    lr=lr,
                    seed=seed,
                    status="diverged" if diverged else "completed",
                    losses=tuple(float(value) for value in losses),
                    accuracies=tuple(float(value) for value in (0.1, *correct)),
                )
