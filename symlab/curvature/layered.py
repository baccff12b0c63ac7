"""Second-order matrices of nets whose weights all belong to linear layers: by unit and row instead of by weight.

A weight acts on a row's loss through what it adds to one unit: d z_l = dW_l a_(l-1) + db_l. So with e_l [out_l] added
to the outputs of layer l, Q_lm = d^2 loss_r / d e_l d e_m of row r, g_l its slope, D = d a_(m-1) / d e_l (l < m),

    H[(l, i, j), (m, k, q)] = sum_r a_(l-1, j) a_(m-1, q) Q_lm[i, k] + [l < m] g_m[k] a_(l-1, j) D[i, q],

exactly. There are far fewer units than weights, so this costs much less than a derivative per weight. For GGN, Fisher
and empirical Fisher Q comes from the outputs' Jacobian in e and the second term is absent.

Legend: B  rows;  C  outputs;  l, m  layers, i, k  their units, j, q  their inputs (the last one is 1, for the bias);
E = sum out_l;  A_l = in_l + 1 (in_l without a bias);  P  weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap
from torch.nn import functional

from symlab.curvature.forward_mode import jvp
from symlab.curvature.label_law import row_slopes
from symlab.curvature.linear_layers import Tapped
from symlab.curvature.problem import Problem

Pair = tuple[int, int]
Middle = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, C], targets) -> the matrix [B, C, C] between the Jacobians of a row."""


@dataclass(frozen=True)
class LayerIndex:
    """Where the entries of all pairs (l, m), l <= m, stand in the matrix; of (l, l) those with i <= k, j <= q."""

    widths: tuple[int, ...]  # out_l
    has_bias: tuple[bool, ...]
    gather: Tensor  # [P P]: place of each entry of the matrix in the concatenation over pairs

    @property
    def pairs(self) -> list[Pair]:
        return [(m, n) for m in range(len(self.widths)) for n in range(m, len(self.widths))]


def layer_index(problem: Problem) -> LayerIndex:
    """The index of a problem that has `layers`."""
    assert problem.layers is not None
    places = problem.unflatten(torch.arange(problem.num_parameters))
    positions = []  # per layer [out_l, A_l]: number of each weight
    for layer in problem.layers:
        columns = [places[layer.weight]]
        if layer.bias is not None:
            columns.append(places[layer.bias].unsqueeze(1))
        positions.append(torch.cat(columns, dim=1))
    start = 0
    P = problem.num_parameters
    gather = torch.empty(P, P, dtype=torch.int64)
    for m, rows in enumerate(positions):
        for n, columns_of in enumerate(positions[m:], start=m):
            (d, a), (e, b) = rows.shape, columns_of.shape
            if m == n:
                units, inputs = torch.triu_indices(d, d), torch.triu_indices(a, a)
                unit, entry = _symmetric_number(units, d), _symmetric_number(inputs, a)
                numbers = start + unit[:, None, :, None] * inputs.shape[1] + entry[None, :, None, :]  # [d, a, d, a]
                start += units.shape[1] * inputs.shape[1]
            else:
                numbers = (start + torch.arange(d * e * a * b)).reshape(d, e, a, b).permute(0, 2, 1, 3)
                start += d * e * a * b
            block = numbers.reshape(d * a, e * b)
            gather[rows.flatten()[:, None], columns_of.flatten()] = block
            gather[columns_of.flatten()[:, None], rows.flatten()] = block.T
    has_bias = tuple(layer.bias is not None for layer in problem.layers)
    widths = tuple(len(rows) for rows in positions)
    return LayerIndex(widths, has_bias, gather.flatten().to(problem.inputs.device))


def layered_hessian(
    problem: Problem, index: LayerIndex, own: Mapping[str, Tensor], inputs: Tensor, targets: Tensor
) -> Tensor:
    """d^2 / d theta^2 of the mean loss over these rows, of one model [P, P]: forward over reverse mode, exactly
    symmetric.
    """
    entries = []
    for m in range(len(index.widths)):
        second, moved, slopes, seen = _moved_by_units(problem, index, own, inputs, targets, m)
        ones = _with_ones(index, seen)
        for n in range(m, len(index.widths)):
            extra = (moved[n], slopes[n - m]) if m < n else None
            entries.append(_contract(index, (m, n), second[n - m], ones, extra))
    return torch.cat(entries).index_select(0, index.gather).reshape(problem.num_parameters, -1)


def _moved_by_units(
    problem: Problem, index: LayerIndex, own: Mapping[str, Tensor], inputs: Tensor, targets: Tensor, m: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    """What moves when something is added to a unit i of layer m: Q_mn [out_m, out_n, B] for each layer n >= m;
    D [out_m, in_n, B] for each layer n; and, as they are, g_n [out_n, B] for n >= m and a_n [in_n, B] for all n.
    """
    added = _nothing(problem, index, inputs)
    before, behind = added[:m], added[m:]

    def slope(e: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        def value(e: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            outputs, seen = _tapped(problem, own, inputs, [*before, *e])
            return problem.loss(outputs, targets), seen

        return grad(value, has_aux=True)(e)

    def along(unit: Tensor) -> tuple[list[Tensor], ...]:
        direction = unit.unsqueeze(-1).expand(-1, len(inputs))  # [out_m, B]
        found: Any = jvp(lambda e: slope([e, *behind[1:]]), (behind[0],), (direction,))
        (slopes, seen), (second, moved) = found
        return second, moved, slopes, seen

    basis = torch.eye(index.widths[m], dtype=problem.dtype, device=inputs.device)
    second, moved, slopes, seen = vmap(along)(basis)  # the last two are the same for every unit
    return second, moved, [x[0] for x in slopes], [x[0] for x in seen]


def layered_sandwich(
    problem: Problem, index: LayerIndex, own: Mapping[str, Tensor], inputs: Tensor, targets: Tensor, middle: Middle
) -> Tensor:
    """(1/B) sum_r J_r^T middle_r J_r of one model [P, P], J_r [C, P] the derivative of row r's outputs."""
    outputs, pull, seen = _linearised(problem, index, own, inputs)
    between = middle(outputs, targets) / len(inputs)  # [B, C, C]
    C = outputs.shape[1]
    basis = torch.eye(C, dtype=outputs.dtype, device=outputs.device).unsqueeze(1).expand(-1, len(inputs), -1)
    (jacobians,) = vmap(pull)(basis)  # per layer [C, out_l, B]
    between = between.permute(1, 2, 0).unsqueeze(2)  # [C, C, 1, B]
    weighted = [(between * jacobian).sum(1) for jacobian in jacobians]  # per layer [C, out_l, B]
    squares = {
        (m, n): (jacobians[m].unsqueeze(2) * weighted[n].unsqueeze(1)).sum(0)  # [out_l, out_m, B]
        for m, n in index.pairs
    }
    return _assemble(problem, index, squares, seen)


def layered_outer(
    problem: Problem, index: LayerIndex, own: Mapping[str, Tensor], inputs: Tensor, targets: Tensor
) -> Tensor:
    """(1/B) sum_r g_r g_r^T of one model [P, P], g_r the gradient of row r's loss."""
    outputs, pull, seen = _linearised(problem, index, own, inputs)
    (slopes,) = pull(row_slopes(problem.loss, outputs, targets).to(outputs))  # per layer [out_l, B]
    scaled = [x / len(inputs) for x in slopes]
    squares = {(m, n): slopes[m].unsqueeze(1) * scaled[n].unsqueeze(0) for m, n in index.pairs}
    return _assemble(problem, index, squares, seen)


def _nothing(problem: Problem, index: LayerIndex, inputs: Tensor) -> list[Tensor]:
    """Zeros [out_l, B] per layer."""
    return [torch.zeros(d, len(inputs), dtype=problem.dtype, device=inputs.device) for d in index.widths]


def _tapped(
    problem: Problem, own: Mapping[str, Tensor], inputs: Tensor, added: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Outputs [B, C], and the inputs [in_l, B] of each layer."""
    with Tapped(added) as tapped:
        outputs = problem.outputs(own, inputs)
    return outputs, [x.mT for x in tapped.inputs]


def _linearised(
    problem: Problem, index: LayerIndex, own: Mapping[str, Tensor], inputs: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[list[Tensor]]], list[Tensor]]:
    """Outputs [B, C]; the map from slopes [B, C] in them to slopes [out_l, B] per layer; inputs [in_l, B] per layer."""
    found: Any = vjp(lambda e: _tapped(problem, own, inputs, e), _nothing(problem, index, inputs), has_aux=True)
    return found


def _with_ones(index: LayerIndex, seen: Sequence[Tensor]) -> list[Tensor]:
    """[A_l, B]: the inputs of each layer, and a row of ones where it has a bias."""
    return [
        functional.pad(x, (0, 0, 0, 1), value=1.0) if bias else x for x, bias in zip(seen, index.has_bias, strict=True)
    ]


def _assemble(problem: Problem, index: LayerIndex, squares: Mapping[Pair, Tensor], seen: Sequence[Tensor]) -> Tensor:
    ones = _with_ones(index, seen)
    entries = [_contract(index, pair, squares[pair], ones, None) for pair in index.pairs]
    return torch.cat(entries).index_select(0, index.gather).reshape(problem.num_parameters, -1)


def _contract(
    index: LayerIndex, pair: Pair, square: Tensor, ones: Sequence[Tensor], extra: tuple[Tensor, Tensor] | None
) -> Tensor:
    """All entries of one pair, flat: sum over rows of Q [d, e, B] times products of the layers' inputs [A, B].

    `extra`: D [d, in_m, B] and g_m [e, B] of the second term.
    """
    m, n = pair
    if m == n:
        own = ones[m]
        products = torch.cat([own[j:] * own[j : j + 1] for j in range(len(own))])  # [A (A + 1) / 2, B]
        units = torch.cat([square[i, i:] for i in range(len(square))])  # [d (d + 1) / 2, B]
        return (units @ products.mT).flatten()
    (d, e, _), a, b = square.shape, len(ones[m]), len(ones[n])
    products = (ones[m].unsqueeze(1) * ones[n].unsqueeze(0)).flatten(0, 1)  # [A_l A_m, B]
    entries = (square.flatten(0, 1) @ products.mT).reshape(d, e, a, b)
    if extra is not None:
        moved, slopes = extra
        outer = (slopes.unsqueeze(1) * ones[m].unsqueeze(0)).flatten(0, 1)  # [e A_l, B]
        second = (moved.flatten(0, 1) @ outer.mT).reshape(d, len(moved[0]), e, a).permute(0, 2, 3, 1)  # [d, e, a, in_m]
        entries = entries + functional.pad(second, (0, b - second.shape[-1]))
    return entries.flatten()


def _symmetric_number(upper: Tensor, size: int) -> Tensor:
    """[size, size]: the number of each entry among those of the upper triangle."""
    numbers = torch.empty(size, size, dtype=torch.int64)
    count = torch.arange(upper.shape[1])
    numbers[upper[0], upper[1]] = count
    numbers[upper[1], upper[0]] = count
    return numbers
