"""What a finished survey says: numbers with standard errors, residuals against N, and every pair of tensors.

Legend: C  measured matrix;  P(C)  its projection on the commutant;  N  models;  G  folds of the models.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symlab.curvature import measures
from symlab.curvature.arrays import matrix_arrays, vector_arrays
from symlab.curvature.estimate import DenseEstimate, Residual, outside_norm
from symlab.curvature.measures import Pair, correlation
from symlab.curvature.single_models import single_model_quality
from symlab.curvature.statistics import Estimate, jackknife_error, jackknife_errors, statistics_of
from symlab.curvature.structured_estimate import StructuredEstimate
from symlab.curvature.survey import WRONG, AnyEstimate, Survey
from symlab.symmetry import InvariantOperator, WeightSymmetry

Numbers = dict[str, float | None]


@dataclass(frozen=True)
class Result:
    """One quantity at one step. `estimate` None for a mean gradient, whose `vector` is (measured, projected) [P]."""

    quantity: str
    step: int
    models: int
    symmetry: WeightSymmetry
    estimate: Estimate | None
    vector: tuple[Tensor, Tensor] | None
    numbers: Numbers
    errors: Numbers
    residuals: list[dict[str, Any]] = field(default_factory=list)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    singles: list[dict[str, Any]] = field(default_factory=list)

    @property
    def factors(self) -> int:
        """Independent numbers of the fitted matrix, or vector."""
        return self.symmetry.num_mean_factors if self.estimate is None else self.symmetry.num_factors

    def arrays(self) -> dict[str, np.ndarray]:
        """What is saved of the matrices."""
        if self.estimate is not None:
            return matrix_arrays(self.estimate)
        assert self.vector is not None
        return vector_arrays(self.symmetry, *self.vector)


def results_of(survey: Survey) -> list[Result]:
    """One per step and quantity, in the plan's order."""
    found = []
    for step in survey.plan.steps:
        other = survey.estimates.get(("covariance", step))
        for quantity in survey.plan.quantities:
            estimate = survey.estimates[quantity, step]
            if quantity == "mean_gradient":
                found.append(_vector_result(survey, step, estimate))
            else:
                reference = None if quantity == "covariance" else other
                found.append(_matrix_result(survey, quantity, step, estimate, reference))
    return found


def _vector_result(survey: Survey, step: int, estimate: AnyEstimate) -> Result:
    symmetry = survey.symmetry
    if isinstance(estimate, DenseEstimate):
        measured = estimate.matrix()
    else:
        measured = symmetry.flatten({name: x.unsqueeze(0) for name, x in estimate.mean_vector().items()})[0]
    mean = symmetry.project_mean(symmetry.unflatten(measured[None]))
    projected = symmetry.flatten({name: x.unsqueeze(0) for name, x in mean.items()})[0]
    numbers, errors, rows = _residual_numbers(estimate)
    numbers["norm"] = float(projected.norm())
    if isinstance(estimate, StructuredEstimate) and float(measured.norm()) > 0:
        numbers["residual"] = float((measured - projected).norm() / measured.norm())
    models = estimate.count
    return Result("mean_gradient", step, models, symmetry, None, (measured, projected), numbers, errors, rows)


def _matrix_result(
    survey: Survey, quantity: str, step: int, estimate: AnyEstimate, reference: AnyEstimate | None
) -> Result:
    whole = _whole(estimate)
    parts = _leave_one_out(estimate)
    other = None if reference is None else _whole(reference)
    others = [] if reference is None else _leave_one_out(reference)
    numbers, errors, rows = _residual_numbers(estimate)
    numbers |= statistics_of(whole, other)
    jackknife = [statistics_of(part, others[i] if len(others) == len(parts) else other) for i, part in enumerate(parts)]
    errors |= jackknife_errors(jackknife)
    numbers["relative_error"] = _relative_error(whole.operator, [part.operator for part in parts])
    singles = survey.singles[quantity, step]
    blocks = [torch.stack([rows[k] for rows in singles]) for k in range(len(singles[0]))]  # [S, m, m] per block
    numbers["single_model"], errors["single_model"] = _single(
        [whole_factors(single) for single in singles], whole_factors(whole.operator.matrices)
    )
    quality = single_model_quality(survey.symmetry, blocks, whole.operator.matrices)
    return Result(
        quantity,
        step,
        estimate.count,
        survey.symmetry,
        whole,
        None,
        numbers,
        errors,
        rows,
        pair_rows(whole, parts, singles),
        [vars(part) for part in quality],
    )


def _whole(estimate: AnyEstimate) -> Estimate:
    if isinstance(estimate, StructuredEstimate):
        return Estimate(None, estimate.blocks())
    return Estimate(estimate.matrix(), estimate.operator())


def _leave_one_out(estimate: AnyEstimate) -> list[Estimate]:
    if isinstance(estimate, StructuredEstimate):
        return [Estimate(None, operator) for operator in estimate.leave_one_out()]
    return [Estimate(matrix, estimate.symmetry.project_dense(matrix)) for matrix in estimate.leave_one_out()]


def _residual_numbers(estimate: AnyEstimate) -> tuple[Numbers, Numbers, list[dict[str, Any]]]:
    """Residuals at all N models with jackknife errors, slopes, and the rows of the table."""
    numbers: Numbers = {}
    errors: Numbers = {}
    if isinstance(estimate, StructuredEstimate):
        return numbers, errors, []
    rows = estimate.residuals()
    found: list[dict[str, Any]] = []
    parts = estimate.leave_one_out()
    for name, structure in estimate.structures.items():
        own = [row for row in rows if row.structure == name]
        prefix = "wrong_" if name == WRONG else ""
        last = own[-1]
        numbers[f"{prefix}residual"] = _finite(last.residual)
        numbers[f"{prefix}excess"] = _finite(last.residual / last.expected) if last.expected > 0 else None
        errors[f"{prefix}residual"] = _finite(
            jackknife_error([outside_norm(structure, part) / float(part.norm()) for part in parts])
        )
        curve = outside_curve(estimate, name)
        numbers[f"{prefix}slope"], errors[f"{prefix}slope"] = fitted_slope(curve)
        found += [_row(row, point) for row, point in zip(own, curve, strict=True)]
        if name != WRONG:
            numbers["expected_residual"] = _finite(last.expected)
    return numbers, errors, found


@dataclass(frozen=True)
class Outside:
    """Root mean square of ||O|| over all groups of `models` models, relative to ||C|| of all N; `noise`: its part that
    sampling noise makes, which falls exactly as models^(-1/2).
    """

    models: int
    groups: int
    outside: float
    outside_std: float  # over the groups, nan for a single one
    noise: float


def outside_curve(estimate: DenseEstimate, structure: str) -> list[Outside]:
    """For each size of groups, ascending, and all N: sqrt(mean over groups ||C_g - P(C_g)||^2) / ||C||."""
    value = estimate.matrix()
    norm = float(value.norm())
    sizes: dict[int, list[float]] = {}
    for row in estimate.group_residuals():
        if row.structure == structure:
            sizes.setdefault(row.models, []).append(row.outside / norm)
    sizes.setdefault(estimate.count, [outside_norm(estimate.structures[structure], value) / norm])
    last = [row for row in estimate.residuals() if row.structure == structure][-1]
    found = []
    for models, values in sorted(sizes.items()):
        rms = math.sqrt(sum(x * x for x in values) / len(values))
        std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        found.append(Outside(models, len(values), rms, std, last.expected * math.sqrt(last.models / models)))
    return found


def fitted_slope(curve: Sequence[Outside]) -> tuple[float | None, float | None]:
    """Slope of the least-squares line through (log N, log outside), and its standard error.

    The error propagates the spread over the groups of each N, std / sqrt(groups); where there are fewer than 5 groups,
    with the relative spread of the largest N that has 5. Groups are joined into larger ones, so log outside at N and at
    a larger N covary by the variance at N (exactly for Gaussian noise). (None, None) for fewer than 2 positive values;
    the error None where no N has 5 groups.
    """
    curve = [point for point in curve if point.outside > 0]
    if len(curve) < 2:
        return None, None
    x = np.log([point.models for point in curve])
    y = np.log([point.outside for point in curve])
    centred = x - x.mean()
    weights = centred / (centred**2).sum()
    relative = None
    variances = []
    for point in curve:
        if point.groups >= 5:
            relative = point.outside_std / point.outside
        variances.append(math.nan if relative is None else relative**2 / point.groups)
    order = np.arange(len(curve))
    growing = np.maximum.accumulate(variances)  # larger groups never vary less: a smaller estimate of theirs is chance
    covariance = growing[np.minimum.outer(order, order)]  # [sizes, sizes]
    return float(weights @ y), _finite(math.sqrt(weights @ covariance @ weights))


def _row(row: Residual, point: Outside) -> dict[str, Any]:
    """A row of residuals.csv."""
    extra = {"outside": point.outside, "outside_std": point.outside_std, "noise": point.noise}
    return {name: _plain(value) for name, value in {**vars(row), **extra}.items()}


def whole_factors(matrices: Sequence[Tensor]) -> Tensor:
    """All entries of all M_k, one after the other."""
    return torch.cat([matrix.flatten() for matrix in matrices])


def pair_rows(whole: Estimate, parts: Sequence[Estimate], singles: Sequence[Sequence[Tensor]]) -> list[dict[str, Any]]:
    """One row per pair of tensors that some block couples, numbered from 1 in the order of the parameters.

    norm: of the fitted part [a, b]; residual: ||C - P(C)|| / ||C|| within the part and correlation of the entries of C
    and P(C) in it (None without a dense matrix); <name>_error: of each by the jackknife, from `parts`, the estimates
    without each fold in turn; single_model: Pearson's r between the entries of one model's M_k[a, b] (all blocks k that
    couple a and b) and the ensemble's, mean and standard deviation over the models.
    """
    operator = whole.operator
    symmetry = operator.symmetry
    names = list(symmetry.shapes)
    rows = measures.tensor_rows(symmetry)
    pairs = [pair for pair in measures.tensor_pairs(names) if measures.pair_factors(operator, rows, pair)]
    numbers, *others = [_pair_numbers(estimate, rows, pairs) for estimate in (whole, *parts)]
    found = []
    for k, (a, b) in enumerate(pairs):
        row: dict[str, Any] = {"i": names.index(a) + 1, "j": names.index(b) + 1, "tensor_i": a, "tensor_j": b}
        row |= numbers[k]
        errors = jackknife_errors([other[k] for other in others])
        row |= {f"{name}_error": errors.get(name) for name in numbers[k]}
        row["single_model"], row["single_model_std"] = _single(
            [_pair_of(symmetry, single, rows, (a, b)) for single in singles],
            whole_factors(measures.pair_factors(operator, rows, (a, b))),
        )
        found.append(row)
    return found


def _pair_numbers(
    estimate: Estimate, rows: Sequence[Mapping[str, Tensor]], pairs: Sequence[Pair]
) -> list[dict[str, float | None]]:
    """norm, residual and correlation of each pair."""
    symmetry = estimate.operator.symmetry
    places = measures.pair_slices(
        list(symmetry.shapes), {name: int(np.prod(shape)) for name, shape in symmetry.shapes.items()}
    )
    fitted = None if estimate.matrix is None else estimate.operator.dense()
    found = []
    for a, b in pairs:
        row: dict[str, float | None] = {"norm": measures.pair_norm(estimate.operator, rows, (a, b))}
        row |= {"residual": None, "correlation": None}
        if estimate.matrix is not None and fitted is not None:
            part, theory = estimate.matrix[places[a], places[b]], fitted[places[a], places[b]]
            row["residual"] = _finite(float((part - theory).norm() / part.norm()))
            row["correlation"] = _finite(correlation(part, theory))
        found.append(row)
    return found


def _pair_of(
    symmetry: WeightSymmetry, matrices: Sequence[Tensor], rows: Sequence[Mapping[str, Tensor]], pair: Pair
) -> Tensor:
    return whole_factors(measures.pair_factors(InvariantOperator(symmetry, matrices), rows, pair))


def _single(singles: Sequence[Tensor], mean: Tensor) -> tuple[float | None, float | None]:
    """Pearson's r with the ensemble's factors: mean and standard deviation over the single models."""
    values = [correlation(single, mean) for single in singles]
    if not values or not all(math.isfinite(value) for value in values):
        return None, None
    return sum(values) / len(values), float(np.std(values, ddof=1)) if len(values) > 1 else None


def _relative_error(operator: InvariantOperator, parts: Sequence[InvariantOperator]) -> float | None:
    """sqrt((G - 1) / G sum_g ||P_(g) - mean P_(g)||^2) / ||P||: the jackknife's error of the whole fitted matrix."""
    G, norm = len(parts), float(operator.frobenius_norm())
    if G < 2 or not norm > 0:
        return None
    mean = (1 / G) * parts[0]
    for part in parts[1:]:
        mean = mean + (1 / G) * part
    squares = sum(float((part - mean).frobenius_norm()) ** 2 for part in parts)
    return ((G - 1) / G * squares) ** 0.5 / norm


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    return _finite(value) if isinstance(value, float) else value
