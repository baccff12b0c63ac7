"""Parts of a dimension: slices, halves, single indices; and orders of units that a group would change."""

from __future__ import annotations

from symlab.symmetry.axis_table import AxisTable, Dim, NoCommonRefinement, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.table import Call, aten, moves, register

INDEX = Reason("index", expected=True)


def segment(axes: AxisTable, dim: Dim, start: int, size: int, operator: str) -> Dim:
    """The axis of units start to start + size: a part of the concatenation that the dimension becomes."""
    whole = axes.dim_size(dim)
    if size == whole:
        return dim
    if axes.is_free(dim):
        return axes.free_part(dim, size)
    try:
        parts = axes.cut(dim, [boundary for boundary in (start, start + size) if 0 < boundary < whole])
    except NoCommonRefinement:
        axes.pin(dim, Reason(f"{operator} takes a part of an axis"))
        return axes.free_part(dim, size)
    return parts[min(start, 1)]


def _without(axes: AxisTable, call: Call, value: Value, place: int, index: int) -> list[Dim]:
    """The dimensions but `place`, at one index of it: a single unit is free."""
    rest = [*value.dims[:place], *value.dims[place + 1 :]]
    layer = call.cuts.layer(value.dims[place], index)
    if layer is not None:
        return [tuple(new for axis in dim for new in layer.get(axis, (axis,))) for dim in rest]
    call.cuts.settle([value])
    segment(axes, value.dims[place], index, 1, call.operator)
    return rest


@register(*aten("slice narrow"))
@moves
def part(axes: AxisTable, call: Call) -> Value:
    """A part of one dimension; every second unit, or fewer, is none."""
    value = call.value("self")
    dims = list(value.dims)
    place = call.arguments["dim"] % len(dims)
    whole, size, step = axes.dim_size(dims[place]), call.shape[place], call.arguments.get("step", 1)
    if whole == size:
        return Value(tuple(dims))
    call.cuts.settle([value])
    if step == 1:
        start = call.arguments["start"] or 0
        dims[place] = segment(axes, dims[place], max(0, start + whole) if start < 0 else start, size, call.operator)
    else:
        axes.pin(dims[place], Reason(f"{call.operator} takes a part of an axis"))
        dims[place] = axes.free_part(dims[place], size)
    return Value(tuple(dims))


@register(*aten("select"))
@moves
def select(axes: AxisTable, call: Call) -> Value:
    """One index of one dimension."""
    value = call.value("self")
    place = call.arguments["dim"] % len(value.dims)
    return Value(tuple(_without(axes, call, value, place, call.arguments["index"] % axes.dim_size(value.dims[place]))))


@register(*aten("unbind"))
@moves
def unbind(axes: AxisTable, call: Call) -> tuple[Value, ...]:
    """Every index of one dimension."""
    value = call.value("self")
    place = call.arguments["dim"] % len(value.dims)
    return tuple(Value(tuple(_without(axes, call, value, place, index))) for index in range(len(call.shapes)))


@register(*aten("split split_with_sizes chunk"))
@moves
def split(axes: AxisTable, call: Call) -> tuple[Value, ...]:
    """The parts of one dimension, end to end."""
    value = call.value("self")
    place = call.arguments["dim"] % len(value.dims)
    sizes = [shape[place] for shape in call.shapes]
    if set(sizes) == {1} and len(sizes) > 1:
        rests = [_without(axes, call, value, place, index) for index in range(len(sizes))]
        return tuple(Value((*rest[:place], (), *rest[place:])) for rest in rests)
    call.cuts.settle([value])
    found, start = [], 0
    for size in sizes:
        dim = segment(axes, value.dims[place], start, size, call.operator)
        found.append(Value((*value.dims[:place], dim, *value.dims[place + 1 :])))
        start += size
    return tuple(found)


@register(*aten("glu"))
def gated_linear_unit(axes: AxisTable, call: Call) -> Value:
    """x[:h] sigmoid(x[h:]): the halves index the same units, not odd."""
    dims = list(call.value("self").dims)
    place = call.arguments["dim"] % len(dims)
    half = call.shape[place]
    first, second = (segment(axes, dims[place], start, half, call.operator) for start in (0, half))
    axes.unify(first, second)
    dims[place] = first
    axes.restrict([axis for dim in dims for axis in dim], Group.PERMUTATION)
    return Value(tuple(dims))


@register(*aten("index"))
def index(axes: AxisTable, call: Call) -> Value | None:
    """Entries of neighbouring dimensions picked by tensors of indices; the other dimensions stay."""
    dims, indices = call.value("self").dims, call.arguments["indices"]
    places = [place for place, chosen in enumerate(indices) if chosen is not None]
    if places != list(range(places[0], places[-1] + 1)):
        return None
    picked = [axis for place in places for axis in dims[place]]
    axes.pin([*picked, *(axis for place in places for axis in indices[place].axes)], INDEX)
    count = len(call.shape) - len(dims) + len(places)
    fresh = axes.new_value(call.shape[places[0] : places[0] + count], INDEX)
    return Value((*dims[: places[0]], *fresh.dims, *dims[places[-1] + 1 :]))


@register(*aten("roll flip cumsum tril triu"))
def ordered(axes: AxisTable, call: Call) -> Value:
    """Linear, and in need of the order of the units in some dimensions: these are free."""
    dims = call.value("self").dims
    if call.operator.startswith(("aten.tril", "aten.triu")):
        places = [-2, -1]
    else:
        given = call.arguments["dim" if "dim" in call.arguments else "dims"]
        places = [given] if isinstance(given, int) else list(given) or list(range(len(dims)))
    for place in places:
        if not axes.is_free(dims[place]):
            axes.pin(dims[place], Reason(f"{call.operator} depends on the order of the units"))
    return Value(dims)
