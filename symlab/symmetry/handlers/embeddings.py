"""Tables whose rows are picked by an index."""

from __future__ import annotations

from symlab.symmetry.axis_table import AxisTable, Reason, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.table import Call, aten, register

ROW = Reason("row of an embedding", expected=True, role="input")
BAG = Reason("bag of an embedding", expected=True, role="input")


@register(*aten("embedding"))
def embedding(axes: AxisTable, call: Call) -> Value:
    """Rows of a table: the index is free, the features are linear."""
    table, indices = call.value("weight"), call.value("indices")
    axes.pin((*table.dims[0], *indices.axes), ROW)
    return Value((*indices.dims, table.dims[1]))


@register(*aten("embedding_bag"))
def embedding_bag(axes: AxisTable, call: Call) -> tuple[Value, ...]:
    """Sums (mode 0), means (1) or maxima (2) of rows of a table: linear in the features, or permutations for maxima."""
    table = call.value("weight")
    axes.pin([*table.dims[0], *(axis for value in call.values() if value is not table for axis in value.axes)], ROW)
    if call.arguments["mode"] == 2:
        axes.restrict(table.dims[1], Group.PERMUTATION)
    rest = (axes.new_value(shape, BAG) for shape in call.shapes[1:])
    return (Value((*axes.new_value(call.shapes[0][:1], BAG).dims, table.dims[1])), *rest)
