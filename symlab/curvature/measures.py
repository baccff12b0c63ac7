"""Numbers that compare curvature matrices: of dense matrices, and of operators without forming them.

Legend: P  number of weights;  k  isotypic block;  M_k [m_k, m_k]  its matrix;  D_k  its multiplicity;  a, b  tensors.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from symlab.symmetry import InvariantOperator, WeightSymmetry

Pair = tuple[str, str]


def correlation(x: Tensor, y: Tensor) -> float:
    """Pearson's r = sum (x - mean x)(y - mean y) / sqrt(sum (x - mean x)^2 sum (y - mean y)^2) over all entries.

    Any equal shapes; nan where one of the two is constant.

    Raises:
        ValueError: shapes differ.
    """
    if x.shape != y.shape:
        raise ValueError(f"correlation needs equal shapes, got {list(x.shape)} and {list(y.shape)}")
    return float(correlations(x.double().flatten(), y.double().flatten()))


def correlations(x: Tensor, y: Tensor) -> Tensor:
    """Pearson's r [...] of the rows of x and y [..., F]; shapes broadcast; nan where one of the two is constant."""
    return cosines(x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True))


def cosines(x: Tensor, y: Tensor) -> Tensor:
    """x.y / (|x| |y|) [...] of the rows of x and y [..., F]; shapes broadcast; nan where one of the two is zero."""
    scale = x.norm(dim=-1) * y.norm(dim=-1)
    return torch.where(scale > 0, (x * y).sum(-1) / scale, float("nan"))


def operator_correlation(a: InvariantOperator, b: InvariantOperator) -> float:
    """Pearson's r over all P^2 entries of two operators of one symmetry: `correlation(a.dense(), b.dense())`.

    From tr(A^T B) and the sums of the entries 1^T A 1, so no P x P matrix is formed. nan where one is constant.
    """
    count = float(a.symmetry.num_parameters) ** 2
    mean_a, mean_b = _entry_sum(a) / count, _entry_sum(b) / count
    covariance = float(a.inner(b)) / count - mean_a * mean_b
    variance_a = float(a.inner(a)) / count - mean_a**2
    variance_b = float(b.inner(b)) / count - mean_b**2
    return covariance / (variance_a * variance_b) ** 0.5 if variance_a > 0 and variance_b > 0 else float("nan")


def _entry_sum(operator: InvariantOperator) -> float:
    """1^T Sigma 1."""
    matrix = operator.matrices[0]
    ones = {
        name: torch.ones(shape, dtype=matrix.dtype, device=matrix.device)
        for name, shape in operator.symmetry.shapes.items()
    }
    return float(sum(product.sum() for product in operator.matvec(ones).values()))


def condition_number(eigenvalues: Tensor) -> float:
    """max |lambda| / min |lambda|; inf where an eigenvalue is zero."""
    magnitudes = eigenvalues.abs()
    smallest = float(magnitudes.min())
    return float(magnitudes.max()) / smallest if smallest > 0 else float("inf")


def tensor_pairs(names: Sequence[str]) -> list[Pair]:
    """All pairs (a, b) of tensors with a not after b."""
    return [(a, b) for i, a in enumerate(names) for b in names[i:]]


def pair_slices(names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, slice]:
    """Rows of each tensor in the dense matrix [P, P]."""
    places, start = {}, 0
    for name in names:
        places[name] = slice(start, start + sizes[name])
        start += sizes[name]
    return places


def tensor_rows(symmetry: WeightSymmetry) -> list[dict[str, Tensor]]:
    """For each block k: tensor -> the rows of M_k (int64) that are copies in that tensor."""
    found = []
    for block in symmetry.blocks:
        rows: dict[str, list[int]] = {}
        for piece in block.pieces:
            rows.setdefault(piece.tensor, []).extend(range(piece.start, piece.stop))
        found.append({name: torch.tensor(indices) for name, indices in rows.items()})
    return found


def pair_factors(operator: InvariantOperator, rows: Sequence[Mapping[str, Tensor]], pair: Pair) -> list[Tensor]:
    """M_k restricted to rows of tensor a and columns of tensor b, for each block that couples them.

    `rows`: what `tensor_rows` gives for the operator's symmetry.
    """
    a, b = pair
    return [
        matrix[own[a].to(matrix.device)][:, own[b].to(matrix.device)]
        for matrix, own in zip(operator.matrices, rows, strict=True)
        if a in own and b in own
    ]


def pair_norm(operator: InvariantOperator, rows: Sequence[Mapping[str, Tensor]], pair: Pair) -> float:
    """Frobenius norm of the part of Sigma with rows in tensor a and columns in b: sqrt(sum_k D_k ||M_k[a, b]||^2)."""
    a, b = pair
    dimensions = [
        block.dimension for block, own in zip(operator.symmetry.blocks, rows, strict=True) if a in own and b in own
    ]
    parts = pair_factors(operator, rows, pair)
    return float(sum(d * float(part.double().square().sum()) for d, part in zip(dimensions, parts, strict=True))) ** 0.5
