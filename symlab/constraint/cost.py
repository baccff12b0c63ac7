"""What a constraint costs, and what it has made of the weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from symlab.constraint.clock import seconds
from symlab.constraint.constrain import constrained
from symlab.constraint.plain_weights import weights


@dataclass(frozen=True)
class Cost:
    """Of a constrained model over the plain one. Bytes of weights, and of the optimizer's state where it was given."""

    parameters: int
    plain_parameters: int
    extra_bytes: int
    optimizer_bytes: int | None
    weights_time_s: float | None  # to form all constrained weights and differentiate them, once; the least of repeats

    @property
    def extra_parameters(self) -> int:
        return self.parameters - self.plain_parameters


def cost(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, repeats: int = 0) -> Cost:
    """Parameters, memory, and with `repeats` > 0 the time that theta = P(u * w) + (I - P) v takes in every step.

    `optimizer_bytes` counts all tensors of the optimizer's state, so steps must have been taken. The time is that of
    forming all constrained weights and of their backward pass, once, without the rest of the model.

    Raises ValueError if nothing is constrained.
    """
    found = list(constrained(model))
    if not found:
        raise ValueError("no weight of this model is constrained: call constrain(model, ...) first")
    with torch.no_grad():
        thetas = [getattr(each.module, each.own) for each in found]
    parts = [part for each in found for part in each.parts]
    extra = sum(p.numel() for p in parts) - sum(theta.numel() for theta in thetas)
    total = sum(p.numel() for p in model.parameters())
    return Cost(
        parameters=total,
        plain_parameters=total - extra,
        extra_bytes=_bytes(parts) - _bytes(thetas),
        optimizer_bytes=None if optimizer is None else _bytes(_tensors(optimizer.state)),
        weights_time_s=min((_time(model) for _ in range(repeats + 1)), default=None) if repeats else None,
    )


def census(model: nn.Module) -> list[dict[str, Any]]:
    """Rows {tensor, entries, zeros, outputs, zero_outputs, distinct_outputs, inputs, zero_inputs}: exact counts.

    For every weight with two or more axes, constrained or not; after `collapse`. Outputs are rows along axis 0, inputs
    slices along axis 1; distinct rows are equal bit for bit.
    """
    rows = []
    for weight in weights(model):
        theta = weight.value.detach()
        if theta.ndim < 2:
            continue
        outputs, inputs = theta.flatten(1), theta.transpose(0, 1).flatten(1)
        rows.append(
            {
                "tensor": weight.name,
                "entries": theta.numel(),
                "zeros": int((theta == 0).sum()),
                "outputs": len(outputs),
                "zero_outputs": int((outputs == 0).all(1).sum()),
                "distinct_outputs": len(outputs.unique(dim=0)),
                "inputs": len(inputs),
                "zero_inputs": int((inputs == 0).all(1).sum()),
            }
        )
    return rows


@torch.no_grad()
def zero_share(model: nn.Module, threshold: float = 1e-6) -> float | None:
    """Share of the entries |theta| <= threshold of all weights that `constrain` has changed; None if there are none."""
    found = [getattr(each.module, each.own) for each in constrained(model)]
    entries = sum(theta.numel() for theta in found)
    return sum(int((theta.abs() <= threshold).sum()) for theta in found) / entries if found else None


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _tensors(value: Any) -> list[Tensor]:
    """All tensors in dicts, lists and tuples."""
    if isinstance(value, Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [tensor for part in inner for tensor in _tensors(part)]


def _time(model: nn.Module) -> float:
    found = list(constrained(model))
    parts = [part for each in found for part in each.parts if part.requires_grad]
    device = found[0].parts[0].device
    began = seconds(device)
    thetas = [theta for each in found if (theta := getattr(each.module, each.own)).requires_grad]
    if thetas:
        torch.autograd.grad(thetas, parts, thetas)
    return seconds(device) - began
