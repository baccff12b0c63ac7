"""Normalisations: statistics over units commute with permutations, not with signs (the scale is not odd)."""

from __future__ import annotations

from symlab.symmetry.axis_table import AxisTable, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.elementwise import broadcast
from symlab.symmetry.handlers.table import Call, aten, register


def _scaled(axes: AxisTable, call: Call, value: Value, places: list[int]) -> Value:
    """The normalised tensor with weight and bias along `places`."""
    result = Value(value.dims)
    for name in ("weight", "bias"):
        scale = call.arguments.get(name)
        if scale is not None:
            dims = [()] * len(value.dims)
            for place, dim in zip(places, scale.dims, strict=True):
                dims[place] = dim
            result, _ = broadcast(axes, (result, Value(tuple(dims))), call.shapes[0])
    axes.restrict(result.axes, Group.PERMUTATION)
    return result


@register(*aten("batch_norm instance_norm"))
def batch_norm(axes: AxisTable, call: Call) -> Value:
    """One unit of dimension 1 at a time; running statistics move with the channels.

    In training they do so by themselves; in eval mode the network has the symmetry if its statistics move too.
    """
    value = call.value("input")
    for name in ("running_mean", "running_var"):
        statistic = call.arguments[name]
        if statistic is not None and statistic.source is not None:
            (known,) = axes.statistics.setdefault(statistic.source, (value.dims[1],))
            axes.unify(known, value.dims[1])
    return _scaled(axes, call, value, [1])


@register(*aten("layer_norm rms_norm"))
def layer_norm(axes: AxisTable, call: Call) -> Value:
    """All units of the last dimensions together."""
    value = call.value("input")
    rank, normalized = len(value.dims), len(call.arguments["normalized_shape"])
    return _scaled(axes, call, value, list(range(rank - normalized, rank)))


@register(*aten("group_norm"))
def group_norm(axes: AxisTable, call: Call) -> Value:
    """Channels are a product (group, channel of the group): groups are exchanged, and the channels of all alike."""
    value, groups = call.value("input"), call.arguments["num_groups"]
    if groups not in (1, call.shape[1]):
        axes.unify(value.dims[1], (axes.new(groups), axes.new(call.shape[1] // groups)))
    return _scaled(axes, call, value, [1])


@register(*aten("_weight_norm"))
def weight_norm(axes: AxisTable, call: Call) -> Value:
    """w = g v / |v|, the norm over all dimensions but one: rotations on these, permutations on that one."""
    direction, scale, place = call.value("v"), call.value("g"), call.arguments["dim"]
    result, _ = broadcast(axes, (direction, scale), call.shape)
    if place != -1:  # -1: one norm over all dimensions
        axes.restrict(result.dims[place], Group.PERMUTATION)
    return result
