"""The lasso's path over alpha by both solvers: solutions, differences and times."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from torch import Tensor

from symlab.constraint.spred import alpha_max
from symlab.protocols.lasso_arms import (
    NEWTON,
    SKLEARN,
    ZERO,
    Loosest,
    certified,
    compared,
    loosest,
    lower_bound,
    newton_path,
    objective,
    sklearn_path,
)
from symlab.protocols.study import Row
from symlab.training.factories import Stop

EQUAL = 1e-3
"""Relative difference within which two objectives count as equal."""
DEFAULT_TOL = {SKLEARN: 1e-4, NEWTON: 1e-6}
FLOOR = 1e-12
"""Of the gaps in the figure."""


@dataclass(frozen=True)
class PathSetting:
    """`points` alphas from alpha_max down to alpha_max / ratio; tolerances, loose to tight; weights to draw.

    Raises ValueError for a ratio of at most 1 and for tolerances that are not descending in (0, 1).
    """

    points: int
    ratio: float
    tols: tuple[float, ...]
    drawn: int
    prefix: str = ""  # of ratio and tols where they are keys

    def __post_init__(self) -> None:
        if not 1 < self.ratio < math.inf:
            raise ValueError(f"{self.prefix}ratio, alpha_max over the least alpha, must be above 1, got {self.ratio}")
        check_tols(f"{self.prefix}tols", self.tols)

    def relative(self) -> list[float]:
        """alpha / alpha_max, the same numbers for all data: descending, evenly spaced in the logarithm."""
        return [self.ratio ** (-i / (self.points - 1)) for i in range(self.points)]

    def alphas(self, X: Tensor, y: Tensor) -> list[float]:
        """Descending."""
        largest = alpha_max(X, y)
        return [largest * relative for relative in self.relative()]


def check_tols(key: str, tols: tuple[float, ...]) -> None:
    """Raises ValueError unless the tolerances descend, loose to tight, within (0, 1)."""
    falling = all(a > b for a, b in itertools.pairwise(tols))
    if not tols or not falling or not all(0 < tol < 1 for tol in tols):
        raise ValueError(f"{key} must fall strictly, all between 0 and 1, got {list(tols)}")


def path_rows(X: Tensor, y: Tensor, setting: PathSetting, stopped: Stop) -> tuple[list[Row], list[Row]] | None:
    """One row per arm and alpha, and the weights to draw (column, alpha, weight per arm); None if it was stopped.

    Both at their default tolerances. Gaps are to the lower bound that `spred_path` certifies at a duality gap of 1e-9
    (float32: 1e-6), supports are compared with those of scikit-learn at the tightest of the tolerances; exact_... are
    those of the certified path. The times are those at the loosest tolerance that gives equal objectives on all of the
    path, the two solvers one after the other; there is none where no tolerance does.
    """
    alphas, relative = setting.alphas(X, y), setting.relative()
    exact = certified(X, y, alphas)
    bounds = [lower_bound(fit) for fit in exact]

    def gaps(weights: Tensor) -> list[float]:
        values = [objective(X, y, w, alpha) for w, alpha in zip(weights, alphas, strict=True)]
        return [value / least - 1 for value, least in zip(values, bounds, strict=True)]

    solvers = {SKLEARN: sklearn_path(X, y, alphas), NEWTON: newton_path(X, y, alphas)}
    chosen: dict[str, Loosest] = {}
    for arm, solve in solvers.items():
        found = loosest(solve, setting.tols, lambda w: max(gaps(w)), EQUAL, stopped)
        if found is None:
            return None
        chosen[arm] = found
    reference, _ = solvers[SKLEARN](setting.tols[-1])
    if stopped():
        return None
    shown = {arm: solvers[arm](tol)[0] for arm, tol in DEFAULT_TOL.items()}
    rows: list[Row] = []
    for arm, weights in shown.items():
        timed = {"time_s": None if chosen[arm].tol is None else chosen[arm].time_s, "tol": chosen[arm].tol}
        for index, (alpha, gap) in enumerate(zip(alphas, gaps(weights), strict=True)):
            row: Row = {"arm": arm, "alpha": alpha, "relative_alpha": relative[index], "objective_gap": gap, **timed}
            row |= {"shown_gap": max(gap, FLOOR)} | compared(weights[index], reference[index])
            agreed = compared(exact[index].weights, reference[index])["support_agreement"]
            zeros = float((reference[index].abs() < ZERO).double().mean())
            rows.append(row | {"exact_support_agreement": agreed, "reference_zero_fraction": zeros})
    return rows, _weight_rows(relative, shown, setting.drawn)


def _weight_rows(relative: list[float], shown: dict[str, Tensor], drawn: int) -> list[Row]:
    """The weights that get largest, by both arms."""
    largest = shown[NEWTON].abs().amax(0).topk(min(drawn, shown[NEWTON].shape[1])).indices.tolist()
    return [
        {"arm": arm, "column": column, "relative_alpha": place, "weight": float(weights[index, column])}
        for arm, weights in shown.items()
        for column in largest
        for index, place in enumerate(relative)
    ]
