"""The published demonstration of spred against scikit-learn's lasso, and the path over alpha."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from symlab.constraint.spred_adam import adam_plain, adam_product
from symlab.protocols.axis_checks import check_inside, check_positive, check_share, check_whole
from symlab.protocols.lasso_arms import (
    NEWTON,
    SKLEARN,
    certified,
    compared,
    lower_bound,
    need_sklearn,
    newton_lasso,
    objective,
    path_time_ratio,
    sklearn_lasso,
)
from symlab.protocols.lasso_path_arms import PathSetting, path_rows
from symlab.protocols.lasso_problems import published
from symlab.protocols.study import Ground, Number, Row, Study, Tables, Watch, over_seeds

if TYPE_CHECKING:
    import pandas

ADAM, PLAIN, NO_DECAY = "spred, Adam", "no product, Adam", "spred without decay, Adam"
EXACT, PUBLISHED, PATH, CONTROLS = "solvers", "as published", "path", "controls"
KINDS = (EXACT, PUBLISHED, CONTROLS, PATH)
MEASURES = {
    "objective_gap": "(F - F*) / F*",
    "support_agreement": "share of columns that are zero or not as in {reference}",
    "support_overlap": "support: intersection over union with that of {reference}",
    "zero_fraction": "share of weights below 1e-6",
}
SHORT = {"newton": NEWTON, "adam": ADAM}
REFERENCES = {NEWTON: f"{SKLEARN}'s converged solution", ADAM: "the solution by Newton's method at a gap of 1e-9"}
"""Arm -> whose support its own is compared with."""


def spred_lasso(
    ground: Ground,
    *,
    rows: int = 100,
    columns: int = 40_000,
    density: float = 0.1,
    noise: float = 0.01,
    alpha: float = 1e-5,
    lr: float = 0.01,
    steps: int = 10_000,
    control_steps: int = 2000,
    tol: float = 1e-6,
    reference_tol: float = 1e-6,
    path_points: int = 20,
    path_ratio: float = 60.0,
    path_tols: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
    drawn: int = 12,
) -> Study:
    """F(w) = (1/2n) ||X w - y||^2 + alpha ||w||_1 by w = u * v with decay 2 alpha, against scikit-learn's Lasso.

    Source: spred (Ziyin and Wang, ICML 2023): `rows` x `columns`, X ~ N(0, 1/columns), a share `density` of the true
    weights N(0, 1), noise; 10,000 steps of Adam in float32, lr .01, decay 2e-5. Beside it the Newton solver of
    `symlab.constraint.spred` with `tol`, and scikit-learn with its default tol and converged (`reference_tol`).
    Controls, `control_steps` of Adam: w itself with the same decay (ridge regression), and u * v without decay.

    Path: `path_points` alphas from alpha_max to alpha_max / `path_ratio`; each solver takes the loosest of `path_tols`
    at which all its objectives are within 1e-3 of the best known; the `drawn` largest weights are for the figure.

    F* is a lower bound of all objectives, by a duality gap of 1e-9 of it (float32: 1e-6). Times are of one thread of a
    machine that others may use: ratios only. Data are in the dtype of the run, Adam in float32.

    Raises ValueError for values out of range, and without scikit-learn.
    """
    whole = {"rows": (rows, 2), "columns": (columns, 2), "steps": (steps, 1), "control_steps": (control_steps, 1)}
    for key, (number, least) in (whole | {"path_points": (path_points, 2), "drawn": (drawn, 1)}).items():
        check_whole(key, number, least=least)
    check_share("density", density)
    for key, value in {"noise": noise, "alpha": alpha, "lr": lr}.items():
        check_positive(key, value)
    for key, value in {"tol": tol, "reference_tol": reference_tol}.items():
        check_inside(key, value)
    paths = PathSetting(path_points, path_ratio, tuple(path_tols), drawn, "path_")
    demo = Demo(rows, columns, density, noise, alpha, lr, steps, control_steps, tol, reference_tol)
    return SpredStudy(ground, demo, paths, need_sklearn())


@dataclass(frozen=True)
class Demo:
    """Data and solvers of the demonstration."""

    rows: int
    columns: int
    density: float
    noise: float
    alpha: float
    lr: float
    steps: int
    control_steps: int
    tol: float
    reference_tol: float


@dataclass(frozen=True)
class SpredStudy:
    """Four parts per seed: the exact solvers, Adam as published, its controls, and the path."""

    ground: Ground
    demo: Demo
    paths: PathSetting
    sklearn: str

    @property
    def title(self) -> str:
        """What was run."""
        demo = self.demo
        return f"Lasso of {demo.rows} rows, {demo.columns} columns, scikit-learn {self.sklearn}"

    @property
    def figures(self) -> Mapping[str, str]:
        """The weights over alpha; zero fraction and objective gap over alpha."""
        return {"path": "weights", "zeros": PATH, "gaps": PATH}

    @property
    def references(self) -> Mapping[str, float]:
        """The gap within which objectives count as equal."""
        return {"equal objective": 1e-3}

    def parts(self) -> Sequence[str]:
        """All parts of a seed, then the next seed."""
        return [f"{kind}, seed {seed}" for seed in self.ground.seeds for kind in KINDS]

    def run(self, part: str, watch: Watch) -> Tables | None:
        """One part of one seed; each draws the seed's data anew."""
        kind, _, number = part.rpartition(", seed ")
        seed, demo = int(number), self.demo
        X, y = published(seed, demo.rows, demo.columns, demo.density, demo.noise)
        X, y = X.to(self.ground.device, self.ground.dtype), y.to(self.ground.device, self.ground.dtype)
        if kind == PATH:
            found = path_rows(X, y, self.paths, watch.stopped)
            mark = {"seed": seed}
            return found and {PATH: [mark | row for row in found[0]], "weights": [mark | row for row in found[1]]}
        if kind == EXACT:
            rows = self._exact(X, y, seed, watch)
        else:
            rows = self._adam(X, y, seed, watch, controls=kind == CONTROLS)
        return None if rows is None else {"metrics": rows}

    def _exact(self, X: Tensor, y: Tensor, seed: int, watch: Watch) -> list[Row] | None:
        """scikit-learn converged and with its default, and spred by Newton's method; None if it was stopped."""
        alpha, demo = self.demo.alpha, self.demo
        runs = {
            f"{SKLEARN}, converged": (sklearn_lasso(X, y, alpha), demo.reference_tol),
            f"{SKLEARN}, default tol": (sklearn_lasso(X, y, alpha), 1e-4),
            NEWTON: (newton_lasso(X, y, alpha), demo.tol),
        }
        least, arms = lower_bound(certified(X, y, [alpha])[0]), {}
        for arm, (solve, tol) in runs.items():
            if watch.stopped():
                return None
            arms[arm] = solve(tol)
        reference, _ = arms[f"{SKLEARN}, converged"]
        return [self._row(arm, X, y, w, spent, seed, reference, least) for arm, (w, spent) in arms.items()]

    def _adam(self, X: Tensor, y: Tensor, seed: int, watch: Watch, *, controls: bool) -> list[Row] | None:
        """As published, or its controls; compared with a solution of Newton's method whose gap is 1e-9 or less."""
        single, targets = X.float(), y.float()
        decay, steps = 2 * self.demo.alpha, self.demo.control_steps if controls else self.demo.steps
        runs = (
            {PLAIN: (adam_plain, decay), NO_DECAY: (adam_product, 0.0)} if controls else {ADAM: (adam_product, decay)}
        )
        fit = certified(X, y, [self.demo.alpha])[0]
        exact, best = fit.weights, lower_bound(fit)
        rows = []
        for arm, (descend, own) in runs.items():
            generator = torch.Generator().manual_seed(seed)
            found = descend(single, targets, own, generator, lr=self.demo.lr, steps=steps, stopped=watch.stopped)
            if found is None:
                return None
            rows.append(self._row(arm, X, y, found[0].to(X), found[1], seed, exact, best))
        return rows

    def _row(
        self, arm: str, X: Tensor, y: Tensor, w: Tensor, spent: float, seed: int, reference: Tensor, best: float
    ) -> Row:
        value = objective(X, y, w, self.demo.alpha)
        row: Row = {"seed": seed, "arm": arm, "alpha": self.demo.alpha, "objective": value}
        row |= {"objective_gap": value / best - 1, "diverged": not math.isfinite(value), "time_s": spent}
        return row | compared(w, reference)

    def number_names(self) -> Sequence[str]:
        """Of the demonstration, its controls, and the path."""
        demo = [f"{short}_{measure}" for short in SHORT for measure in MEASURES]
        others = ["sklearn_zero_fraction", "plain_zero_fraction", "no_decay_zero_fraction"]
        times = ["newton_time_ratio", "adam_time_ratio"]
        return [*demo, *others, *times, *(f"path_{measure}" for measure in PATH_NUMBERS)]

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """Each with its spread over seeds."""
        metrics = tables["metrics"].set_index(["arm", "seed"])
        seeds = self.ground.seeds

        def of(arm: str, measure: str) -> list[float]:
            return [float(metrics.loc[(arm, seed), measure]) for seed in seeds]

        found = {
            f"{short}_{measure}": over_seeds(f"{arm}: {text.format(reference=REFERENCES[arm])}", of(arm, measure))
            for short, arm in SHORT.items()
            for measure, text in MEASURES.items()
        }
        arms = {"sklearn": f"{SKLEARN}, converged", "plain": PLAIN, "no_decay": NO_DECAY}
        for short, arm in arms.items():
            text = f"{arm}: {MEASURES['zero_fraction']}"
            found[f"{short}_zero_fraction"] = over_seeds(text, of(arm, "zero_fraction"))
        default = of(f"{SKLEARN}, default tol", "time_s")
        for short, arm in SHORT.items():
            ratios = [a / b for a, b in zip(default, of(arm, "time_s"), strict=True)]
            text = f"time of {SKLEARN} at its default tol over {arm}, one run each"
            found[f"{short}_time_ratio"] = over_seeds(text, ratios)
        return found | _path_numbers(tables[PATH], seeds)


PATH_NUMBERS = {
    "objective_gap": "largest over the path",
    "support_agreement": "least over the path",
    "exact_support_agreement": "least over the path, spred at a duality gap of 1e-9",
    "zero_difference": "largest difference of the zero fractions over the path",
    "time_ratio": "time of lasso_path over spred_path, both within 1e-3 of the best objective",
}


def _path_numbers(path: pandas.DataFrame, seeds: Sequence[int]) -> dict[str, Number]:
    values: dict[str, list[float | None]] = {name: [] for name in PATH_NUMBERS}
    for seed in seeds:
        own = path[path["seed"] == seed]
        newton, other = (own[own["arm"] == arm].set_index("alpha") for arm in (NEWTON, SKLEARN))
        values["objective_gap"].append(float(newton["objective_gap"].max()))
        for measure in ("support_agreement", "exact_support_agreement"):
            values[measure].append(float(newton[measure].min()))
        values["zero_difference"].append(float((newton["zero_fraction"] - other["zero_fraction"]).abs().max()))
        values["time_ratio"].append(path_time_ratio(other, newton))
    return {f"path_{name}": over_seeds(f"path: {text}", values[name]) for name, text in PATH_NUMBERS.items()}
