"""Averages of dense curvature matrices over models, with what of them lies outside of a symmetry's commutant.

Legend: N  models;  P  weights;  g_i [P], C_i [P, P]  gradient and matrix of model i;  C  their average;
P(C)  projection on the commutant (Reynolds operator);  O = C - P(C)  the part outside.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from symlab.curvature.model_groups import ModelGroups, check_groups
from symlab.symmetry import InvariantOperator, WeightSymmetry

QUANTITIES = ("mean_gradient", "second_moment", "covariance", "hessian", "ggn", "fisher", "empirical_fisher")
GRADIENT_QUANTITIES = ("mean_gradient", "second_moment", "covariance")
"""Averages of gradients; the others are averages of matrices."""

RIGHT = "right"
"""Name of the structure that the estimate is projected on; further ones have names of their own."""


@dataclass
class DenseSums:
    """Sums over `count` models, in float64: of g_i and g_i g_i^T, or of C_i; None where not needed."""

    vector: Tensor | None  # [P]
    matrix: Tensor | None  # [P, P]
    count: int = 0

    def add(self, other: "DenseSums") -> None:
        self.count += other.count
        if self.vector is not None and other.vector is not None:
            self.vector += other.vector
        if self.matrix is not None and other.matrix is not None:
            self.matrix += other.matrix

    def empty(self) -> "DenseSums":
        vector = None if self.vector is None else torch.zeros_like(self.vector)
        return DenseSums(vector, None if self.matrix is None else torch.zeros_like(self.matrix))


@dataclass(frozen=True)
class GroupResidual:
    """Of one group of `models` consecutive models, for one structure."""

    structure: str
    models: int
    group: int
    outside: float  # ||O||_F
    norm: float  # ||C||_F

    @property
    def residual(self) -> float:
        """||O||_F / ||C||_F; nan for C = 0."""
        return self.outside / self.norm if self.norm > 0 else float("nan")


@dataclass(frozen=True)
class Residual:
    """Over all groups of `models` models; `expected`: what sampling noise alone would leave, see `DenseEstimate`."""

    structure: str
    models: int
    groups: int
    residual: float  # mean over the groups
    residual_std: float  # over the groups, nan for a single one
    expected: float  # nan while fewer than two base groups are complete


class DenseEstimate:
    """C = (1/N) sum_i C_i over models i, [P, P], and ||C - P(C)||_F / ||C||_F for groups of every size in one pass.

    For `second_moment` C_i = g_i g_i^T. For `covariance` C = 1/(N - 1) sum_i (g_i - mean)(g_i - mean)^T, unbiased. For
    `mean_gradient` everything holds with the vector (1/N) sum_i g_i [P] in place of the matrix.

    Sampling noise alone: with O_b the outside part of base group b (of n models each), V = sum_b ||O_b - mean O||^2 /
    (B - 1) is the variance of the outside part of n models, whatever its mean; so of N models noise leaves
    ||O||^2 = V n / N, and `expected` is sqrt(V n / N) / ||C||, with the mean norm of the groups of N models.

    Args:
        symmetry: the structure; the order of its tensors is that of the matrices.
        quantity: one of `QUANTITIES`.
        base, ratio: groups have base * ratio^j models.
        structures: further structures by name, e.g. a deliberately wrong one.
        folds: independent parts of the models for `leave_one_out`.

    Raises:
        ValueError: an unknown quantity, a base or ratio below 2, no fold, or a structure named "right".
    """

    def __init__(
        self,
        symmetry: WeightSymmetry,
        quantity: str,
        base: int = 100,
        ratio: int = 10,
        structures: Mapping[str, WeightSymmetry] | None = None,
        folds: int = 10,
    ) -> None:
        check_quantity(quantity)
        check_groups(base, folds, ratio)
        if RIGHT in (structures or {}):
            raise ValueError(f"the name {RIGHT!r} stands for `symmetry`: give the structure another name")
        self.symmetry = symmetry
        self.quantity = quantity
        self.structures = {RIGHT: symmetry, **(structures or {})}
        self._device = torch.device("cpu")
        self._groups = ModelGroups(base, [self._sums() for _ in range(folds)], ratio, self._finished)
        self._residuals: list[GroupResidual] = []
        self._outside_squares = dict.fromkeys(self.structures, 0.0)  # sum over base groups of ||O_b||^2
        self._base_values: Tensor | None = None  # sum over base groups of C_b

    @property
    def count(self) -> int:
        """N."""
        return self._groups.count

    def update(self, samples: Mapping[str, Tensor] | Tensor) -> None:
        """Take in models: their gradients [S, *shape] for the quantities of gradients, else their matrices [S, P, P].

        Raises:
            ValueError: wrong shapes.
            FloatingPointError: NaN or inf among them.
        """
        P = self.symmetry.num_parameters
        if self.quantity in GRADIENT_QUANTITIES:
            if isinstance(samples, Tensor):
                raise ValueError(f"{self.quantity} is estimated from gradients by name, got a tensor")
            values = self.symmetry.flatten(self.symmetry.with_sample_dimension(samples)).to(torch.float64)  # [S, P]
        else:
            if not isinstance(samples, Tensor) or samples.ndim != 3 or samples.shape[1:] != (P, P):
                raise ValueError(f"{self.quantity} is estimated from matrices [S, {P}, {P}], one per model")
            values = samples.to(torch.float64)
        if not bool(values.isfinite().all()):
            raise FloatingPointError(f"a model's {self.quantity} holds NaN or inf")
        values = values.to(self._device)
        for start, stop in self._groups.room(len(values)):
            self._groups.add(self._sums_of(values[start:stop]))

    def matrix(self) -> Tensor:
        """C [P, P] in float64 (for mean_gradient the vector [P])."""
        return self._value(self._groups.total())

    def operator(self) -> InvariantOperator:
        """P(C)."""
        return self.symmetry.project_dense(self.matrix())

    def leave_one_out(self) -> list[Tensor]:
        """C of all models but one fold's, for each fold that holds models: what a jackknife needs."""
        folds = [fold for fold in self._groups.folds if fold.count]
        return [self._value(self._joined(folds, skip=i)) for i in range(len(folds))] if len(folds) > 1 else []

    def group_residuals(self) -> list[GroupResidual]:
        """One entry per structure and complete group."""
        return list(self._residuals)

    def residuals(self) -> list[Residual]:
        """One entry per structure and size of groups, ascending, and one for all N models."""
        total = self._groups.total()
        if total.count < 2:
            return []
        found = []
        for name in self.structures:
            sizes: dict[int, list[GroupResidual]] = {}
            for row in self._residuals:
                if row.structure == name:
                    sizes.setdefault(row.models, []).append(row)
            if total.count not in sizes:
                sizes[total.count] = [self._residual(name, self._value(total), total.count, 0)]
            variance = self._noise(name)
            found += [_over_groups(rows, variance) for _, rows in sorted(sizes.items())]
        return found

    def state_dict(self) -> dict[str, Any]:
        """All that was summed up so far, as plain tensors and numbers."""
        groups = self._groups
        return {
            "folds": [(fold.vector, fold.matrix, fold.count) for fold in groups.folds],
            "levels": [(level.vector, level.matrix, level.count) for level in groups.levels],
            "base_groups": groups.base_groups,
            "residuals": [(row.structure, row.models, row.group, row.outside, row.norm) for row in self._residuals],
            "outside_squares": dict(self._outside_squares),
            "base_values": self._base_values,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write back what `state_dict` of an estimate with the same arguments returned."""
        groups = self._groups
        groups.folds = [DenseSums(*sums) for sums in state["folds"]]
        groups.levels = [DenseSums(*sums) for sums in state["levels"]]
        groups.base_groups = state["base_groups"]
        self._residuals = [GroupResidual(*row) for row in state["residuals"]]
        self._outside_squares = dict(state["outside_squares"])
        self._base_values = state["base_values"]

    def _sums(self) -> DenseSums:
        P = self.symmetry.num_parameters
        vector = torch.zeros(P, dtype=torch.float64) if self.quantity in ("mean_gradient", "covariance") else None
        matrix = None if self.quantity == "mean_gradient" else torch.zeros(P, P, dtype=torch.float64)
        return DenseSums(vector, matrix)

    def _sums_of(self, values: Tensor) -> DenseSums:
        """Of gradients [S, P] or matrices [S, P, P]."""
        if self.quantity not in GRADIENT_QUANTITIES:
            total = values.sum(0)
            return DenseSums(None, (total + total.mT) / 2, len(values))
        vector = None if self.quantity == "second_moment" else values.sum(0)
        matrix = None if self.quantity == "mean_gradient" else values.mT @ values
        return DenseSums(vector, matrix, len(values))

    def _value(self, sums: DenseSums) -> Tensor:
        """C of the models in the sums."""
        n = sums.count
        if self.quantity == "mean_gradient":
            assert sums.vector is not None
            return sums.vector / n
        assert sums.matrix is not None
        if self.quantity != "covariance":
            return sums.matrix / n
        assert sums.vector is not None
        if n < 2:
            raise ValueError(f"a covariance needs at least 2 models, got {n}")
        return (sums.matrix - torch.outer(sums.vector, sums.vector) / n) / (n - 1)

    def _joined(self, folds: list[DenseSums], skip: int = -1) -> DenseSums:
        whole = folds[0].empty()
        for i, fold in enumerate(folds):
            if i != skip:
                whole.add(fold)
        return whole

    def _finished(self, level: int, sums: DenseSums) -> None:
        value = self._value(sums)
        group = sum(row.structure == RIGHT and row.models == sums.count for row in self._residuals)
        for name in self.structures:
            row = self._residual(name, value, sums.count, group)
            self._residuals.append(row)
            if level == 0:
                self._outside_squares[name] += row.outside**2
        if level == 0:
            self._base_values = value.clone() if self._base_values is None else self._base_values + value

    def _residual(self, structure: str, value: Tensor, models: int, group: int) -> GroupResidual:
        outside = outside_norm(self.structures[structure], value)
        return GroupResidual(structure, models, group, outside, float(value.norm()))

    def _noise(self, name: str) -> float:
        """V n: the variance of the outside part of one model."""
        B = self._groups.base_groups
        if B < 2:
            return float("nan")
        assert self._base_values is not None
        mean = outside_norm(self.structures[name], self._base_values / B)
        variance = (self._outside_squares[name] - B * mean**2) / (B - 1)
        return max(variance, 0.0) * self._groups.base


def _over_groups(rows: list[GroupResidual], variance: float) -> Residual:
    """Of groups of one size; `variance`: of the outside part of one model."""
    residuals = torch.tensor([row.residual for row in rows], dtype=torch.float64)
    norm = sum(row.norm for row in rows) / len(rows)
    return Residual(
        structure=rows[0].structure,
        models=rows[0].models,
        groups=len(rows),
        residual=float(residuals.mean()),
        residual_std=float(residuals.std()) if len(rows) > 1 else float("nan"),
        expected=(variance / rows[0].models) ** 0.5 / norm if norm > 0 else float("nan"),
    )


def check_quantity(quantity: str) -> None:
    """Raises ValueError for a name that is not one of `QUANTITIES`."""
    if quantity not in QUANTITIES:
        raise ValueError(f"quantity must be one of {', '.join(QUANTITIES)}, got {quantity!r}")


def project_value(symmetry: WeightSymmetry, value: Tensor) -> Tensor:
    """The Reynolds operator on a matrix [P, P] or a vector [P]."""
    if value.ndim == 2:
        return symmetry.project_dense(value).dense()
    mean = symmetry.project_mean(symmetry.unflatten(value[None]))
    return symmetry.flatten({name: x.unsqueeze(0) for name, x in mean.items()})[0]


def outside_norm(symmetry: WeightSymmetry, value: Tensor) -> float:
    """||C - P(C)||_F of a matrix [P, P] or a vector [P]."""
    return float((value - project_value(symmetry, value)).norm())
