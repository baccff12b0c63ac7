"""Running averages of a net's own structured factors, and how far they stand for the average over nets.

Source: Bernacchia, "Global curvature for second-order optimization of neural networks" (ICML 2025), momentum.

Legend: S  nets;  k  isotypic block;  G_k [S, m_k, N_k]  pieces of their gradients in it;  D_k  dimension of its
irreducible piece;  M_k [m_k, m_k]  structured matrix;  a, b  tensors;  F  entries of all M_k, pairs (a, b) once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from symlab.curvature.measures import Pair, tensor_pairs, tensor_rows
from symlab.curvature.statistics import jackknife_error
from symlab.symmetry import WeightSymmetry

ALL = "all"
"""The part of the factors that is all of them; the others are called `<tensor> x <tensor>`."""


@dataclass(frozen=True)
class FactorLayout:
    """Where the factors of each pair of tensors stand in one vector of F entries.

    M_k[a, b] of every block k that couples tensors a and b, row-major; each pair once, so M_k[b, a] is left out for
    a before b, while M_k[a, a] is there with both its triangles: the published convention (three matrices of a net with
    one hidden layer: first weight, both weights, second weight).
    """

    symmetry: WeightSymmetry
    pairs: Mapping[Pair, Sequence[tuple[int, Tensor, Tensor]]]  # (k, rows of a, rows of b)
    parts: Mapping[str, slice]

    @classmethod
    def of(cls, symmetry: WeightSymmetry) -> "FactorLayout":
        """The layout of all factors of a symmetry."""
        rows = tensor_rows(symmetry)
        pairs: dict[Pair, list[tuple[int, Tensor, Tensor]]] = {}
        for a, b in tensor_pairs(list(symmetry.axes)):
            shared = [(k, own[a], own[b]) for k, own in enumerate(rows) if a in own and b in own]
            if shared:
                pairs[a, b] = shared
        parts, start = {}, 0
        for (a, b), shared in pairs.items():
            size = sum(len(i) * len(j) for _, i, j in shared)
            parts[f"{a} x {b}"] = slice(start, start + size)
            start += size
        return cls(symmetry, pairs, {ALL: slice(0, start), **parts})

    @property
    def size(self) -> int:
        """F."""
        return self.parts[ALL].stop

    def entries(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """M_k = G_k G_k^T / D_k of each net as one vector [S, F], float64, from gradients [S, *shape]."""
        exact = {name: gradient.double() for name, gradient in gradients.items()}
        blocks = zip(self.symmetry.blocks, self.symmetry.split(exact), strict=True)
        matrices = [rows @ rows.mT / block.dimension for block, rows in blocks]  # [S, m_k, m_k]
        pieces = [
            matrices[k][:, i[:, None].to(matrices[k].device), j.to(matrices[k].device)].flatten(1)
            for shared in self.pairs.values()
            for k, i, j in shared
        ]
        return torch.cat(pieces, dim=1)

    def squared_norms(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """||g||^2 = sum_k D_k tr M_k of each net [S], float64."""
        return self.symmetry.flatten(gradients).double().square().sum(1)


class RunningAverage:
    """v_t = beta v_{t-1} + (1 - beta) x_t with v_{-1} = 0; `value` is v_t / (1 - beta^(t+1)).

    Raises:
        ValueError: beta outside of [0, 1).
    """

    def __init__(self, beta: float) -> None:
        if not 0 <= beta < 1:
            raise ValueError(f"beta must lie in [0, 1), got {beta}")
        self.beta = beta
        self._sum: Tensor | None = None
        self._steps = 0

    def update(self, x: Tensor) -> None:
        """Take in x_t."""
        self._steps += 1
        if self._sum is None:
            self._sum = (1 - self.beta) * x
        else:
            self._sum.lerp_(x, 1 - self.beta)

    def value(self) -> Tensor:
        """The average so far.

        Raises:
            ValueError: nothing was taken in.
        """
        if self._sum is None:
            raise ValueError("the average of nothing: call update first")
        return self._sum / (1 - self.beta**self._steps)


@dataclass(frozen=True)
class Pairwise:
    """Pearson's r between all pairs of nets: `mean` and `std` over pairs, and the means without each net in turn."""

    mean: float
    std: float  # nan for 2 nets
    without: tuple[float, ...]  # none for 2 nets

    @property
    def error(self) -> float:
        """Standard error of the mean, by the jackknife over nets: pairs that share a net are not independent."""
        return jackknife_error(self.without)

    def gain(self, other: "Pairwise") -> tuple[float, float]:
        """Difference of the means, and its error: the same nets, so the differences are paired."""
        differences = [mine - theirs for mine, theirs in zip(self.without, other.without, strict=True)]
        return self.mean - other.mean, jackknife_error(differences)


def pairwise_correlation(x: Tensor) -> Pairwise:
    """Mean over the pairs i < j of Pearson's r between rows i and j of x [S, F].

    Raises:
        ValueError: fewer than 2 rows.
    """
    S = len(x)
    if S < 2:
        raise ValueError(f"a correlation between nets needs at least 2, got {S}")
    standard = _standardised(x)
    matrix = standard @ standard.mT  # [S, S]
    i, j = torch.triu_indices(S, S, offset=1, device=x.device)
    values = matrix[i, j]  # [S (S - 1) / 2]
    if S == 2:
        return Pairwise(float(values), float("nan"), ())
    own = matrix.sum(1) - matrix.diagonal()  # [S]: sum over the pairs of each net
    without = (values.sum() - own) / ((S - 1) * (S - 2) / 2)  # [S]
    return Pairwise(float(values.mean()), float(values.std()), tuple(without.tolist()))


def mean_of_others(x: Tensor) -> Tensor:
    """For each net s the mean over all others: (sum_r x_r - x_s) / (S - 1), [S, F]."""
    return (x.sum(0) - x) / (len(x) - 1)


def _standardised(x: Tensor) -> Tensor:
    """Rows without their mean, of length 1; nan for a constant row."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / centred.norm(dim=-1, keepdim=True)
