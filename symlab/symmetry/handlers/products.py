"""Products of tensors: Linear, matmul, einsum, all by one rule for each index of a contraction."""

from __future__ import annotations

from collections.abc import Sequence

from symlab.symmetry.axis_table import AxisTable, Dim, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.handlers.elementwise import broadcast
from symlab.symmetry.handlers.table import Call, aten, register


def contract(axes: AxisTable, first: Value, second: Value, equation: str) -> Value:
    """The axes of an einsum of two tensors, for an equation such as "bi,oi->bo".

    An index summed in both factors: (g x) . (g w) = x . w for every orthogonal g, so the two axes merge under any
    group. An index in both factors and the output (a batch of products) keeps permutations only, like an
    elementwise product; so does an index summed in one factor alone, since a sum over units is unchanged by
    permutations only.
    """
    inputs, output = equation.split("->")
    dims: dict[str, Dim] = {}
    uses: dict[str, int] = {}
    for value, indices in zip((first, second), inputs.split(","), strict=True):
        for index, dim in zip(indices, value.dims, strict=True):
            if dim and dims.get(index):
                axes.unify(dims[index], dim)
            dims[index] = dims.get(index) or dim
            uses[index] = uses.get(index, 0) + bool(dim)
    for index, dim in dims.items():
        if (uses[index] == 2) == (index in output):
            axes.restrict(dim, Group.PERMUTATION)
    return Value(tuple(dims[index] for index in output))


def add_bias(axes: AxisTable, value: Value, bias: Value, shape: tuple[int, ...]) -> Value:
    """value + bias, where a dimension along which the bias is constant keeps permutations only."""
    result, carriers = broadcast(axes, (value, bias), shape)
    for dim, count in zip(result.dims, carriers, strict=True):
        if count < 2:
            axes.restrict(dim, Group.PERMUTATION)
    return result


@register(*aten("linear"))
def linear(axes: AxisTable, call: Call) -> Value:
    """x W^T + b."""
    value = call.value("input")
    batch = "abcdefgh"[: len(value.dims) - 1]
    out = "o" if len(call.value("weight").dims) == 2 else ""
    result = contract(axes, value, call.value("weight"), f"{batch}i,{out}i->{batch}{out}")
    bias = call.arguments["bias"]
    return result if bias is None else add_bias(axes, result, bias, call.shape)


@register(*aten("mm bmm matmul mv dot vdot inner"))
def matmul(axes: AxisTable, call: Call) -> Value:
    """Matrix product of the last two dimensions, batched over the rest."""
    first, second = call.value("self"), call.value("vec" if "vec" in call.arguments else _second(call))
    if call.operator.startswith("aten.inner") and len(second.dims) > 1:
        second = Value((*second.dims[:-2], second.dims[-1], second.dims[-2]))
    return _matmul(axes, first, second)


def _second(call: Call) -> str:
    return next(name for name in ("mat2", "other", "tensor") if name in call.arguments)


def _matmul(axes: AxisTable, first: Value, second: Value) -> Value:
    rows = "r" if len(first.dims) > 1 else ""
    columns = "c" if len(second.dims) > 1 else ""
    letters = "abdefgh"
    left = letters[: max(0, len(first.dims) - 2)][::-1]
    right = letters[: max(0, len(second.dims) - 2)][::-1]
    batch = max(left, right, key=len)
    return contract(axes, first, second, f"{left}{rows}k,{right}k{columns}->{batch}{rows}{columns}")


@register(*aten("addmm addmv baddbmm"))
def add_product(axes: AxisTable, call: Call) -> Value:
    """c + A B."""
    names = {"aten.addmm": ("mat1", "mat2"), "aten.addmv": ("mat", "vec"), "aten.baddbmm": ("batch1", "batch2")}
    first, second = names[call.operator.rstrip("_").rpartition(".")[0].rstrip("_")]
    product = _matmul(axes, call.value(first), call.value(second))
    return add_bias(axes, product, call.value("self"), call.shape)


@register(*aten("outer ger"))
def outer(axes: AxisTable, call: Call) -> Value:
    """x y^T."""
    return Value(call.value("self").dims + call.value("vec2").dims)


@register(*aten("bilinear"))
def bilinear(axes: AxisTable, call: Call) -> Value:
    """sum over i, j of x_i w[o, i, j] y_j, + b."""
    first, second, weight = (call.value(name) for name in ("input1", "input2", "weight"))
    batch = "abcdefgh"[: len(first.dims) - 1]
    half = contract(axes, first, weight, f"{batch}i,oij->{batch}oj")
    result = contract(axes, half, second, f"{batch}oj,{batch}j->{batch}o")
    bias = call.arguments["bias"]
    return result if bias is None else add_bias(axes, result, bias, call.shape)


@register(*aten("einsum"))
def einsum(axes: AxisTable, call: Call) -> Value | None:
    """One or two tensors, every index once per tensor; other forms are not handled."""
    tensors = call.arguments["tensors"]
    equation = _spelled(call.arguments["equation"].replace(" ", ""), tensors)
    inputs = equation.split("->")[0].split(",")
    if len(tensors) > 2 or any(len(set(term)) < len(term) for term in inputs):
        return None
    if "->" not in equation:
        letters = "".join(inputs)
        once = sorted(letter for letter in letters if letters.count(letter) == 1 or letter.isdigit())
        equation += "->" + "".join(dict.fromkeys(once))
    if len(tensors) == 1:
        tensors, equation = [*tensors, Value(())], equation.replace("->", ",->")
    return contract(axes, tensors[0], tensors[1], equation)


def _spelled(equation: str, tensors: Sequence[Value]) -> str:
    """The equation with each ellipsis written out in digits, aligned at the right."""
    inputs, arrow, output = equation.partition("->")
    terms, longest = [], 0
    for term, tensor in zip(inputs.split(","), tensors, strict=True):
        hidden = len(tensor.dims) - len(term.replace("...", ""))
        longest = max(longest, hidden)
        terms.append(term.replace("...", "0123456789"[10 - hidden :]))
    return ",".join(terms) + arrow + output.replace("...", "0123456789"[10 - longest :])
