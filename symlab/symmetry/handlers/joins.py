"""Tensors put together, padded, or made of one number."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from symlab.symmetry.axis_table import AxisTable, Dim, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.elementwise import broadcast
from symlab.symmetry.handlers.parts import segment
from symlab.symmetry.handlers.table import Call, aten, register


def joined(axes: AxisTable, dims: Sequence[Dim]) -> Dim:
    """The concatenation of dimensions; one free axis if all are free."""
    if axes.is_free(axis for dim in dims for axis in dim):
        return axes.free_part(tuple(axis for dim in dims for axis in dim), sum(map(axes.dim_size, dims)))
    return axes.join(dims)


@register(*aten("cat concat"))
def concatenate(axes: AxisTable, call: Call) -> Value:
    """The joined dimension is a concatenation; the others index the same units in all tensors."""
    tensors = call.arguments["tensors"]
    place = call.arguments["dim"] % len(call.shape)
    dims = list(tensors[0].dims)
    for value in tensors[1:]:
        for other, (dim, known) in enumerate(zip(value.dims, dims, strict=True)):
            if other != place:
                axes.unify(known, dim)
    dims[place] = joined(axes, [value.dims[place] for value in tensors])
    return Value(tuple(dims))


@register(*aten("stack"))
def stack(axes: AxisTable, call: Call) -> Value:
    """A new free dimension."""
    tensors = call.arguments["tensors"]
    for value in tensors[1:]:
        for dim, known in zip(value.dims, tensors[0].dims, strict=True):
            axes.unify(known, dim)
    place = call.arguments["dim"] % len(call.shape)
    fresh = axes.new_dim(call.shape[place])
    axes.pin(fresh, Reason("stacked tensors", expected=True))
    return Value((*tensors[0].dims[:place], fresh, *tensors[0].dims[place:]))


@register(*aten("constant_pad_nd pad"))
def pad(axes: AxisTable, call: Call) -> Value:
    """Zeros, of any group, at the ends of a dimension; another constant keeps permutations only.

    Padding by the units themselves (reflect, replicate, circular) needs their order: such a dimension becomes free.
    """
    dims, widths = list(call.value("self").dims), call.arguments["pad"]
    constant = call.arguments.get("mode", "constant") == "constant"
    for place in range(len(widths) // 2):
        before, after = widths[2 * place : 2 * place + 2]
        if before or after:
            own, size = dims[-1 - place], call.shape[-1 - place]
            fits = constant and not axes.is_free(own)
            dims[-1 - place] = _padded(axes, call, own, before, after) if fits else _pad_freely(axes, call, own, size)
    if call.arguments.get("value"):
        axes.restrict([axis for dim in dims for axis in dim], Group.PERMUTATION)
    return Value(tuple(dims))


@register(
    *aten("reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d")
)
def pad_with_own_units(axes: AxisTable, call: Call) -> Value:
    """Linear; the padded dimensions, of space, become free."""
    dims = list(call.value("self").dims)
    for place in range(len(call.arguments["padding"]) // 2):
        dims[-1 - place] = _pad_freely(axes, call, dims[-1 - place], call.shape[-1 - place])
    return Value(tuple(dims))


def _padded(axes: AxisTable, call: Call, dim: Dim, before: int, after: int) -> Dim:
    """[zeros | dim | zeros]; negative widths take units away."""
    kept = axes.dim_size(dim) + min(before, 0) + min(after, 0)
    own = segment(axes, dim, max(-before, 0), kept, call.operator)
    zeros = [(axes.new(width),) if width > 0 else None for width in (before, after)]
    return axes.join([part for part in (zeros[0], own, zeros[1]) if part is not None])


def _pad_freely(axes: AxisTable, call: Call, dim: Dim, size: int) -> Dim:
    if not axes.is_free(dim):
        axes.pin(dim, Reason(f"{call.operator} depends on the order of the units"))
    return axes.free_part(dim, size)


@register(*aten("zeros zeros_like new_zeros"))
def zeros(axes: AxisTable, call: Call) -> Value:
    """The zero tensor is unchanged by every group."""
    return Value(axes.new_value(call.shape).dims, zero=True)


@register(*aten("ones ones_like new_ones full full_like new_full"))
def constant(axes: AxisTable, call: Call) -> Value:
    """A tensor of one number is unchanged by permutations."""
    value = axes.new_value(call.shape)
    axes.restrict(value.axes, Group.PERMUTATION)
    return value


@register(torch.ops.aten.zero_)
def set_to_zero(axes: AxisTable, call: Call) -> Value:
    """Units set to zero in place: what is left of them is unchanged by every group."""
    return Value(call.value("self").dims)


@register(torch.ops.aten.fill_)
def set_to_constant(axes: AxisTable, call: Call) -> Value:
    """Units set to one number in place."""
    value = call.value("self")
    axes.restrict(value.axes, Group.PERMUTATION)
    return Value(value.dims)


@register(torch.ops.aten.copy_)
def set_to_values(axes: AxisTable, call: Call) -> Value:
    """Units set in place to those of another tensor, along whose missing dimensions they are constant."""
    own, other = call.value("self"), call.value("src")
    _, carriers = broadcast(axes, (own, other), call.shape)
    for dim, count in zip(own.dims, carriers, strict=True):
        if count < 2:
            axes.restrict(dim, Group.PERMUTATION)
    return Value(own.dims)
