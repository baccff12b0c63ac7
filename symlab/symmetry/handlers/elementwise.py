"""Elementwise operations: functions of one tensor, sums, products, comparisons.

An elementwise function commutes with permutations of units; with sign flips only if it is odd; with rotations only
if it is linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Number

from symlab.symmetry.axis_table import AxisTable, Dim, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.table import Call, aten, register


def broadcast(axes: AxisTable, values: Sequence[Value], shape: Sequence[int]) -> tuple[Value, list[int]]:
    """Align the tensors as torch broadcasts them and merge what meets; also how many tensors carry each dimension."""
    dims: list[Dim] = []
    carriers: list[int] = []
    for position in range(-len(shape), 0):
        met = [value.dims[position] for value in values if len(value.dims) >= -position]
        met = [dim for dim in met if dim]
        for dim in met[1:]:
            axes.unify(met[0], dim)
        dims.append(met[0] if met else ())
        carriers.append(len(met))
    return Value(tuple(dims)), carriers


@register(*aten("positive neg negative conj to _to_copy type_as"))
def linear_function(axes: AxisTable, call: Call) -> Value:
    """x -> c x: commutes with every group."""
    return Value(call.value("self").dims)


@register(
    *aten(
        "tanh sin tan asin atan sinh asinh arctan erf erfinv sign sgn trunc round frac softshrink hardshrink reciprocal"
    )
)
def odd_function(axes: AxisTable, call: Call) -> Value:
    """f(-x) = -f(x): keeps signed permutations."""
    value = call.value("self")
    axes.restrict(value.axes, Group.SIGNED_PERMUTATION)
    return Value(value.dims)


@register(
    *aten("relu relu6 leaky_relu elu celu selu gelu silu mish softplus hardswish hardsigmoid sigmoid log_sigmoid"),
    *aten("threshold exp exp2 expm1 log log1p log2 log10 sqrt rsqrt square abs cos cosh floor ceil logit"),
    *aten("isnan isfinite logical_not logical_and logical_or eq ne lt le gt ge maximum minimum clamp_min clamp_max"),
    *aten("where absolute atan2 logaddexp fmod remainder masked_fill lerp"),
)
def function(axes: AxisTable, call: Call) -> Value:
    """Any elementwise function, of one tensor or of several: keeps permutations."""
    result, _ = broadcast(axes, call.values(), call.shape)
    axes.restrict(result.axes, Group.PERMUTATION)
    return result


@register(*aten("clamp clip hardtanh"))
def clamp(axes: AxisTable, call: Call) -> Value:
    """Odd if the interval is [-a, a]."""
    low, high = (call.arguments.get(name, call.arguments.get(f"{name}_val")) for name in ("min", "max"))
    symmetric = isinstance(low, Number) and isinstance(high, Number) and low == -high  # type: ignore[operator]
    return odd_function(axes, call) if symmetric else function(axes, call)


@register(*aten("pow"))
def power(axes: AxisTable, call: Call) -> Value:
    """Odd for a fixed odd whole exponent."""
    exponent = call.arguments["exponent"]
    odd = isinstance(exponent, (int, float)) and math.fmod(exponent, 2) in (1, -1)
    return odd_function(axes, call) if odd else function(axes, call)


@register(*aten("add sub subtract rsub"))
def addition(axes: AxisTable, call: Call) -> Value:
    """Linear where both terms carry the dimension; a term constant along it (or a number) keeps permutations only."""
    terms = call.values()
    result, carriers = broadcast(axes, terms, call.shape)
    if len(terms) == 2 and all(term.of_input for term in terms):
        for dim, count in zip(result.dims, carriers, strict=True):
            axes.mark_residual(dim if count == 2 else ())
    numbers = [call.arguments[name] for name in ("self", "other") if isinstance(call.arguments[name], Number)]
    shifted = any(number != 0 for number in numbers)
    for dim, count in zip(result.dims, carriers, strict=True):
        if shifted or count < len(terms):
            axes.restrict(dim, Group.PERMUTATION)
    return result


@register(*aten("mul multiply div divide true_divide"))
def multiplication(axes: AxisTable, call: Call) -> Value:
    """Linear in each factor; a dimension that both factors carry, or a divisor carries, keeps permutations only."""
    factors = call.values()
    result, carriers = broadcast(axes, factors, call.shape)
    for dim, count in zip(result.dims, carriers, strict=True):
        if count > 1:
            axes.restrict(dim, Group.PERMUTATION)
    divides = call.operator.startswith(("aten.div", "aten.true_divide"))
    if divides and isinstance(call.arguments["other"], Value):
        axes.restrict(call.value("other").axes, Group.PERMUTATION)
    if divides and call.arguments.get("rounding_mode") is not None:
        axes.restrict(result.axes, Group.PERMUTATION)
    return result


@register(*aten("dropout feature_dropout"))
def dropout(axes: AxisTable, call: Call) -> Value:
    """The law of the mask is unchanged when units are permuted or change sign, not when they are rotated."""
    value = call.values()[0]
    if call.arguments["p"] > 0:
        axes.restrict(value.axes, Group.SIGNED_PERMUTATION)
    return Value(value.dims)


@register(*aten("alpha_dropout feature_alpha_dropout"))
def alpha_dropout(axes: AxisTable, call: Call) -> Value:
    """Dropped units get one common value: permutations."""
    value = call.values()[0]
    axes.restrict(value.axes, Group.PERMUTATION)
    return Value(value.dims)
