"""Convolutions: channels contract like features; positions and kernel entries are free."""

from __future__ import annotations

from symlab.symmetry.axis_table import AxisTable, Dim, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.elementwise import broadcast
from symlab.symmetry.handlers.products import add_bias
from symlab.symmetry.handlers.resampling import new_positions
from symlab.symmetry.handlers.table import Call, aten, register

KERNEL = Reason("kernel position", expected=True, role="kernel")


def _channels(axes: AxisTable, call: Call, given: Dim, out_place: int) -> Dim:
    """The output's channels.

    With G groups, the channels of both sides are products (group, channel of the group): groups of input, of output
    and of the weight's dimension 0 are exchanged together, and the channels of all groups alike, for the weight's
    dimension 1 serves every group.
    """
    weight, groups = call.value("weight"), call.arguments["groups"]
    if groups == 1:
        axes.unify(given, weight.dims[1 - out_place])
        return weight.dims[out_place]
    group = (axes.new(groups),)
    axes.restrict(group, Group.PERMUTATION)
    inner = axes.new_dim(axes.dim_size(weight.dims[0]) // groups)
    axes.unify(weight.dims[0], (*group, *inner))
    axes.unify(given, (*group, *(weight.dims[1] if out_place == 0 else inner)))
    return (*group, *(inner if out_place == 0 else weight.dims[1]))


def _convolve(axes: AxisTable, call: Call, out_place: int) -> Value:
    value, weight, bias = call.value("input"), call.value("weight"), call.arguments["bias"]
    space = len(weight.dims) - 2
    for dim in weight.dims[2:]:
        axes.pin(dim, KERNEL)
    channels = _channels(axes, call, value.dims[-space - 1], out_place)
    if bias is not None:
        channels = add_bias(axes, Value((channels,)), bias, (call.shape[-space - 1],)).dims[0]
    positions = new_positions(axes, value.dims[-space:], call.shape[-space:])
    return Value((*value.dims[: -space - 1], channels, *positions))


@register(*aten("conv1d conv2d conv3d"))
def convolution(axes: AxisTable, call: Call) -> Value:
    """x[b, c, space], w[o, c / groups, kernel] -> y[b, o, space]."""
    return _convolve(axes, call, out_place=0)


@register(*aten("conv_transpose1d conv_transpose2d conv_transpose3d"))
def transposed_convolution(axes: AxisTable, call: Call) -> Value:
    """x[b, c, space], w[c, o / groups, kernel] -> y[b, o, space]."""
    return _convolve(axes, call, out_place=1)


@register(*aten("prelu"))
def parametric_relu(axes: AxisTable, call: Call) -> Value:
    """max(0, x) + w min(0, x), with one w per channel (dimension 1) or one for all."""
    value, slope = call.value("self"), call.value("weight")
    if len(value.dims) > 1 and slope.axes:
        slope = Value((slope.dims[0], *((),) * (len(value.dims) - 2)))
    result, _ = broadcast(axes, (value, slope), call.shape)
    axes.restrict(result.axes, Group.PERMUTATION)
    return result
