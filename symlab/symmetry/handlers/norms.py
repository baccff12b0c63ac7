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
def group_norm(axes: AxisTable, call: Call) -> Value | None:
    """All channels in one group, or every channel its own group; other forms are not handled."""
    value, groups = call.value("input"), call.arguments["num_groups"]
    return _scaled(axes, call, value, [1]) if groups in (1, call.shape[1]) else None
