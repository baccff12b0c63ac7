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
    rows: int | None = None,
) -> float:
    """Forward, loss L, backward, then one step of the optimizer; returns L of the batch before the update.

    With several pieces or processes the batch has parts of B_k rows: L = sum_k (B_k / B) L_k, and gradients alike, so
    the update is that of the whole batch to rounding, but for batch norm (each part has statistics of its own, and the
    running ones move once per piece) and dropout. `rows` is B where `inputs` are one process's share of the batch.

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
    optimizer.zero_grad(set_to_none=True)
    try:
        value = differentiate(model, loss, inputs, targets, how, rows)
        while how.scale is not None and bool(torch.isfinite(value)) and not _finite_gradients(model):
            how.scale.lower()
            before.restore()
            optimizer.zero_grad(set_to_none=True)
            value = differentiate(model, loss, inputs, targets, how, rows)
        gradients = _gradients(model)
        size = largest(gradients) if how.clip_norm is None else nn.utils.get_total_norm(gradients)
        if not bool(torch.isfinite(value) & torch.isfinite(size)):
            raise FloatingPointError(_what_is_wrong(float(value), model))
        if how.clip_norm is not None:
            _clip(gradients, size, how.clip_norm)
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


def differentiate(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, how: Execution, rows: int | None
) -> Tensor:
    """Add the gradients of the batch's loss to every `.grad`; returns the loss, a 0-d tensor."""
    processes, rows = how.processes, rows or len(inputs)
    pieces = how.pieces(inputs, targets)
    parts = []
    for number, (piece, wanted) in enumerate(pieces, start=1):
        with processes.own_part(last=number == len(pieces)):
            _, value = how.outputs_and_loss(processes.network(model), loss, piece, wanted)
            share = len(piece) / rows
            factor = share * processes.share.world * (1.0 if how.scale is None else how.scale.value)
            (value if factor == 1 else value * factor).backward()  # the network averages over the processes
        parts.append(value.detach() if share == 1 else value.detach() * share)
    if how.scale is not None:
        how.scale.divide_out(_gradients(model))
    total = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
    return processes.sum_tensor(total)


def _clip(gradients: list[Tensor], norm: Tensor, limit: float) -> None:
    """g <- g min(1, limit / ||g||_2) for all tensors together, in place."""
    torch._foreach_mul_(gradients, (limit / norm).clamp(max=1.0))


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
    reason = "; the 2-norm of its gradients overflows" if math.isfinite(value) else ""
    return f"{loss_part}{reason}; the update was not made"
