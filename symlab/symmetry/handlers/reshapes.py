"""Operations that move, group, add or drop dimensions, or take a part of one."""

from __future__ import annotations

from collections.abc import Sequence

from symlab.symmetry.axis_table import AxisTable, Dim, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.table import Call, aten, register


def regroup(axes: AxisTable, value: Value, shape: Sequence[int], operator: str) -> Value:
    """Row-major reshape. A dimension made of whole axes keeps them (channel x space); a cut axis becomes free."""
    sources, targets = list(value.axes), list(shape)
    dims: list[Dim] = []
    while targets:
        group: list[int] = []
        pieces = [targets.pop(0)]
        have, need = 1, pieces[0]
        while have != need:
            if have < need:
                group.append(sources.pop(0))
                have *= axes.size(group[-1])
            else:
                pieces.append(targets.pop(0))
                need *= pieces[-1]
        dims.extend(_piece_dims(axes, tuple(group), pieces, operator))
    return Value(tuple(dims))


def _piece_dims(axes: AxisTable, group: Dim, pieces: list[int], operator: str) -> list[Dim]:
    real = [size for size in pieces if size > 1]
    if len(real) <= 1:
        return [group if size > 1 else () for size in pieces]
    fresh = [axes.new_dim(size) for size in pieces]
    reason = Reason(f"{operator} cuts an axis into parts")
    axes.loosen(group, [axis for dim in fresh for axis in dim], reason)
    return fresh


@register(
    *aten("view reshape _unsafe_view flatten unflatten unsqueeze squeeze view_as reshape_as _reshape_alias ravel")
)
def reshape(axes: AxisTable, call: Call) -> Value:
    """Row-major reshape to the output's shape."""
    return regroup(axes, call.value("self"), call.shape, call.operator)


@register(*aten("t numpy_T mT mH adjoint transpose swapaxes swapdims"))
def transpose(axes: AxisTable, call: Call) -> Value:
    """Exchange of two dimensions (of all, for x.T)."""
    dims = list(call.value("self").dims)
    if call.operator.startswith(("aten.t.", "aten.t_.", "aten.numpy_T")):
        return Value(tuple(reversed(dims)))
    places = [call.arguments[name] for name in ("dim0", "dim1", "axis0", "axis1") if name in call.arguments]
    a, b = places or (-2, -1)
    dims[a], dims[b] = dims[b], dims[a]
    return Value(tuple(dims))


@register(*aten("permute"))
def permute(axes: AxisTable, call: Call) -> Value:
    """Dimensions in a new order."""
    dims = call.value("self").dims
    return Value(tuple(dims[place] for place in call.arguments["dims"]))


@register(*aten("movedim"))
def movedim(axes: AxisTable, call: Call) -> Value:
    """Some dimensions to new places, the others in their old order."""
    dims = call.value("self").dims
    source, destination = (_places(call.arguments[name], len(dims)) for name in ("source", "destination"))
    rest = iter([place for place in range(len(dims)) if place not in source])
    taken = dict(zip(destination, source, strict=True))
    return Value(tuple(dims[taken[place] if place in taken else next(rest)] for place in range(len(dims))))


def _places(dims: int | Sequence[int], rank: int) -> list[int]:
    return [dim % rank for dim in ([dims] if isinstance(dims, int) else dims)]


@register(*aten("expand expand_as broadcast_to"))
def expand(axes: AxisTable, call: Call) -> Value:
    """Copies along a new axis, which is unchanged by permutations."""
    old = call.value("self").dims
    padded = ((),) * (len(call.shape) - len(old)) + old
    dims = [dim if dim else axes.new_dim(size) for dim, size in zip(padded, call.shape, strict=True)]
    for before, after in zip(padded, dims, strict=True):
        if not before:
            axes.restrict(after, Group.PERMUTATION)
    return Value(tuple(dims))


@register(*aten("slice narrow"))
def part(axes: AxisTable, call: Call) -> Value:
    """A part of one dimension: an axis that is cut becomes free; the whole of it stays."""
    value = call.value("self")
    dims = list(value.dims)
    place = call.arguments["dim"]
    if axes.shape(value)[place] != call.shape[place]:
        dims[place] = _cut(axes, dims[place], call.shape[place], call.operator)
    return Value(tuple(dims))


@register(*aten("select"))
def select(axes: AxisTable, call: Call) -> Value:
    """One index of one dimension, whose axis becomes free."""
    dims = list(call.value("self").dims)
    _cut(axes, dims.pop(call.arguments["dim"]), 1, call.operator)
    return Value(tuple(dims))


@register(*aten("split split_with_sizes chunk unbind"))
def split(axes: AxisTable, call: Call) -> tuple[Value, ...]:
    """The parts of one dimension, whose axis becomes free."""
    value = call.value("self")
    place = call.arguments["dim"] % len(value.dims)
    parts = []
    for shape in call.shapes:
        dims = list(value.dims)
        size = shape[place] if len(shape) == len(dims) else None
        if size != axes.dim_size(dims[place]):
            dims[place] = _cut(axes, dims[place], size or 1, call.operator)
        parts.append(Value(tuple(dims if size is not None else dims[:place] + dims[place + 1 :])))
    return tuple(parts)


def _cut(axes: AxisTable, dim: Dim, size: int, operator: str) -> Dim:
    fresh = axes.new_dim(size)
    axes.pin(dim, Reason(f"{operator} takes a part of an axis"))
    axes.pin(fresh, Reason("a part of an axis", expected=True))
    return fresh


@register(*aten("pad constant_pad_nd"))
def pad(axes: AxisTable, call: Call) -> Value:
    """Padded dimensions become free; along the others a constant that is not 0 keeps permutations only."""
    dims, widths = list(call.value("self").dims), call.arguments["pad"]
    for place in range(len(widths) // 2):
        if any(widths[2 * place : 2 * place + 2]):
            axes.pin(dims[-1 - place], Reason(f"{call.operator} pads an axis"))
            dims[-1 - place] = axes.new_dim(call.shape[-1 - place])
            axes.pin(dims[-1 - place], Reason("a padded axis", expected=True))
    if call.arguments["value"]:
        axes.restrict([axis for dim in dims for axis in dim], Group.PERMUTATION)
    return Value(tuple(dims))


@register(*aten("cat concat"))
def concatenate(axes: AxisTable, call: Call) -> Value:
    """The joined dimension becomes free; the others index the same units in all tensors."""
    tensors = call.arguments["tensors"]
    place = call.arguments["dim"] % len(call.shape)
    dims = list(tensors[0].dims)
    for value in tensors[1:]:
        for other, (dim, known) in enumerate(zip(value.dims, dims, strict=True)):
            if other != place:
                axes.unify(known, dim)
    for value in tensors:
        axes.pin(value.dims[place], Reason(f"{call.operator} joins axes"))
    dims[place] = axes.new_dim(call.shape[place])
    axes.pin(dims[place], Reason("joined axes", expected=True))
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


@register(*aten("zeros zeros_like new_zeros"))
def zeros(axes: AxisTable, call: Call) -> Value:
    """The zero tensor is unchanged by every group."""
    return axes.new_value(call.shape)


@register(*aten("ones ones_like new_ones full full_like new_full"))
def constant(axes: AxisTable, call: Call) -> Value:
    """A tensor of one number is unchanged by permutations."""
    value = axes.new_value(call.shape)
    axes.restrict(value.axes, Group.PERMUTATION)
    return value
