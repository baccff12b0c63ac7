"""What the figures of one curvature quantity are drawn from: plain arrays and a table, as they lie on disk.

Legend: P  number of weights;  k  isotypic block;  M_k [m_k, m_k]  its matrix;  m = sum of m_k;  N  number of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class StepView:
    """One quantity after one number of gradient steps. `measured` and `fitted` are None where P x P is too large."""

    measured: np.ndarray | None  # [P, P] mean over the models
    fitted: np.ndarray | None  # [P, P] its projection on the commutant
    spectrum: np.ndarray | None  # [P] eigenvalues of `measured`, descending
    predicted: np.ndarray  # [m] eigenvalues of all M_k, descending
    multiplicity: np.ndarray  # [m] D_k of each
    reduced: Mapping[str, np.ndarray]  # name of the block, with its multiplicity -> M_k


@dataclass(frozen=True)
class CurvatureView:
    """One quantity. `residuals` has the columns step, structure (right, wrong), models (N), groups, outside,
    outside_std, noise.
    """

    quantity: str  # e.g. gradient covariance
    layers: Mapping[str, int]  # tensor -> number of weights, in the order of the matrices
    steps: Mapping[int, StepView]  # number of gradient steps -> what was estimated there; none for a mean gradient
    residuals: pd.DataFrame

    @property
    def first(self) -> tuple[int, StepView]:
        step = min(self.steps)
        return step, self.steps[step]

    @property
    def last(self) -> tuple[int, StepView]:
        step = max(self.steps)
        return step, self.steps[step]


def expanded(values: np.ndarray, multiplicity: np.ndarray) -> np.ndarray:
    """[P] each eigenvalue as often as it occurs, descending, from [m] values and their multiplicities."""
    return -np.sort(-np.repeat(values, multiplicity))


def step_view(arrays: Mapping[str, np.ndarray]) -> StepView:
    """From the arrays that the job curvature saves for a matrix: predicted, multiplicity, block_names, block_0, ...,
    and, where they are kept, measured, fitted and spectrum.
    """
    names = [str(name) for name in arrays["block_names"]]
    return StepView(
        measured=arrays.get("measured"),
        fitted=arrays.get("fitted"),
        spectrum=arrays.get("spectrum"),
        predicted=arrays["predicted"],
        multiplicity=arrays["multiplicity"],
        reduced={name: arrays[f"block_{index}"] for index, name in enumerate(names)},
    )


def layers_of(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Tensor -> number of weights, from the arrays layer_names and layer_sizes."""
    return {str(name): int(size) for name, size in zip(arrays["layer_names"], arrays["layer_sizes"], strict=True)}
