"""One update of the weights, refused as a whole when a number in it is not finite."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from symlab.training.factories import Loss, UsesBatch
from symlab.training.randomness import random_state, set_random_state


class DivergedError(Exception):
    """The run met a number that is not finite; `step` is the number of updates done before it."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step = step


def update(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, inputs: Tensor, targets: Tensor, step: int
) -> float:
    """Forward, loss L, backward, then one step of the optimizer; returns L of the batch before the update.

    The loss and all gradients are checked before the optimizer sees them: one maximum over all entries, one copy to the
    host. When one is not finite, or the optimizer refuses the step with a FloatingPointError, weights, optimizer
    statistics, the model's buffers (the forward pass moves those of batch norm) and the global random state are as they
    were before this batch: one rule for every optimizer.

    An optimizer that `UsesBatch` is shown the batch between backward and its step. What it evaluates sees the random
    numbers that the forward pass saw, and moves neither buffers nor the global random state: dropout masks of the next
    batch and running statistics are those of a run with any other optimizer.

    Raises DivergedError naming the step and the first parameter with a bad gradient, or the optimizer's reason.
    """
    buffers = [buffer.clone() for buffer in model.buffers()]
    randomness = random_state(inputs.device)
    optimizer.zero_grad(set_to_none=True)
    value = loss(model(inputs), targets)
    value.backward()
    value = value.detach()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]  # one per tensor
    try:
        if not bool(torch.isfinite(value) & torch.isfinite(largest(gradients))):
            raise FloatingPointError(_what_is_wrong(float(value), model))
        if isinstance(optimizer, UsesBatch):
            _observe_and_step(model, optimizer, loss, inputs, targets, randomness)
        else:
            optimizer.step()
    except FloatingPointError as error:
        optimizer.zero_grad(set_to_none=True)
        set_random_state(randomness, inputs.device)
        _write_back(model, buffers)
        raise DivergedError(step, str(error)) from None
    return float(value)


def _observe_and_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    before: dict[str, Tensor],
) -> None:
    """observe and step under the random state `before` the forward pass; buffers and random state then as found."""
    assert isinstance(optimizer, UsesBatch)
    buffers = [buffer.clone() for buffer in model.buffers()]
    randomness = random_state(inputs.device)
    set_random_state(before, inputs.device)
    try:
        optimizer.observe(loss, inputs, targets)
        optimizer.step()
    finally:
        set_random_state(randomness, inputs.device)
        _write_back(model, buffers)


def largest(tensors: Iterable[Tensor]) -> Tensor:
    """max |entry| over all tensors, as a 0-d tensor; NaN if any entry is NaN. Unlike a 2-norm it cannot overflow."""
    return nn.utils.get_total_norm([tensor for tensor in tensors if tensor.numel()], norm_type=math.inf)


def check_weights(model: nn.Module, step: int) -> None:
    """Raises DivergedError naming the first parameter with an entry that is not finite (a dead unit can hide it)."""
    if bool(torch.isfinite(largest([parameter.detach() for parameter in model.parameters()]))):
        return
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise DivergedError(step, f"the weights of {name!r} are not finite; a smaller lr may help")


def _what_is_wrong(value: float, model: nn.Module) -> str:
    loss_part = f"the loss of the batch is {value}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return f"{loss_part} and the gradient of {name!r} is not finite; the update was not made"
    return f"{loss_part}; the update was not made"


@torch.no_grad()
def _write_back(model: nn.Module, buffers: list[Tensor]) -> None:
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)
