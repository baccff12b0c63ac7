"""Loss and accuracy of a model on a data set, in eval mode.

N rows, evaluated in batches of at most `batch_size`; the result does not depend on that size but for rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from symlab.training.factories import Loss, Stop


def never() -> bool:
    """The `stop` of a run that nobody interrupts."""
    return False


@dataclass(frozen=True)
class Evaluation:
    """Means over N rows: `loss`, and `accuracy` in [0, 1] (None for regression)."""

    loss: float
    accuracy: float | None


@torch.no_grad()
def evaluate(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, *, batch_size: int, stop: Stop = never
) -> Evaluation | None:
    """(1/N) sum_b B_b loss_b over batches of B_b rows, and the fraction of rows whose largest output is the target.

    The sum is kept in float64 and every row counts once, also those of a short last batch. The model is in eval mode
    meanwhile; every module's mode is restored after. `inputs` [N, ...], `targets` [N, C] floating or [N] int64.

    Returns None when `stop()` was true before a batch.
    """
    total, correct = 0.0, 0
    with eval_mode(model):
        for first in range(0, len(inputs), batch_size):
            if stop():
                return None
            outputs = model(inputs[first : first + batch_size])  # [B, C]
            wanted = targets[first : first + batch_size]
            total += float(loss(outputs, wanted)) * len(wanted)
            if not wanted.is_floating_point():
                correct += int((outputs.argmax(1) == wanted).sum())
    accuracy = None if targets.is_floating_point() else correct / len(inputs)
    return Evaluation(loss=total / len(inputs), accuracy=accuracy)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The whole model in eval mode; on exit every module is back in its own mode (also one that was frozen)."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
