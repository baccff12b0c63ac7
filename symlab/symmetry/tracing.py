"""A network's forward pass as a graph of ATen operators, traced on tensors without data.

torch.fx's make_fx runs the forward once under fake tensors, so nothing is computed, no state of the model changes
and no random number is drawn; modules and functional forms (nn.Linear, F.linear, x @ W.T) all arrive as ATen
operators. Its start-up cost is torch's own import of its compiler, which every torch optimizer pays as well when it
is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

Inputs = Any  # a tensor, or a (nested) tuple or dict of tensors; a tuple holds the forward's positional arguments


@dataclass(frozen=True)
class Trace:
    """graph: its placeholders are, in this order, the parameters, the buffers and the inputs' leaves."""

    graph: torch.fx.Graph
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    inputs: Sequence[Tensor]


def call_model(model: nn.Module, state: Mapping[str, Tensor], inputs: Inputs) -> Any:
    """The model's output with its parameters and buffers replaced by `state`; the model itself stays as it is."""
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return torch.func.functional_call(model, dict(state), arguments)


def trace(model: nn.Module, inputs: Inputs) -> Trace:
    """Trace the forward pass in the model's present mode (train or eval).

    Raises ValueError if there is nothing to trace (no parameters, uninitialised or empty ones, empty inputs) or if
    the forward pass branches on the values of tensors, and TypeError if inputs hold anything but tensors.
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    leaves, structure = tree_flatten(inputs)
    _check(model, parameters, leaves)
    names = [*parameters, *buffers]

    def forward(*tensors: Tensor) -> Any:
        state = dict(zip(names, tensors, strict=False))
        return tree_leaves(call_model(model, state, tree_unflatten(list(tensors[len(names) :]), structure)))

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    tensors = [fake.from_tensor(tensor.detach()) for tensor in (*parameters.values(), *buffers.values(), *leaves)]
    tracer = make_fx(forward, tracing_mode="fake", pre_dispatch=True, _allow_non_fake_inputs=True)
    try:
        with torch.no_grad(), torch._dynamo.config.patch(error_on_nested_fx_trace=False):
            module = tracer(*tensors)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ValueError(
            f"cannot infer the symmetry of {type(model).__name__}: its forward pass depends on the values of tensors "
            f"through {error.func} (if x.sum() > 0, x.item(), x[mask]); remove that from the forward, or write the "
            "axes by hand with WeightSymmetry(axes, shapes, groups)"
        ) from error
    except RuntimeError as error:
        shapes = [tuple(leaf.shape) for leaf in leaves]
        raise ValueError(
            f"cannot trace the forward pass of {type(model).__name__} on inputs of shapes {shapes}: {error}"
        ) from error
    return Trace(module.graph, parameters, buffers, leaves)


def _check(model: nn.Module, parameters: Mapping[str, Tensor], leaves: Sequence[Any]) -> None:
    name = type(model).__name__
    if isinstance(model, nn.DataParallel):
        raise ValueError("DataParallel only wraps a model, and cannot be traced: give its model.module")
    if not parameters:
        raise ValueError(f"{name} has no parameters, so there is no symmetry to infer")
    for key, parameter in parameters.items():
        if nn.parameter.is_lazy(parameter):
            raise ValueError(f"parameter {key} of {name} is not initialised: run one forward pass first")
        if parameter.is_complex():
            raise ValueError(
                f"parameter {key} of {name} is complex ({parameter.dtype}): only real parameters are supported"
            )
        if parameter.numel() == 0:
            raise ValueError(
                f"parameter {key} of {name} is empty, shape {tuple(parameter.shape)}: every dimension must be >= 1"
            )
    if not leaves:
        raise ValueError(f"inputs must hold at least one tensor, got {leaves}")
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise TypeError(f"inputs must be a tensor or a tuple of tensors, got a {type(leaf).__name__}: {leaf!r}")
        if leaf.numel() == 0:
            raise ValueError(f"inputs must not be empty, got shape {tuple(leaf.shape)}: give at least one row")
