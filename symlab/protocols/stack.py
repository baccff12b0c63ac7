"""Many small nets of one form trained side by side, as one computation: S nets, each with its own rate and decay.

Legend: S  nets;  B  rows of a batch;  C  outputs.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from symlab.training.factories import Loss


def combinations(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of the values, the last axis fastest: combinations(lr=[.1, 1], seed=[0, 1]) has four."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def column(labels: Sequence[Mapping[str, Any]], name: str, like: Tensor) -> Tensor:
    """[S]: one entry of every label, in the dtype and on the device of `like`."""
    return torch.tensor([label[name] for label in labels], dtype=like.dtype, device=like.device)


class Stack:
    """S nets of one form: `parameters` [S, *shape] (leaves with gradients), `buffers` [S, *shape], by the form's names.

    The nets must have the same modules, shapes, dtype and device; they are copied. In training mode batch norm moves
    each net's own running statistics.

    Raises ValueError without nets, and for frozen parameters: freeze by a buffer.
    """

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        if not nets:
            raise ValueError("a stack needs at least one net")
        frozen = [name for name, p in nets[0].named_parameters() if not p.requires_grad]
        if frozen:
            raise ValueError(f"a stack trains all parameters, and {frozen[0]} has requires_grad=False")
        parameters, self.buffers = stack_module_state(list(nets))
        self.parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        self.form = nets[0]

    def __len__(self) -> int:
        return len(next(iter(self.parameters.values())))

    def outputs(self, inputs: Tensor, *, shared: bool) -> Tensor:
        """[S, B, C] from inputs [B, ...] that all nets share, or from [S, B, ...]."""

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], rows: Tensor) -> Tensor:
            return functional_call(self.form, {**parameters, **buffers}, (rows,))

        run = vmap(one, in_dims=(0, 0, None if shared else 0), randomness="different")
        return run(self.parameters, self.buffers, inputs)

    def losses(self, loss: Loss, inputs: Tensor, targets: Tensor, *, shared: bool) -> Tensor:
        """[S]: each net's mean loss over its rows."""
        return vmap(loss, in_dims=(0, None if shared else 0))(self.outputs(inputs, shared=shared), targets)

    @torch.no_grad()
    def net(self, index: int) -> nn.Module:
        """A copy of the form with the weights and buffers of net `index`."""
        net = copy.deepcopy(self.form)
        for name, tensor in (*net.named_parameters(), *net.named_buffers()):  # also those that no state_dict has
            tensor.copy_((self.parameters if name in self.parameters else self.buffers)[name][index])
        return net

    def state(self) -> dict[str, dict[str, Tensor]]:
        """What `restore` needs; a copy."""
        return {
            "parameters": {name: p.detach().clone() for name, p in self.parameters.items()},
            "buffers": {name: b.clone() for name, b in self.buffers.items()},
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Weights and buffers of a `state` of the same stack."""
        for own, kept in ((self.parameters, state["parameters"]), (self.buffers, state["buffers"])):
            for name, values in own.items():
                values.copy_(kept[name])


@dataclass
class StackedSGD:
    """m <- momentum m + g + decay p;  p <- p - lr m  for each net of the stack with its own `lr` [S] and `decay` [S].

    torch.optim.SGD on every net apart, as one computation. A net whose loss, gradient or weights are no longer finite
    stays where it was and is no longer `alive` [S].
    """

    stack: Stack
    lr: Tensor  # [S]
    decay: Tensor  # [S]
    momentum: float = 0.0
    alive: Tensor = field(init=False)  # [S]
    moments: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.alive = torch.ones(len(self.stack), dtype=torch.bool, device=self.lr.device)
        self.moments = {name: torch.zeros_like(p) for name, p in self.stack.parameters.items()}

    def backward(self, losses: Tensor) -> None:
        """The gradients of each net's own loss, from `losses` [S]; earlier ones are gone."""
        parameters = self.stack.parameters
        found = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True, materialize_grads=True)
        self.alive &= losses.detach().isfinite()
        for p, gradient in zip(parameters.values(), found, strict=True):
            p.grad = gradient

    @torch.no_grad()
    def step(self) -> None:
        """One update of every net that is alive, from the gradients in `.grad` [S, *shape]."""
        moves = {}
        for name, p in self.stack.parameters.items():
            assert p.grad is not None, "call backward first"
            gradient = p.grad + _each(self.decay, p) * p
            moves[name] = self.momentum * self.moments[name] + gradient if self.momentum else gradient
        for name, p in self.stack.parameters.items():
            after = p - _each(self.lr, p) * moves[name]
            self.alive &= after.flatten(1).isfinite().all(1)
        for name, p in self.stack.parameters.items():
            live = _each(self.alive, p)
            p.copy_(torch.where(live, p - _each(self.lr, p) * moves[name], p))
            self.moments[name] = torch.where(live, moves[name], self.moments[name])

    def state(self) -> dict[str, Any]:
        """What `restore` needs, with that of the stack."""
        moments = {name: m.clone() for name, m in self.moments.items()}
        return {"stack": self.stack.state(), "moments": moments, "alive": self.alive.clone()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same nets."""
        self.stack.restore(state["stack"])
        self.moments = {name: m.to(self.lr.device) for name, m in state["moments"].items()}
        self.alive = state["alive"].to(self.lr.device)


def _each(values: Tensor, p: Tensor) -> Tensor:
    """[S] -> [S, 1, ...], to go with p [S, *shape]."""
    return values.view(-1, *[1] * (p.ndim - 1))
