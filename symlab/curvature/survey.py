"""Estimates of several quantities at several gradient steps, over one ensemble of models and one data set.

Legend: N  models;  S  models of one chunk;  P  weights;  k  isotypic block;  M_k [m_k, m_k]  its matrix.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from symlab.curvature.ensemble import Build, descend, draw, mixed_seed
from symlab.curvature.estimate import GRADIENT_QUANTITIES, DenseEstimate, check_quantity
from symlab.curvature.gradients import gradients
from symlab.curvature.label_law import label_law
from symlab.curvature.memory import CACHE, GIB, as_gib, chunk_size, model_bytes, sums_bytes
from symlab.curvature.probes import empirical_fisher_probes, fisher_probes, ggn_probes, hessian_probes
from symlab.curvature.problem import Problem
from symlab.curvature.second_order import empirical_fishers, fishers, ggns, hessians
from symlab.curvature.single_models import sample_blocks
from symlab.curvature.structured_estimate import StructuredEstimate
from symlab.symmetry import WeightSymmetry

MATRICES: dict[str, Callable[[Problem, Mapping[str, Tensor]], Tensor]] = {
    "hessian": hessians,
    "ggn": ggns,
    "fisher": fishers,
    "empirical_fisher": empirical_fishers,
}
PROBES = {
    "hessian": hessian_probes,
    "ggn": ggn_probes,
    "fisher": fisher_probes,
    "empirical_fisher": empirical_fisher_probes,
}
RATIO = 3
"""Groups of models in the table of residuals have smallest, 3 smallest, 9 smallest ... models."""
WRONG = "wrong"
"""Name of the structure that the net does not have."""

AnyEstimate = DenseEstimate | StructuredEstimate
Cell = tuple[str, int]
"""Quantity, number of gradient steps."""


@dataclass(frozen=True)
class Plan:
    """What is to be estimated; see the job curvature for each."""

    models: Mapping[str, int]  # quantity -> N
    steps: Sequence[int]
    lr: float
    dense: bool
    memory_gib: float
    row_batch: int | None
    training: bool
    probes: int
    smallest: int
    singles: int
    seed: int

    @property
    def quantities(self) -> tuple[str, ...]:
        return tuple(self.models)

    @property
    def cells(self) -> list[Cell]:
        return [(quantity, step) for step in self.steps for quantity in self.quantities]

    def check(self) -> None:
        """Raises ValueError for an unknown quantity and for numbers out of range, by their keys."""
        if not self.models:
            raise ValueError("quantities is empty: name at least one, e.g. quantities=[covariance,hessian]")
        for quantity, models in self.models.items():
            check_quantity(quantity)
            if not models >= 2:
                raise ValueError(f"models must be at least 2, got {models} for {quantity}")
        steps = list(self.steps)
        if not steps or steps[0] < 0 or any(a >= b for a, b in itertools.pairwise(steps)):
            raise ValueError(f"steps must be increasing whole numbers from 0 on, got {steps}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        for name in ("probes", "singles"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.smallest >= 2:
            raise ValueError(f"smallest must be at least 2 models, got {self.smallest}")
        if not 0 < self.memory_gib < math.inf:
            raise ValueError(f"memory_gib must be positive and finite, got {self.memory_gib}")


class Survey:
    """Draws models chunk by chunk, takes them down their gradients, and adds them to the estimates of all cells.

    Args:
        problem: the loss over all rows.
        build: draws a model.
        symmetry: the structure that is fitted.
        wrong: another one, which the net need not have; None: no comparison.
        plan: what is estimated.

    Raises:
        ValueError: sizes beyond plan.memory_gib, or a loss without a Fisher where it is asked for.
    """

    def __init__(
        self, problem: Problem, build: Build, symmetry: WeightSymmetry, wrong: WeightSymmetry | None, plan: Plan
    ) -> None:
        self.problem, self.build, self.symmetry, self.wrong, self.plan = problem, build, symmetry, wrong, plan
        if "fisher" in plan.models:
            label_law(problem)
        self.chunk, self.parts = _chunks(problem, symmetry, plan)
        self._check_singles()
        self.total = max(plan.models.values())
        self.done = 0
        self.estimates: dict[Cell, DenseEstimate | StructuredEstimate] = {
            cell: self._estimate(cell) for cell in plan.cells
        }
        self.singles: dict[Cell, list[list[Tensor]]] = {cell: [] for cell in plan.cells if cell[0] != "mean_gradient"}

    def advance(self) -> int:
        """Take in the next chunk; returns its number of models.

        Raises FloatingPointError where a model's gradient or matrix is not finite.
        """
        count = min(self.chunk, self.total - self.done)
        parameters = draw(self.build, self.problem, self.plan.seed, self.done, count)
        before = 0
        for step in self.plan.steps:
            parameters = descend(self.problem, parameters, step - before, self.plan.lr)
            before = step
            self._check_finite(parameters, step)
            self._add(parameters, step)
        self.done += count
        return count

    def state_dict(self) -> dict[str, Any]:
        """All that was summed up so far: tensors and plain values."""
        return {
            "done": self.done,
            "estimates": {_key(cell): estimate.state_dict() for cell, estimate in self.estimates.items()},
            "singles": {_key(cell): rows for cell, rows in self.singles.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write back what `state_dict` of a survey with the same arguments returned."""
        self.done = state["done"]
        for cell, estimate in self.estimates.items():
            estimate.load_state_dict(state["estimates"][_key(cell)])
        self.singles = {cell: list(state["singles"][_key(cell)]) for cell in self.singles}

    def _check_finite(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Raises FloatingPointError naming the first model whose weights are not finite."""
        finite = torch.stack([x.flatten(1).isfinite().all(1) for x in parameters.values()]).all(0)  # [S]
        if not bool(finite.all()):
            worst = self.done + int((~finite).nonzero()[0])
            raise FloatingPointError(f"the weights of net {worst} hold NaN or inf after {step} steps")

    def _add(self, parameters: Mapping[str, Tensor], step: int) -> None:
        slopes: dict[str, Tensor] | None = None
        for quantity, models in self.plan.models.items():
            count = min(models - self.done, len(next(iter(parameters.values()))))
            if count <= 0:
                continue
            own = {name: x[:count] for name, x in parameters.items()}
            cell = (quantity, step)
            if quantity in GRADIENT_QUANTITIES:
                slopes = gradients(self.problem, parameters) if slopes is None else slopes
                self._add_vectors(cell, [({name: x[:count] for name, x in slopes.items()}, None)])
            elif self.plan.dense:
                part = self.parts[quantity]
                for start in range(0, count, part):
                    some = {name: x[start : start + part] for name, x in own.items()}
                    self._add_matrices(cell, MATRICES[quantity](self.problem, some))
            else:
                seed = mixed_seed(mixed_seed(self.plan.seed + 1, self.done), step)
                generator = torch.Generator().manual_seed(seed)
                found = [PROBES[quantity](self.problem, own, generator) for _ in range(self.plan.probes)]
                self._add_vectors(cell, [(u, None if v is u else v) for u, v in found])

    def _add_vectors(self, cell: Cell, probes: list[tuple[dict[str, Tensor], dict[str, Tensor] | None]]) -> None:
        estimate = self.estimates[cell]
        if isinstance(estimate, DenseEstimate):
            estimate.update(probes[0][0])
        else:
            estimate.update_probes([(u, u if v is None else v) for u, v in probes])
        missing = self.plan.singles - len(self.singles.get(cell, ()))
        if cell in self.singles and missing > 0:
            first = [
                sample_blocks(self.symmetry, _first(u, missing), None if v is None else _first(v, missing))
                for u, v in probes
            ]
            means = [torch.stack(parts).mean(0).cpu() for parts in zip(*first, strict=True)]  # per block [S, m, m]
            self.singles[cell] += [list(rows) for rows in zip(*(block.unbind() for block in means), strict=True)]

    def _add_matrices(self, cell: Cell, matrices: Tensor) -> None:
        estimate = self.estimates[cell]
        assert isinstance(estimate, DenseEstimate)
        estimate.update(matrices)
        for matrix in matrices[: self.plan.singles - len(self.singles[cell])]:
            self.singles[cell].append([block.cpu() for block in self.symmetry.project_dense(matrix).matrices])

    def _estimate(self, cell: Cell) -> AnyEstimate:
        quantity, _ = cell
        if not self.plan.dense:
            return StructuredEstimate(self.symmetry, quantity, self.plan.smallest)
        others = {} if self.wrong is None else {WRONG: self.wrong}
        return DenseEstimate(self.symmetry, quantity, self.plan.smallest, RATIO, others)

    def _check_singles(self) -> None:
        entries = sum(block.copies**2 for block in self.symmetry.blocks)
        needed = 8.0 * entries * self.plan.singles * len(self.plan.cells)
        if needed > self.plan.memory_gib * GIB:
            raise ValueError(
                f"memory_gib={self.plan.memory_gib}: the blocks of singles={self.plan.singles} models need "
                f"{as_gib(needed)}: take fewer singles"
            )


def _chunks(problem: Problem, symmetry: WeightSymmetry, plan: Plan) -> tuple[int, dict[str, int]]:
    """Models that are drawn and trained at once, and for each quantity those whose dense matrices are computed at once.

    Raises ValueError where the sums of all cells, or one model, exceed plan.memory_gib.
    """
    cells = [quantity for quantity, _ in plan.cells]  # the sums of every step are in memory at once
    every = chunk_size(problem, symmetry, cells, plan.dense, plan.memory_gib)
    if not plan.dense:
        return every, {}
    half = min((plan.memory_gib * GIB - sums_bytes(symmetry, cells, True)) / 2, CACHE)

    def fitting(quantity: str) -> int:
        return max(1, int(half / model_bytes(problem, [quantity], True)))

    return fitting("mean_gradient"), {quantity: fitting(quantity) for quantity in plan.quantities}


def _key(cell: Cell) -> str:
    return f"{cell[0]}_step{cell[1]}"


def _first(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: x[:count] for name, x in tensors.items()}
