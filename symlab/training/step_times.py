"""Time and memory of optimizers' steps, interleaved, so that other work on the machine hits all alike."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from symlab.training.factories import Loss, UsesBatch
from symlab.training.place import wait_for

FEWEST = 7
"""Steps that an optimizer takes however slow it is."""


def time_steps(
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    repeats: int,
    *,
    limit_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[dict[str, Any]]:
    """Seconds of one training step (forward, backward, update) and of the update alone, `repeats` times for each.

    The update of an optimizer that `UsesBatch` is `observe` and `step`. The optimizers take turns, in another order at
    every repeat (drawn at random, the same in every call). Yields rows {repeat, optimizer, step_time_s, update_time_s}.
    Only ratios within one repeat mean anything on a machine that does other work too. An optimizer that has used
    `limit_s` seconds (None: no limit) and taken FEWEST steps takes no more turns. `clock` gives seconds:
    time.process_time those of the processor alone, on the CPU, which other work on the machine hardly changes.
    """
    names = list(optimizers)
    spent = dict.fromkeys(names, 0.0)
    order = random.Random(0)
    for repeat in range(repeats):
        for name in order.sample(names, len(names)):
            if limit_s is not None and spent[name] > limit_s and repeat >= FEWEST:
                continue
            model, optimizer = models[name], optimizers[name]
            wait_for(inputs.device)
            began = clock()
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            wait_for(inputs.device)
            half = clock()
            if isinstance(optimizer, UsesBatch):
                optimizer.observe(loss, inputs, targets)
            optimizer.step()
            wait_for(inputs.device)
            end = clock()
            spent[name] += end - began
            yield {"repeat": repeat, "optimizer": name, "step_time_s": end - began, "update_time_s": end - half}


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all tensors in the optimizer's state, each counted once."""
    tensors: dict[int, int] = {}
    open_values: list[Any] = list(optimizer.state.values())
    while open_values:
        value = open_values.pop()
        if isinstance(value, Tensor):
            tensors[value.data_ptr()] = value.numel() * value.element_size()
        elif isinstance(value, dict):
            open_values.extend(value.values())
        elif isinstance(value, list | tuple):
            open_values.extend(value)
    return sum(tensors.values())


def ratio(
    rows: Sequence[Mapping[str, Any]], column: str, name: str, reference: str, by: str = "optimizer"
) -> dict[str, float]:
    """Median and quartiles over repeats of column(name) / column(reference), each pair taken in the same repeat; the
    names are in the column `by`.
    """
    times = {(row["repeat"], row[by]): row[column] for row in rows}
    both = [(r, n) for r, n in times if n == name and (r, reference) in times]
    pairs = sorted(times[r, n] / times[r, reference] for r, n in both)
    quartiles = statistics.quantiles(pairs, n=4, method="inclusive") if len(pairs) > 1 else [pairs[0]] * 3
    return {"median": statistics.median(pairs), "low": quartiles[0], "high": quartiles[2]}
