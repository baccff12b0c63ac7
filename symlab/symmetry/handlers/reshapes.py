"""Operations that group, move, add or repeat dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from symlab.symmetry.axis_table import AxisTable, Dim, NoCommonRefinement, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.table import Call, aten, moves, register
from symlab.symmetry.radix import blocks, common_product
from symlab.symmetry.waiting_cuts import WaitingCuts


def regroup(axes: AxisTable, call: Call, value: Value, shape: Sequence[int]) -> Value:
    """Row-major reshape: whole axes stay together in a product (channel x space), an axis that is cut becomes one."""
    cuts = call.cuts
    sources = [own for axis in value.axes for own in ((axis,) if axis in cuts else axes.factors((axis,)))]
    targets = [size for size in shape if size > 1]
    dims: list[Dim] = []
    for own, other in blocks([axes.size(axis) for axis in sources], targets):
        group, sizes = tuple(sources[own]), targets[other]
        if len(sizes) == 1:
            dims.append(cuts.whole(group))
        elif axes.is_free(group):
            dims.extend(axes.free_part(group, size) for size in sizes)
        elif len(group) == 1:
            fresh = cuts.add(group[0], sizes)
            sources = [fresh.get(axis, (axis,))[0] for axis in sources]
            dims = [tuple(new for axis in dim for new in fresh.get(axis, (axis,))) for dim in dims]
            dims.extend((new,) for new in fresh[group[0]])
        else:
            dims.extend(_recut(axes, cuts, group, sizes, call.operator))
    found = iter(dims)
    return Value(tuple(next(found) if size > 1 else () for size in shape))


def _recut(axes: AxisTable, cuts: WaitingCuts, group: Dim, sizes: Sequence[int], operator: str) -> list[Dim]:
    """A product of axes as another product: both get a common finer one, else become free."""
    cuts.settle([Value((group,))])
    pieces = common_product([axes.size(axis) for axis in group], sizes)
    try:
        if pieces is None:
            raise NoCommonRefinement
        fine = iter([new for axis, own in zip(group, pieces[0], strict=True) for new in axes.split((axis,), own)])
        return [tuple(next(fine) for _ in own) for own in pieces[1]]
    except NoCommonRefinement:
        axes.pin(group, Reason(f"{operator} cuts axes across"))
        return [axes.free_part(group, size) for size in sizes]


@register(
    *aten("view reshape _unsafe_view flatten unflatten unsqueeze squeeze view_as reshape_as _reshape_alias ravel")
)
@moves
def reshape(axes: AxisTable, call: Call) -> Value:
    """Row-major reshape to the output's shape."""
    return regroup(axes, call, call.value("self"), call.shape)


@register(*aten("t numpy_T mT mH matrix_H adjoint transpose swapaxes swapdims"))
@moves
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
@moves
def permute(axes: AxisTable, call: Call) -> Value:
    """Dimensions in a new order."""
    dims = call.value("self").dims
    return Value(tuple(dims[place] for place in call.arguments["dims"]))


@register(*aten("movedim"))
@moves
def movedim(axes: AxisTable, call: Call) -> Value:
    """Some dimensions to new places, the others in their old order."""
    dims = call.value("self").dims
    source, destination = (_places(call.arguments[name], len(dims)) for name in ("source", "destination"))
    rest = iter([place for place in range(len(dims)) if place not in source])
    taken = dict(zip(destination, source, strict=True))
    return Value(tuple(dims[taken[place] if place in taken else next(rest)] for place in range(len(dims))))


def _places(dims: int | Sequence[int], rank: int) -> list[int]:
    return [dim % rank for dim in ([dims] if isinstance(dims, int) else dims)]


@register(*aten("alias clone contiguous detach lift_fresh lift_fresh_copy"))
@moves
def copy(axes: AxisTable, call: Call) -> Value:
    """The same tensor."""
    return Value(call.values()[0].dims)


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


@register(*aten("repeat tile"))
def repeat(axes: AxisTable, call: Call) -> Value:
    """Each dimension as often as asked, one after the other: a product (copy, unit)."""
    old = call.value("self").dims
    padded = ((),) * (len(call.shape) - len(old)) + old
    dims = []
    for dim, size in zip(padded, call.shape, strict=True):
        copies = axes.new_dim(size // axes.dim_size(dim))
        axes.restrict(copies, Group.PERMUTATION)
        dims.append((*copies, *dim))
    return Value(tuple(dims))


@register(torch.ops.aten.repeat_interleave.self_int)
def repeat_each(axes: AxisTable, call: Call) -> Value:
    """Each unit of one dimension (without `dim`, of all in one) some times in a row: a product (unit, copy)."""
    dims, place = list(call.value("self").dims), call.arguments["dim"]
    if place is None:
        dims, place = [tuple(axis for dim in dims for axis in dim)], 0
    copies = axes.new_dim(call.arguments["repeats"])
    axes.restrict(copies, Group.PERMUTATION)
    dims[place] = (*dims[place], *copies)
    return Value(tuple(dims))


@register(*aten("channel_shuffle native_channel_shuffle"))
def channel_shuffle(axes: AxisTable, call: Call) -> Value | None:
    """Channels (group, unit) -> (unit, group)."""
    value, groups = call.value("self"), call.arguments["groups"]
    group, unit = axes.new_dim(groups), axes.new_dim(call.shape[1] // groups)
    axes.unify(value.dims[1], (*group, *unit))
    return Value((value.dims[0], (*unit, *group), *value.dims[2:]))
