"""Axes carried through a trace: every operation's handler applied in order."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from symlab.symmetry.axis_table import INPUT, OUTPUT, AxisTable, Reason, Value
from symlab.symmetry.handlers.table import Call, is_moving, lookup
from symlab.symmetry.tracing import Trace
from symlab.symmetry.waiting_cuts import WaitingCuts

UNKNOWN_RESULT = Reason("result of an operation without handler", expected=True)


@dataclass(frozen=True)
class Propagation:
    """The axes of every parameter, after all rules."""

    axes: AxisTable
    parameters: Mapping[str, Value]


def propagate(trace: Trace) -> Propagation:
    """Run the handlers over the graph."""
    axes = AxisTable()
    cuts = WaitingCuts(axes)
    parameters = {name: axes.new_value(tensor.shape, source=name) for name, tensor in trace.parameters.items()}
    buffers = [axes.new_value(t.shape, _constant(f"buffer {name}"), name) for name, t in trace.buffers.items()]
    inputs = [replace(axes.new_value(tensor.shape, INPUT), of_input=True) for tensor in trace.inputs]
    placeholders = iter([*parameters.values(), *buffers, *inputs])
    results: dict[torch.fx.Node, Any] = {}
    for node in trace.graph.nodes:
        if node.op == "placeholder":
            results[node] = next(placeholders)
        elif node.op == "get_attr":
            shape = getattr(node.meta.get("val"), "shape", ())
            results[node] = axes.new_value(shape, _constant("a constant tensor"))
        elif node.op == "call_function":
            results[node] = _apply(axes, cuts, node, results)
        else:
            returned = tree_leaves(torch.fx.node.map_arg(node.args, results.__getitem__))
            values = [value for value in returned if isinstance(value, Value)]
            cuts.settle(values)
            axes.pin([axis for value in values for axis in value.axes], OUTPUT)
    return Propagation(axes, parameters)


def _constant(what: str) -> Reason:
    return Reason(f"{what} lies along the axis and does not move with it")


def _apply(axes: AxisTable, cuts: WaitingCuts, node: torch.fx.Node, results: Mapping[torch.fx.Node, Any]) -> Any:
    args: Any = torch.fx.node.map_arg(node.args, results.__getitem__)
    kwargs: Any = torch.fx.node.map_arg(node.kwargs, results.__getitem__)
    if node.target is operator.getitem:
        return args[0][args[1]]
    output = node.meta.get("val")
    shapes = tuple(tuple(leaf.shape) for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
    if not shapes:
        return output
    call = Call(str(node.target), _named(node.target, args, kwargs), shapes, cuts)
    handler, axes.operator = lookup(node.target), call.operator
    if not is_moving(handler):
        cuts.settle(call.values())
    result = None if handler is None else handler(axes, call)
    if result is None:
        result = _unknown(axes, call, output, "no handler" if handler is None else "no handler for this form")
        return _after(call, node, result)
    values = result if isinstance(result, tuple) else (result,)
    if tuple(axes.shape(value) for value in values) != shapes:
        found = [axes.shape(value) for value in values]
        raise RuntimeError(
            f"the handler of {call.operator} gave axes of shapes {found}, the outputs have {list(shapes)}"
        )
    return _after(call, node, result)


def _after(call: Call, node: torch.fx.Node, result: Any) -> Any:
    """The outputs, marked if they depend on the model's inputs; zeros that are written to later are none."""
    of_input = any(value.of_input for value in call.values())
    written = any(_takes_alias(user.target) for user in node.users)

    def marked(leaf: Any) -> Any:
        if not isinstance(leaf, Value):
            return leaf
        return replace(leaf, of_input=of_input, zero=leaf.zero and not written)

    return tree_map(marked, result)


def _takes_alias(target: Any) -> bool:
    """Whether the operator writes to an argument, or gives a view of one, through which it can be written to."""
    schema = getattr(target, "_schema", None)
    return schema is not None and any(argument.alias_info is not None for argument in schema.arguments)


def _named(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(target, torch._ops.OpOverload):
        return {**{str(place): arg for place, arg in enumerate(args)}, **kwargs}
    schema = target._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema}
    given = {argument.name: arg for argument, arg in zip(schema, args, strict=False)}
    return {**defaults, **given, **kwargs}


def _unknown(axes: AxisTable, call: Call, output: Any, what: str) -> Any:
    touched = [axis for value in call.values() for axis in value.axes]
    reason = Reason(f"{call.operator} has {what}")
    no_news = all(any(known.expected for known in axes.reasons(axis)) for axis in touched)  # of data alone
    axes.pin(touched, reason)
    fresh = (UNKNOWN_RESULT if no_news else reason) if touched else _constant(f"a constant from {call.operator}")
    return tree_map(lambda leaf: axes.new_value(leaf.shape, fresh) if isinstance(leaf, Tensor) else leaf, output)
