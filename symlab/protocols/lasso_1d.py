"""One weight as a product: where it becomes zero, and how long it takes to learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from symlab.protocols.axis_checks import (
    check_axis,
    check_inside,
    check_lasso,
    check_not_negative,
    check_positive,
    check_whole,
)
from symlab.protocols.lasso_1d_numbers import NAMES, lasso_1d_numbers
from symlab.protocols.learning_times import ABSOLUTE, ARMS, RELATIVE, Times, learning_times
from symlab.protocols.study import Ground, Number, Row, Study, Tables, Watch

if TYPE_CHECKING:
    import pandas

PRODUCT, PLAIN, SOFT, LASSO = "u w", "one parameter", "soft threshold (theory)", "lasso (scikit-learn)"
TRANSITION, TIMES = "transition", "time scales"
NEAR = 0.04
"""Half width of the fine grid around gamma = |E[xy]|."""
FLOOR = 1e-10
"""Of what the figure of the transition shows."""


def lasso_1d(
    ground: Ground,
    *,
    rows: int = 50,
    noise: float = 0.3,
    starts: int = 16,
    start: float = 0.5,
    lr: float = 0.05,
    updates: int = 100_000,
    points: int = 41,
    tolerance: float = 1e-4,
    lasso: bool = True,
    xs: Sequence[float] = (0.3, 0.5, 1.0, 1.7, 3.0),
    ys: Sequence[float] = (0.3, 0.5, 1.0, 1.7, 3.0),
    time_lrs: Sequence[float] = (0.001, 0.002, 0.004),
    time_start: float = 1e-3,
    fraction: float = 0.5,
) -> Study:
    """E[(u w x - y)^2] + gamma (u^2 + w^2): zero is the minimum iff gamma >= |E[xy]|, as for the lasso.

    Source: Ziyin (ICML 2024); settings ours. Data: x ~ N(0, 1), y = c x + noise, |c| uniform in [0.5, 1.5], c < 0 in
    every other seed (from the second on). Gradient descent from `starts` random starts N(0, start^2) for u and w, for
    gamma / |E[xy]| at `points` values from 0 to 2 and as many from 0.96 to 1.04. Zero means |u w| <= `tolerance`
    times |E[xy]| / E[x^2], the solution without decay, from every start; the transition is the gamma, interpolated
    linearly in log |u w|, at which the largest over all starts passes that. The closed form (|E[xy]| - gamma)+ /
    E[x^2] and scikit-learn's lasso (if `lasso`) stand beside it. Control: one parameter, E[(m x - y)^2] + gamma m^2.

    Time scales: updates of (u w x - y)^2 and of (m x - y)^2 for one x, y until `fraction` of y / x, interpolated
    between two updates, from starts u w = m = s y / x with s = time_start times a random factor in [1/4, 4] and random
    u / w in [1/4, 4]; the exponents of x, y and lr are by least squares on logarithms. The escape from the saddle
    takes log(1 / s), so starts of fixed size (u w = m = time_start) have other exponents, which are given too.

    Everything is computed in float64. Raises ValueError for a value out of range, and for `lasso` without scikit-learn.
    """
    for key, value, least in (("rows", rows, 2), ("starts", starts, 1), ("updates", updates, 1), ("points", points, 3)):
        check_whole(key, value, least=least)
    for key, number in {"start": start, "lr": lr}.items():
        check_positive(key, number)
    check_not_negative("noise", noise)
    for key, number in {"tolerance": tolerance, "fraction": fraction}.items():
        check_inside(key, number)
    for key, axis in {"xs": xs, "ys": ys, "time_lrs": time_lrs}.items():
        check_axis(key, axis, positive=True)
        if len(axis) < 2:
            raise ValueError(f"{key}: an exponent needs at least two values, got {list(axis)}")
    largest = 4 * time_start * max(1.0, max(xs) / min(ys))
    if not 0 < largest < fraction:
        raise ValueError(f"time_start must be positive and so small that every start lies below {fraction} y / x")
    if not 4 * max(time_lrs) * max(xs) * max(*xs, *ys) < 1:
        raise ValueError(f"time_lrs must be small: 4 lr x y and 4 lr x^2 below 1, got {max(time_lrs)}")
    check_lasso(lasso)
    problem = _problem(ground, rows, noise)
    descent = Descent(starts, start, lr, updates, points, tolerance)
    times = Times(tuple(xs), tuple(ys), tuple(time_lrs), time_start, fraction)
    return Lasso1dStudy(ground, problem, descent, times, lasso)


@dataclass(frozen=True)
class Problem:
    """Data of each seed, [E, N], and their moments E[x^2] and E[xy], [E]."""

    x: Tensor
    y: Tensor

    @property
    def square(self) -> Tensor:
        """E[x^2], [E]."""
        return self.x.square().mean(1)

    @property
    def cross(self) -> Tensor:
        """E[xy], [E]."""
        return (self.x * self.y).mean(1)


@dataclass(frozen=True)
class Descent:
    """How the solutions are found."""

    starts: int
    start: float
    lr: float
    updates: int
    points: int
    tolerance: float

    def grid(self) -> Tensor:
        """[G]: gamma / |E[xy]|, ascending."""
        wide = torch.linspace(0, 2, self.points, dtype=torch.float64)
        near = torch.linspace(1 - NEAR, 1 + NEAR, self.points, dtype=torch.float64)
        return torch.cat([wide, near]).round(decimals=6).unique()


@dataclass(frozen=True)
class Lasso1dStudy:
    """Two parts: the transition, and the time scales."""

    ground: Ground
    problem: Problem
    descent: Descent
    times: Times
    lasso: bool

    @property
    def title(self) -> str:
        """What was run."""
        return f"One weight as a product, {self.problem.x.shape[1]} samples, {self.descent.starts} starts"

    @property
    def figures(self) -> Mapping[str, str]:
        """The solution over gamma, the same near the transition, and the times."""
        return {"solution": "metrics", "transition": TRANSITION, "times": "times"}

    @property
    def references(self) -> Mapping[str, float]:
        """On the axis gamma / |E[xy]|, and what counts as zero."""
        return {"threshold": 1.0, "counts as zero": self.descent.tolerance}

    def parts(self) -> Sequence[str]:
        """The transition and the times."""
        return [TRANSITION, TIMES]

    def run(self, part: str, watch: Watch) -> Tables | None:
        """All seeds side by side."""
        if part == TIMES:
            rows = learning_times(self.ground.seeds, self.times, self.ground.device, watch)
            return None if rows is None else {"times": rows}
        grid = self.descent.grid().to(self.ground.device)
        gammas = grid * self.problem.cross.abs()[:, None]  # [E, G]
        found = _solutions(self.problem, self.descent, self.ground.seeds, gammas, watch)
        if found is None:
            return None
        rows = _solution_rows(self.problem, self.descent, self.ground.seeds, grid, found)
        if self.lasso:
            rows += _lasso_rows(self.problem, self.ground.seeds, grid)
        near = [row for row in rows if abs(row["relative"] - 1) <= NEAR + 1e-9]
        return {"metrics": rows, TRANSITION: [{**row, "shown": max(row["largest"], FLOOR)} for row in near]}

    def number_names(self) -> Sequence[str]:
        """See `lasso_1d_numbers`."""
        return [name for name in NAMES if self.lasso or not name.startswith("lasso")]

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """Transition, solutions and exponents, each with its spread over seeds."""
        arms = {"product": PRODUCT, "plain": PLAIN, "soft": SOFT, "lasso": LASSO}
        seeds, tolerance = self.ground.seeds, self.descent.tolerance
        kinds = (ARMS, RELATIVE, ABSOLUTE)
        found = lasso_1d_numbers(tables["metrics"], tables["times"], seeds, tolerance, arms, kinds)
        return {name: found[name] for name in self.number_names()}


def _problem(ground: Ground, rows: int, noise: float) -> Problem:
    """Data of each seed, float64."""
    drawn = []
    for index, seed in enumerate(ground.seeds):
        generator = torch.Generator().manual_seed(seed)
        slope = 0.5 + torch.rand((), generator=generator, dtype=torch.float64)
        x, deviation = torch.randn(2, rows, generator=generator, dtype=torch.float64)
        drawn.append((x, (slope if index % 2 == 0 else -slope) * x + noise * deviation))
    x, y = (torch.stack(parts).to(ground.device) for parts in zip(*drawn, strict=True))
    return Problem(x, y)


def _solutions(
    problem: Problem, descent: Descent, seeds: Sequence[int], gammas: Tensor, watch: Watch
) -> tuple[Tensor, Tensor] | None:
    """u w and m [E, G, starts] after all updates, for gammas [E, G]."""
    shape = (2, 1, descent.starts)
    drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in seeds]
    begin = descent.start * torch.stack(drawn, 1).to(gammas.device)  # [2, E, 1, starts]
    u, w = (part.repeat(1, gammas.shape[1], 1) for part in begin)
    m = u * w
    square, cross = (moment[:, None, None] for moment in (problem.square, problem.cross))
    twice = 2 * descent.lr
    keep = 1 - twice * gammas[..., None]
    done = 0
    if (kept := watch.saved()) is not None:
        done, (u, w, m) = kept["updates"], (part.to(gammas.device) for part in kept["weights"])
    for update in range(done, descent.updates):
        if update % 500 == 0:
            stop = watch.stopped()
            if stop or watch.due():
                watch.save({"updates": update, "weights": [u, w, m]})
            if stop:
                return None
        pull = twice * (cross - square * (u * w))
        u, w = keep * u + pull * w, keep * w + pull * u
        m = keep * m + twice * (cross - square * m)
        if update % 500 == 0:
            u, w = (torch.where(p.abs() < 1e-100, 0.0, p) for p in (u, w))  # subnormal numbers are slow
    return u * w, m


def _solution_rows(
    problem: Problem, descent: Descent, seeds: Sequence[int], grid: Tensor, found: tuple[Tensor, Tensor]
) -> list[Row]:
    """One row per seed, gamma and arm, in units of |E[xy]| / E[x^2] with the sign of E[xy]: mean and extremes."""
    unit = (problem.cross / problem.square)[:, None, None]
    rows: list[Row] = []
    for arm, values in zip((PRODUCT, PLAIN), found, strict=True):
        scaled = values / unit
        for e, seed in enumerate(seeds):
            for g, relative in enumerate(grid.tolist()):
                own = scaled[e, g]
                largest = float(own.abs().max())
                row = _row(seed, arm, relative, float(own.mean()), largest, float(own.abs().min()))
                rows.append(row | {"zero": largest <= descent.tolerance})
    for seed in seeds:
        rows += [
            _row(seed, SOFT, relative, size, size, size) | {"zero": size == 0}
            for relative in grid.tolist()
            for size in [max(1 - relative, 0.0)]
        ]
    return rows


def _lasso_rows(problem: Problem, seeds: Sequence[int], grid: Tensor) -> list[Row]:
    """scikit-learn's solutions: alpha = gamma, since its loss is half as large and its penalty 2 gamma |m| / 2."""
    from sklearn.linear_model import Lasso

    rows: list[Row] = []
    for e, seed in enumerate(seeds):
        x, y = problem.x[e].cpu().numpy()[:, None], problem.y[e].cpu().numpy()
        cross, unit = float(problem.cross[e]), float(problem.cross[e] / problem.square[e])
        for relative in grid.tolist():
            if relative == 0:
                continue  # scikit-learn asks for alpha > 0
            solver = Lasso(alpha=relative * abs(cross), fit_intercept=False, tol=1e-12)
            size = float(solver.fit(x, y).coef_[0]) / unit
            rows.append(_row(seed, LASSO, relative, size, abs(size), abs(size)) | {"zero": size == 0})
    return rows


def _row(seed: int, arm: str, relative: float, size: float, largest: float, smallest: float) -> Row:
    row: Row = {"seed": seed, "arm": arm, "relative": relative, "size": size, "largest": largest}
    return row | {"smallest": smallest, "diverged": not math.isfinite(largest)}
