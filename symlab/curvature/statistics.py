"""The numbers that one estimated matrix is summed up by, and their standard errors by the jackknife.

Legend: P  number of weights;  C [P, P]  measured matrix;  P(C)  its projection on the commutant;  G  groups of models.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from symlab.curvature.measures import condition_number, correlation, operator_correlation
from symlab.symmetry import InvariantOperator

STATISTICS = (
    "fit_correlation",
    "correlation_covariance",
    "correlation_covariance_root",
    "fitted_correlation_covariance",
    "fitted_correlation_covariance_root",
    "condition_number",
    "trace",
    "norm",
)
"""Names of what `statistics_of` returns: correlations between the entries of C and P(C); of C and the measured
covariance and its square root; of P(C) and the fitted ones; max |lambda| / min |lambda|, trace and Frobenius norm of
P(C)."""


@dataclass(frozen=True)
class Estimate:
    """A curvature matrix estimated over models: `matrix` [P, P], None where it is not kept; its projection."""

    matrix: Tensor | None
    operator: InvariantOperator

    def root(self) -> "Estimate":
        """C^(1/2) of both; eigenvalues below zero, which rounding makes, count as zero."""
        operator = self.operator.map_spectrum(lambda values: values.clamp(min=0).sqrt())
        return Estimate(None if self.matrix is None else symmetric_root(self.matrix), operator)


def symmetric_root(matrix: Tensor) -> Tensor:
    """C^(1/2) [P, P] = Q sqrt(max(lambda, 0)) Q^T."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)  # [P], [P, P]
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


def statistics_of(estimate: Estimate, covariance: Estimate | None) -> dict[str, float | None]:
    """Each of `STATISTICS`; None where it cannot be had: no dense matrix, or no `covariance` to compare with."""
    operator = estimate.operator
    values, _ = operator.eigenvalues()
    found: dict[str, float | None] = dict.fromkeys(STATISTICS)
    if estimate.matrix is not None:
        found["fit_correlation"] = correlation(estimate.matrix, operator.dense())
    if covariance is not None:
        for name, other in (("covariance", covariance), ("covariance_root", covariance.root())):
            if estimate.matrix is not None and other.matrix is not None:
                found[f"correlation_{name}"] = correlation(estimate.matrix, other.matrix)
            found[f"fitted_correlation_{name}"] = operator_correlation(operator, other.operator)
    found["condition_number"] = condition_number(values)
    found["trace"] = float(operator.trace())
    found["norm"] = float(operator.frobenius_norm())
    return found


def jackknife_error(leave_one_out: Sequence[float]) -> float:
    """sqrt((G - 1) / G sum_g (s_(g) - mean)^2), s_(g) the statistic without group g (Tukey, 1958); nan for G < 2."""
    G = len(leave_one_out)
    if G < 2:
        return float("nan")
    mean = sum(leave_one_out) / G
    return math.sqrt((G - 1) / G * sum((value - mean) ** 2 for value in leave_one_out))


def jackknife_errors(leave_one_out: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Standard error of each statistic from its values without each group in turn; None where one is missing."""
    errors: dict[str, float | None] = {}
    for name in leave_one_out[0] if leave_one_out else ():
        values = [found[name] for found in leave_one_out]
        known = [value for value in values if value is not None and math.isfinite(value)]
        errors[name] = jackknife_error(known) if len(known) == len(values) >= 2 else None
    return errors
