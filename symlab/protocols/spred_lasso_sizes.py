"""Time of spred over scikit-learn's lasso at equal objective, from few to many columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from symlab.constraint.spred import alpha_max
from symlab.protocols.axis_checks import check_not_negative, check_share, check_whole
from symlab.protocols.lasso_arms import (
    NEWTON,
    SKLEARN,
    Loosest,
    Solver,
    certified,
    compared,
    loosest,
    lower_bound,
    need_sklearn,
    newton_lasso,
    objective,
    quartiles,
    sklearn_lasso,
)
from symlab.protocols.lasso_path_arms import EQUAL, check_tols
from symlab.protocols.lasso_problems import published
from symlab.protocols.study import Ground, Number, Row, Study, Tables, Watch, over_seeds, single

if TYPE_CHECKING:
    import pandas

RATIO = "ratio"


def spred_lasso_sizes(
    ground: Ground,
    *,
    rows: int = 100,
    columns: Sequence[int] = (100, 1000, 4000, 10_000, 40_000, 100_000, 400_000),
    density: float = 0.1,
    noise: float = 0.01,
    alpha_ratios: Sequence[float] = (60.0, 10.0),
    tols: Sequence[float] = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5),
    repeats: int = 3,
) -> Study:
    """Seconds of scikit-learn's Lasso over seconds of `spred_lasso`, both cold, where (F - F*) / F* <= 1e-3 for both.

    Data as in `spred_lasso` (ICML 2023), of each size in `columns`; alpha = alpha_max / r for r in `alpha_ratios`
    (about 60 is the published demonstration's, 10 a sparser solution's). F* is a lower bound, by a duality gap of 1e-9
    of it. Each solver runs with the loosest of its `tols` that is near enough, so neither is asked for more
    than the other; then both are timed `repeats` times, one after the other, and a ratio is of two neighbouring runs.
    X is stored as scikit-learn wants it (column-major, not copied), in one dtype for both. Time grows with other load
    on the machine; the ratio much less.

    Raises ValueError for values out of range, and without scikit-learn.
    """
    check_whole("rows", rows, least=2)
    check_whole("repeats", repeats, least=1)
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(f"columns must be sizes, each once, got {list(columns)}")
    for size in columns:
        check_whole("columns", size, least=2)
    if not alpha_ratios or not all(1 < ratio < math.inf for ratio in alpha_ratios):
        raise ValueError(f"alpha_ratios, alpha_max over alpha, must be above 1 and finite, got {list(alpha_ratios)}")
    if len({f"{ratio:g}" for ratio in alpha_ratios}) < len(alpha_ratios):
        raise ValueError(f"alpha_ratios must be given once each, to six digits, got {list(alpha_ratios)}")
    check_share("density", density)
    check_not_negative("noise", noise)
    check_tols("tols", tuple(tols))
    draw = (rows, density, noise)
    return SizesStudy(ground, draw, tuple(columns), tuple(alpha_ratios), tuple(tols), repeats, need_sklearn())


@dataclass(frozen=True)
class SizesStudy:
    """One part per size and seed. `draw`: rows, density, noise."""

    ground: Ground
    draw: tuple[int, float, float]
    columns: tuple[int, ...]
    alpha_ratios: tuple[float, ...]
    tols: tuple[float, ...]
    repeats: int
    sklearn: str

    @property
    def title(self) -> str:
        """What was run."""
        kind = str(self.ground.dtype).removeprefix("torch.")
        return f"Lasso of {self.draw[0]} rows at equal objective, {kind}, scikit-learn {self.sklearn}"

    @property
    def figures(self) -> Mapping[str, str]:
        """Ratio of times, and times, over columns."""
        return {"ratios": RATIO, "times": "metrics"}

    @property
    def references(self) -> Mapping[str, float]:
        """Equal times, and the aim on the largest size."""
        return {"equal times": 1.0, "aim": 4.0}

    def parts(self) -> Sequence[str]:
        """Small sizes first."""
        return [f"{size} columns, seed {seed}" for size in self.columns for seed in self.ground.seeds]

    def run(self, part: str, watch: Watch) -> Tables | None:
        """All alphas of one size and seed."""
        words = part.split()
        size, seed = int(words[0]), int(words[-1])
        rows, density, noise = self.draw
        X, y = published(seed, rows, size, density, noise)
        if X.dtype != self.ground.dtype or X.device != self.ground.device:
            X, y = X.T.to(self.ground.device, self.ground.dtype).T, y.to(self.ground.device, self.ground.dtype)
        metrics: list[Row] = []
        ratios: list[Row] = []
        for ratio in self.alpha_ratios:
            if watch.stopped():
                return None
            mark: Row = {"columns": size, "seed": seed, "alpha_ratio": ratio}
            found = self._both(X, y, alpha_max(X, y) / ratio, watch)
            if found is None:
                return None
            metrics += [mark | {"arm": f"{row['solver']}, alpha_max / {ratio:g}"} | row for row in found]
            ratios += [mark | {"arm": f"alpha_max / {ratio:g}"} | row for row in _ratios(found)]
        return {"metrics": metrics, RATIO: ratios}

    def _both(self, X: Tensor, y: Tensor, alpha: float, watch: Watch) -> list[Row] | None:
        """Times of both solvers, `repeats` times one after the other; None once stopped."""
        fit = certified(X, y, [alpha])[0]
        exact, best = fit.weights, lower_bound(fit)
        solvers = {NEWTON: newton_lasso(X, y, alpha), SKLEARN: sklearn_lasso(X, y, alpha)}

        def gap(w: Tensor) -> float:
            return objective(X, y, w, alpha) / best - 1

        chosen: dict[str, Loosest] = {}
        for name, solve in solvers.items():
            nearest = loosest(solve, self.tols, gap, EQUAL, watch.stopped)
            if nearest is None:
                return None
            chosen[name] = nearest
        rows: list[Row] = []
        for repeat in range(self.repeats):
            for name, solve in solvers.items():
                if watch.stopped():
                    return None
                rows.append(_timed(name, solve, chosen[name], self.tols[-1], exact) | {"repeat": repeat})
        return rows

    def number_names(self) -> Sequence[str]:
        """time_ratio_<columns>_<alpha ratio> with its quartiles, and the gaps."""
        names = [f"{size}_r{ratio:g}" for size in self.columns for ratio in self.alpha_ratios]
        kinds = ("time_ratio", "time_ratio_low", "time_ratio_high")
        gaps = ("largest_gap", "largest_gap_sklearn", "support_agreement_largest")
        return [*(f"{kind}_{name}" for name in names for kind in kinds), *gaps]

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """Ratios: median over repeats per seed, then mean over seeds; quartiles over all repeats of all seeds.

        There are none at a size where a solver was not near enough to the least objective in some seed.
        """
        found: dict[str, Number] = {}
        table, metrics = tables[RATIO], tables["metrics"]
        for size in self.columns:
            for ratio in self.alpha_ratios:
                own = table[(table["columns"] == size) & (table["alpha_ratio"] == ratio)]
                name, text = f"{size}_r{ratio:g}", f"{size} columns, alpha_max / {ratio:g}"
                fair = own[~own["diverged"].astype(bool)]
                each = [fair.loc[fair["seed"] == seed, "time_ratio"] for seed in self.ground.seeds]
                medians = [float(values.median()) if len(values) else None for values in each]
                all_fair = len(fair) == len(own)
                low, _, high = quartiles(own["time_ratio"].tolist()) if all_fair else (None, None, None)
                found[f"time_ratio_{name}"] = over_seeds(f"seconds of {SKLEARN} over spred, {text}", medians)
                found[f"time_ratio_low_{name}"] = single(f"lower quartile of all repeats, {text}", low)
                found[f"time_ratio_high_{name}"] = single(f"upper quartile of all repeats, {text}", high)
        for name, solver in {"largest_gap": NEWTON, "largest_gap_sklearn": SKLEARN}.items():
            largest = metrics[metrics["solver"] == solver].groupby("seed")["objective_gap"].max()
            found[name] = over_seeds(f"{solver}: largest (F - F*) / F* at the timed tolerance", largest.tolist())
        own = metrics[(metrics["solver"] == NEWTON) & (metrics["columns"] == max(self.columns))]
        least = own.groupby("seed")["support_agreement"].min()
        text = f"{max(self.columns)} columns, {NEWTON} at the timed tolerance: share zero or not as at a gap of 1e-9"
        return found | {"support_agreement_largest": over_seeds(text, least.tolist())}


def _timed(name: str, solve: Solver, chosen: Loosest, tightest: float, exact: Tensor) -> Row:
    """One more run at the chosen tolerance, for its time (the tightest one, marked, where none was near enough)."""
    weights, spent = solve(chosen.tol or tightest)
    row: Row = {"solver": name, "time_s": spent, "tol": chosen.tol, "objective_gap": chosen.gap}
    return row | compared(weights, exact) | {"diverged": chosen.tol is None}


def _ratios(rows: list[Row]) -> list[Row]:
    """One row per repeat: seconds of scikit-learn over seconds of spred."""
    times = {(row["solver"], row["repeat"]): row for row in rows}
    found = []
    for repeat in sorted({row["repeat"] for row in rows}):
        newton, other = times[NEWTON, repeat], times[SKLEARN, repeat]
        lost = newton["diverged"] or other["diverged"]
        ratio = other["time_s"] / newton["time_s"]
        found.append({"repeat": repeat, "time_ratio": ratio, "diverged": lost})
    return found
