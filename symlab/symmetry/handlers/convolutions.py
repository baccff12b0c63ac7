"""Convolutions and pooling: channels contract like features; positions and kernel entries are free."""

from __future__ import annotations

from collections.abc import Sequence

from symlab.symmetry.axis_table import AxisTable, Dim, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.elementwise import broadcast
from symlab.symmetry.handlers.products import add_bias
from symlab.symmetry.handlers.table import Call, aten, register

KERNEL = Reason("kernel position", expected=True, role="kernel")
POSITION = Reason("position in space", expected=True, role="position")


def _positions(axes: AxisTable, dims: Sequence[Dim], shape: Sequence[int]) -> tuple[Dim, ...]:
    """Fresh free axes of the output's positions; those of the input become free."""
    for dim in dims:
        axes.pin(dim, POSITION)
    return axes.new_value(shape, POSITION).dims


def _convolve(axes: AxisTable, call: Call, out_place: int) -> Value | None:
    if call.arguments["groups"] != 1:
        return None
    value, weight, bias = call.value("input"), call.value("weight"), call.arguments["bias"]
    space = len(weight.dims) - 2
    for dim in weight.dims[2:]:
        axes.pin(dim, KERNEL)
    axes.unify(value.dims[-space - 1], weight.dims[1 - out_place])
    channels = weight.dims[out_place]
    if bias is not None:
        channels = add_bias(axes, Value((channels,)), bias, (call.shape[-space - 1],)).dims[0]
    positions = _positions(axes, value.dims[-space:], call.shape[-space:])
    return Value((*value.dims[: -space - 1], channels, *positions))


@register(*aten("conv1d conv2d conv3d"))
def convolution(axes: AxisTable, call: Call) -> Value | None:
    """x[b, c, space], w[o, c, kernel] -> y[b, o, space]; grouped convolutions are not handled."""
    return _convolve(axes, call, out_place=0)


@register(*aten("conv_transpose1d conv_transpose2d conv_transpose3d"))
def transposed_convolution(axes: AxisTable, call: Call) -> Value | None:
    """x[b, c, space], w[c, o, kernel] -> y[b, o, space]; grouped convolutions are not handled."""
    return _convolve(axes, call, out_place=1)


def _pool(axes: AxisTable, call: Call, space: int) -> Value:
    dims = call.value("self").dims
    return Value((*dims[:-space], *_positions(axes, dims[-space:], call.shape[-space:])))


@register(*aten("avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"))
def mean_pooling(axes: AxisTable, call: Call) -> Value:
    """Linear in the channels."""
    return _pool(axes, call, _space(call))


@register(*aten("max_pool1d max_pool2d max_pool3d"))
def max_pooling(axes: AxisTable, call: Call) -> Value:
    """Every channel by itself, not odd."""
    result = _pool(axes, call, _space(call))
    axes.restrict(result.axes, Group.PERMUTATION)
    return result


@register(*aten("max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"))
@register(*aten("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"))
def max_pooling_with_indices(axes: AxisTable, call: Call) -> tuple[Value, Value]:
    """The maxima, and where they are."""
    dims, space = call.value("self").dims, _space(call)
    result = Value((*dims[:-space], *_positions(axes, dims[-space:], call.shapes[0][-space:])))
    axes.restrict(result.axes, Group.PERMUTATION)
    return result, result


def _space(call: Call) -> int:
    """Number of space dimensions, from the operator's name: 2 for aten.max_pool2d.default."""
    return int(call.operator.partition("pool")[2][0])


@register(*aten("embedding"))
def embedding(axes: AxisTable, call: Call) -> Value:
    """Rows of a table: the index is free, the features are linear."""
    table, indices = call.value("weight"), call.value("indices")
    axes.pin((*table.dims[0], *indices.axes), Reason("row of an embedding", expected=True, role="input"))
    return Value((*indices.dims, table.dims[1]))


@register(*aten("prelu"))
def parametric_relu(axes: AxisTable, call: Call) -> Value:
    """max(0, x) + w min(0, x), with one w per channel (dimension 1) or one for all."""
    value, slope = call.value("self"), call.value("weight")
    if len(value.dims) > 1 and slope.axes:
        slope = Value((slope.dims[0], *((),) * (len(value.dims) - 2)))
    result, _ = broadcast(axes, (value, slope), call.shape)
    axes.restrict(result.axes, Group.PERMUTATION)
    return result
