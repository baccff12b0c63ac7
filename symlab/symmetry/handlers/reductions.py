"""Sums, means, extremes and softmax over dimensions: a reduced axis keeps permutations, never signs."""

from __future__ import annotations

from symlab.symmetry.axis_table import AxisTable, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.table import Call, aten, register


def _reduced(call: Call) -> set[int]:
    rank = len(call.value("self").dims)
    dims = call.arguments.get("dim")
    if dims is None or dims == []:
        return set(range(rank))
    return {dim % rank for dim in ([dims] if isinstance(dims, int) else dims)} if rank else set()


@register(*aten("sum mean"))
def linear_reduction(axes: AxisTable, call: Call) -> Value:
    """Linear in the dimensions that stay."""
    dims, reduced = call.value("self").dims, _reduced(call)
    for place in reduced:
        axes.restrict(dims[place], Group.PERMUTATION)
    keep = bool(call.arguments.get("keepdim", False))
    return Value(
        tuple(() if place in reduced else dim for place, dim in enumerate(dims) if keep or place not in reduced)
    )


@register(*aten("amax amin logsumexp var std prod all any linalg_vector_norm norm"))
def reduction(axes: AxisTable, call: Call) -> Value:
    """Any other reduction: permutations on all dimensions."""
    axes.restrict(call.value("self").axes, Group.PERMUTATION)
    return linear_reduction(axes, call)


@register(*aten("softmax log_softmax _softmax _log_softmax"))
def softmax(axes: AxisTable, call: Call) -> Value:
    """exp(x_i) / sum_j exp(x_j): commutes with permutations of every dimension."""
    value = call.value("self")
    axes.restrict(value.axes, Group.PERMUTATION)
    return Value(value.dims)
