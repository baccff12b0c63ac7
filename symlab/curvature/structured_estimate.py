"""Averages of curvature over models as blocks M_k alone: no P x P matrix is ever formed.

Legend: N  models;  S  models of one chunk;  k  isotypic block;  D_k  its multiplicity;  m_k  copies;
U_k [S, m_k, N_k]  pieces of vectors u in block k;  M_k [m_k, m_k].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from symlab.curvature.estimate import GRADIENT_QUANTITIES, check_quantity
from symlab.curvature.model_groups import ModelGroups, check_groups
from symlab.symmetry import InvariantOperator, WeightSymmetry


@dataclass
class BlockSums:
    """Sums over `count` models, in float64: of their M_k, and of their gradients where these are needed."""

    blocks: list[Tensor]  # [m_k, m_k]
    vectors: dict[str, Tensor]  # [*shape]; empty where not needed
    count: int = 0

    def add(self, other: "BlockSums") -> None:
        self.count += other.count
        for mine, theirs in zip(self.blocks, other.blocks, strict=True):
            mine += theirs
        for name, x in self.vectors.items():
            x += other.vectors[name]

    def empty(self) -> "BlockSums":
        blocks = [torch.zeros_like(block) for block in self.blocks]
        return BlockSums(blocks, {name: torch.zeros_like(x) for name, x in self.vectors.items()})


class StructuredEstimate:
    """P(C) as blocks M_k, C = (1/N) sum_i C_i over models i, from vectors u_i, v_i with E[u_i v_i^T] = C_i.

    M_k = (1/N) sum_i sym(U_k V_k^T) / D_k, with u = v the gradients for `second_moment`; for `covariance` centred and
    unbiased, 1/(N - 1). For `mean_gradient` only the vector is kept. What lies outside of the commutant is never
    formed, so there is no residual here; `leave_one_out` gives the spread over independent parts of the models.

    Args:
        symmetry: the structure.
        quantity: one of `QUANTITIES`.
        base: consecutive models that are in one fold.
        folds: independent parts of the models for `leave_one_out`. For covariance each keeps a vector of P numbers.

    Raises:
        ValueError: an unknown quantity, a base below 2, or no fold.
    """

    def __init__(self, symmetry: WeightSymmetry, quantity: str, base: int = 100, folds: int = 10) -> None:
        check_quantity(quantity)
        check_groups(base, folds)
        self.symmetry = symmetry
        self.quantity = quantity
        self._groups = ModelGroups(base, [self._sums() for _ in range(folds)])

    @property
    def count(self) -> int:
        """N."""
        return self._groups.count

    def update(self, u: Mapping[str, Tensor], v: Mapping[str, Tensor] | None = None) -> None:
        """Take in S models: vectors u [S, *shape], the gradients for the quantities of gradients; v None: the same.

        Raises:
            ValueError: wrong shapes.
            FloatingPointError: NaN or inf among them.
        """
        self.update_probes([(u, u if v is None else v)])

    def update_probes(self, probes: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]) -> None:
        """As `update`, with several probes (u, v) of the same S models: their mean counts as the model's matrix."""
        if self.quantity in GRADIENT_QUANTITIES and len(probes) != 1:
            raise ValueError(f"a model has one gradient: {self.quantity} takes 1 probe, got {len(probes)}")
        checked = [self._checked(u, v) for u, v in probes]
        models = {len(x) for u, v in checked for x in (next(iter(u.values())), next(iter(v.values())))}
        if len(models) != 1:
            raise ValueError(f"all probes must have the same number of models, got {sorted(models)}")
        for start, stop in self._groups.room(models.pop()):
            cut = [_rows(u, v, start, stop) for u, v in checked]
            self._groups.add(self._sums_of(cut, stop - start))

    def blocks(self) -> InvariantOperator:
        """The operator with the blocks M_k, in float64.

        Raises:
            ValueError: mean_gradient has none, see `mean_vector`.
        """
        return self._operator(self._groups.total())

    def mean_vector(self) -> dict[str, Tensor]:
        """(1/N) sum_i g_i as tensors [*shape], float64, for mean_gradient and covariance."""
        total = self._groups.total()
        if not total.vectors:
            raise ValueError(f"{self.quantity} keeps no mean gradient")
        return {name: x / total.count for name, x in total.vectors.items()}

    def leave_one_out(self) -> list[InvariantOperator]:
        """The estimate of all models but one fold's, for each fold that holds models: what a jackknife needs."""
        folds = [fold for fold in self._groups.folds if fold.count]
        return [self._operator(_joined(folds, skip=i)) for i in range(len(folds))] if len(folds) > 1 else []

    def state_dict(self) -> dict[str, Any]:
        """All that was summed up so far, as plain tensors and numbers."""
        groups = self._groups
        return {
            "folds": [(fold.blocks, fold.vectors, fold.count) for fold in groups.folds],
            "levels": [(level.blocks, level.vectors, level.count) for level in groups.levels],
            "base_groups": groups.base_groups,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write back what `state_dict` of an estimate with the same arguments returned."""
        groups = self._groups
        groups.folds = [BlockSums(*sums) for sums in state["folds"]]
        groups.levels = [BlockSums(*sums) for sums in state["levels"]]
        groups.base_groups = state["base_groups"]

    def _sums(self) -> BlockSums:
        blocks = [
            torch.zeros(block.copies, block.copies, dtype=torch.float64)
            for block in (() if self.quantity == "mean_gradient" else self.symmetry.blocks)
        ]
        needed = self.quantity in ("mean_gradient", "covariance")
        shapes = self.symmetry.shapes if needed else {}
        return BlockSums(blocks, {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()})

    def _checked(self, u: Mapping[str, Tensor], v: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Both in the symmetry's order; one object where they are the same vectors."""
        own_u = self.symmetry.with_sample_dimension(u)
        return own_u, own_u if v is u else self.symmetry.with_sample_dimension(v)

    def _sums_of(self, probes: Sequence[tuple[dict[str, Tensor], dict[str, Tensor]]], models: int) -> BlockSums:
        blocks: list[Tensor] = []
        if self.quantity != "mean_gradient":
            every = [block_sums(self.symmetry, u, v) for u, v in probes]
            blocks = [torch.stack(matrices).mean(0) for matrices in zip(*every, strict=True)]
        vectors = {}
        if self.quantity in ("mean_gradient", "covariance"):  # of one model as it is: no copy of a large net's gradient
            ((u, _),) = probes
            vectors = {name: (x[0] if models == 1 else x.sum(0, dtype=torch.float64)).cpu() for name, x in u.items()}
        if not all(bool(x.isfinite().all()) for x in (blocks or vectors.values())):  # every entry enters some block
            names = [name for pair in probes for x in pair for name, y in x.items() if not bool(y.isfinite().all())]
            raise FloatingPointError(
                f"a model's {self.quantity} holds NaN or inf" + (f" in {names[0]}" if names else ": it overflows")
            )
        return BlockSums(blocks, vectors, models)

    def _operator(self, sums: BlockSums) -> InvariantOperator:
        if self.quantity == "mean_gradient":
            raise ValueError("mean_gradient is a vector, see mean_vector: it has no blocks")
        n = sums.count
        if self.quantity != "covariance":
            return InvariantOperator(self.symmetry, [matrix / n for matrix in sums.blocks])
        if n < 2:
            raise ValueError(f"a covariance needs at least 2 models, got {n}")
        of_sum = self.symmetry.project(sums.vectors).matrices  # of the sum's outer product
        centred = [(total - own / n) / (n - 1) for total, own in zip(sums.blocks, of_sum, strict=True)]
        return InvariantOperator(self.symmetry, centred)


def _rows(
    u: dict[str, Tensor], v: dict[str, Tensor], start: int, stop: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    own = {name: x[start:stop] for name, x in u.items()}
    return own, own if v is u else {name: x[start:stop] for name, x in v.items()}


def block_sums(symmetry: WeightSymmetry, u: Mapping[str, Tensor], v: Mapping[str, Tensor]) -> list[Tensor]:
    """sum over s of sym(U_k V_k^T) / D_k [m_k, m_k], float64 on the CPU, from u and v [S, *shape]."""
    found = []
    left = symmetry.split(u)
    right = left if v is u else symmetry.split(v)
    for block, a, b in zip(symmetry.blocks, left, right, strict=True):
        rows_a = a.transpose(0, 1).reshape(block.copies, -1)  # [m_k, S N_k]
        rows_b = rows_a if b is a else b.transpose(0, 1).reshape(block.copies, -1)
        product = (rows_a @ rows_b.mT).to("cpu", torch.float64) / block.dimension
        found.append((product + product.mT) / 2)  # also of u with itself: float32 products are symmetric up to rounding
    return found


def _joined(folds: Sequence[BlockSums], skip: int = -1) -> BlockSums:
    whole = folds[0].empty()
    for i, fold in enumerate(folds):
        if i != skip:
            whole.add(fold)
    return whole
