"""One update of the weights, refused as a whole when a number in it is not finite."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from symlab.training.execution import PLAIN, Execution
from symlab.training.factories import Loss, UsesBatch
from symlab.training.randomness import random_state, set_random_state


class DivergedError(Exception):
    """The run met a number that is not finite; `step` is the number of updates done before it."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step = step


def update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    step: int,
    how: Execution = PLAIN,
) -> float:
    """Forward, loss L, backward, then one step of the optimizer; returns L of the batch before the update.

    The loss and all gradients are checked before the optimizer sees them: one maximum over all entries, one copy to the
    host. When one is not finite, or the optimizer refuses the step with a FloatingPointError, weights, optimizer
    statistics, the model's buffers (the forward pass moves those of batch norm) and the global random state are as they
    were before this batch: one rule for every optimizer. With a loss scale, gradients that are not finite although L is
    are formed again with a smaller scale, from the same buffers and random numbers.

    An optimizer that `UsesBatch` is shown the batch between backward and its step. What it evaluates sees the random
    numbers that the forward pass saw, and moves neither buffers nor the global random state: dropout masks of the next
    batch and running statistics are those of a run with any other optimizer. It evaluates the model in the dtype of its
    weights, whatever `how` says.

    Raises DivergedError naming the step and the first parameter with a bad gradient, or the optimizer's reason.
    """
    before = Moved(model, inputs.device)
    try:
        value = _differentiate(model, optimizer, loss, inputs, targets, how)
        while how.scale is not None and bool(torch.isfinite(value)) and not _finite_gradients(model):
            how.scale.lower()
            before.restore()
            value = _differentiate(model, optimizer, loss, inputs, targets, how)
        if not bool(torch.isfinite(value) & torch.isfinite(largest(_gradients(model)))):
            raise FloatingPointError(_what_is_wrong(float(value), model))
        if isinstance(optimizer, UsesBatch):
            _observe_and_step(model, optimizer, loss, inputs, targets, before)
        else:
            optimizer.step()
    except FloatingPointError as error:
        optimizer.zero_grad(set_to_none=True)
        before.restore()
        raise DivergedError(step, str(error)) from None
    if how.scale is not None:
        how.scale.count()
    return float(value)


class Moved:
    """What a forward pass moves: the model's buffers and the global random state, as they are when this is made."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model, self.device = model, device
        self.buffers = [buffer.clone() for buffer in model.buffers()]
        self.randomness = random_state(device)

    @torch.no_grad()
    def restore(self) -> None:
        set_random_state(self.randomness, self.device)
        for buffer, before in zip(self.model.buffers(), self.buffers, strict=True):
            buffer.copy_(before)


def _differentiate(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, inputs: Tensor, targets: Tensor, how: Execution
) -> Tensor:
    """The gradients of the batch's loss in every `.grad`; returns the loss."""
    optimizer.zero_grad(set_to_none=True)
    with how.precision(inputs.device):
        value = loss(model(how.arranged(inputs)), targets)
    if how.scale is None:
        value.backward()
    else:
        (value * how.scale.value).backward()
        how.scale.divide_out(_gradients(model))
    return value.detach()


def _gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]  # one per tensor


def _observe_and_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, inputs: Tensor, targets: Tensor, before: Moved
) -> None:
    """observe and step under the random state `before` the forward pass; buffers and random state then as found."""
    assert isinstance(optimizer, UsesBatch)
    after = Moved(model, inputs.device)
    set_random_state(before.randomness, inputs.device)
    try:
        optimizer.observe(loss, inputs, targets)
        optimizer.step()
    finally:
        after.restore()


def largest(tensors: Iterable[Tensor]) -> Tensor:
    """max |entry| over all tensors, as a 0-d tensor; NaN if any entry is NaN. Unlike a 2-norm it cannot overflow."""
    return nn.utils.get_total_norm([tensor for tensor in tensors if tensor.numel()], norm_type=math.inf)


def _finite_gradients(model: nn.Module) -> bool:
    return bool(torch.isfinite(largest(_gradients(model))))


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
