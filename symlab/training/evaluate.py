"""Loss and accuracy of a model on a data set, in eval mode.

N rows, evaluated in batches; the result does not depend on their size but for rounding.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from symlab.training.execution import PLAIN, Execution
from symlab.training.factories import Loss, Stop


def never() -> bool:
    """The `stop` of a run that nobody interrupts."""
    return False


@dataclass(frozen=True)
class Evaluation:
    """Means over N rows: `loss`, and `accuracy` in [0, 1] (None for regression)."""

    loss: float
    accuracy: float | None


@dataclass(frozen=True)
class Totals:
    """Sums over `rows` rows, so that those of several processes can be added: of the losses, and of the rows whose
    largest output is the target (0 for regression)."""

    loss: float
    correct: int
    rows: int

    def mean(self, labelled: bool) -> Evaluation:
        """Means over the rows; an accuracy only if the rows are `labelled` with classes."""
        return Evaluation(self.loss / self.rows, self.correct / self.rows if labelled else None)


def evaluate(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    *,
    batch_size: int,
    stop: Stop = never,
    how: Execution = PLAIN,
) -> Evaluation | None:
    """`totals` of rows in memory in batches of at most `batch_size`, divided by N.

    `inputs` [N, ...], `targets` [N, C] floating or [N] int64. Returns None when `stop()` was true before a batch.
    """
    found = totals(model, pairs(inputs, targets, batch_size), loss, stop=stop, how=how)
    return None if found is None else found.mean(labelled=not targets.is_floating_point())


@torch.no_grad()
def totals(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Loss,
    *,
    stop: Stop = never,
    how: Execution = PLAIN,
) -> Totals | None:
    """sum_b B_b loss_b over (inputs, targets) of B_b rows each, and the number of rows whose largest output is the
    target.

    The sum is kept in float64 and every row counts once, also those of a short last batch. The model is in eval mode
    meanwhile; every module's mode is restored after. `how` is that of the updates. Inputs [B, ...], targets [B, C]
    floating or [B] int64.

    Returns None when `stop()` was true before a batch.
    """
    total, correct, rows = 0.0, 0, 0
    with eval_mode(model):
        for inputs, targets in batches:
            if stop():
                return None
            outputs, value = how.outputs_and_loss(model, loss, inputs, targets)  # [B, C], []
            total += float(value) * len(targets)
            rows += len(targets)
            if not targets.is_floating_point():
                correct += int((outputs.argmax(1) == targets).sum())
    return Totals(total, correct, rows)


def pairs(inputs: Tensor, targets: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows in memory as (inputs, targets) of at most `batch_size` rows each, in order."""
    for first in range(0, len(inputs), batch_size):
        yield inputs[first : first + batch_size], targets[first : first + batch_size]


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
