"""Recurrent layers and cells. A weight's rows are as many gates as the cell has, end to end, over the hidden units.

RNN: 1 gate, tanh or relu;  GRU: 3;  LSTM: 4, and a cell state over the hidden units
w_ih [gates x h, in]   w_hh [gates x h, h]   b [gates x h]   w_hr [projection, h] (LSTM with a projection)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from symlab.symmetry.axis_table import AxisTable, Dim, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.joins import joined
from symlab.symmetry.handlers.table import Call, aten, moves, register

ORDER = Reason("order in a sequence", expected=True, role="position")
LAYER = Reason("layer of a recurrent net", expected=True)


def _gates(operator: str) -> int:
    return 4 if "lstm" in operator else 3 if "gru" in operator else 1


def _cell(axes: AxisTable, operator: str, features: Dim, weights: Sequence[Value]) -> tuple[Dim, Dim]:
    """One cell: the axes of its hidden units and of its output (of the projection, if it has one)."""
    gates = _gates(operator)
    rows = axes.dim_size(weights[0].dims[0])
    hidden = axes.new_dim(rows // gates)
    axes.restrict(hidden, Group.SIGNED_PERMUTATION if "tanh" in operator else Group.PERMUTATION)
    projections = [w for w in weights[2:] if len(w.dims) == 2]
    output = projections[0].dims[0] if projections else hidden
    for weight in [w for w in weights if w not in projections]:
        axes.unify(weight.dims[0], joined(axes, [hidden] * gates) if gates > 1 else hidden)
    axes.unify(weights[0].dims[1], features)
    axes.unify(weights[1].dims[1], output)
    if projections:
        axes.unify(projections[0].dims[1], hidden)
    return hidden, output


def _start(axes: AxisTable, given: Value, batch: Sequence[Dim], unit: Dim) -> None:
    """A state [*batch, unit] to start from, unless it is zero."""
    if not given.zero:
        for own, dim in zip(given.dims, (*batch, unit), strict=True):
            axes.unify(own, dim)


def _start_layers(axes: AxisTable, call: Call, given: Value, batch: Sequence[Dim], units: Sequence[Dim]) -> None:
    """A state [layer, *batch, unit]: each layer its own units if they come from other layers, else the same for all."""
    layer, *rest = given.dims
    for index, unit in enumerate(units):
        own = call.cuts.layer(layer, index) or {}
        dims = tuple(tuple(new for axis in dim for new in own.get(axis, (axis,))) for dim in rest)
        if not own:
            call.cuts.settle([given])
            axes.pin(layer, LAYER)
        _start(axes, Value(dims, zero=given.zero), batch, unit)


@register(torch.ops.aten.lstm.input, torch.ops.aten.gru.input)
@register(torch.ops.aten.rnn_tanh.input, torch.ops.aten.rnn_relu.input)
@moves
def recurrent_layers(axes: AxisTable, call: Call) -> tuple[Value, ...]:
    """nn.RNN, nn.GRU, nn.LSTM: outputs of the last layer, and the last states of all layers and directions."""
    given, states = call.value("input"), call.arguments["hx"]
    states = [states] if isinstance(states, Value) else list(states)
    call.cuts.settle([given, *call.arguments["params"]])
    directions = 2 if call.arguments["bidirectional"] else 1
    weights = iter(call.arguments["params"])
    count = len(call.arguments["params"]) // (directions * call.arguments["num_layers"])
    order = 1 if call.arguments["batch_first"] and len(given.dims) == 3 else 0
    axes.pin(given.dims[order], ORDER)
    batch = [dim for place, dim in enumerate(given.dims[:-1]) if place != order]
    features, hidden, outputs = given.dims[-1], [], []
    for _ in range(call.arguments["num_layers"]):
        cells = [_cell(axes, call.operator, features, list(islice(weights, count))) for _ in range(directions)]
        hidden += [cell[0] for cell in cells]
        outputs += [cell[1] for cell in cells]
        features = joined(axes, [cell[1] for cell in cells]) if directions > 1 else cells[0][1]
    kinds = [outputs, hidden][: len(states)]
    for state, dims in zip(states, kinds, strict=True):
        _start_layers(axes, call, state, batch, dims)
    last = [_stacked(axes, call, dims, batch) for dims in kinds]
    return (Value((*given.dims[:-1], features)), *last)


def _stacked(axes: AxisTable, call: Call, dims: Sequence[Dim], batch: Sequence[Dim]) -> Value:
    """The last states, stacked along a new first dimension: each can be taken out again."""
    if len(dims) == 1:
        return Value(((), *batch, dims[0]))
    size = axes.dim_size(dims[0])
    if size == 1:
        return Value(((axes.free_part(dims[0], len(dims))), *batch, ()))
    (whole,) = axes.join(dims)
    layer, unit = call.cuts.add(whole, [len(dims), size])[whole]
    return Value(((layer,), *batch, (unit,)))


def _cells(call: Call) -> Iterator[Value]:
    for name in ("w_ih", "w_hh", "b_ih", "b_hh"):
        if call.arguments[name] is not None:
            yield call.value(name)


@register(*aten("rnn_tanh_cell rnn_relu_cell gru_cell"))
def recurrent_cell(axes: AxisTable, call: Call) -> Value:
    """One step of an RNN or a GRU."""
    given = call.value("input")
    hidden, _ = _cell(axes, call.operator, given.dims[-1], list(_cells(call)))
    _start(axes, call.value("hx"), given.dims[:-1], hidden)
    return Value((*given.dims[:-1], hidden))


@register(*aten("lstm_cell"))
def lstm_cell(axes: AxisTable, call: Call) -> tuple[Value, Value]:
    """One step of an LSTM: hidden state and cell state."""
    given = call.value("input")
    hidden, _ = _cell(axes, call.operator, given.dims[-1], list(_cells(call)))
    for state in call.arguments["hx"]:
        _start(axes, state, given.dims[:-1], hidden)
    state = Value((*given.dims[:-1], hidden))
    return state, state
