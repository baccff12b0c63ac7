"""The lasso's path by spred and by scikit-learn on real data, and on wide data like gene expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from symlab.protocols.axis_checks import check_not_negative, check_whole
from symlab.protocols.lasso_arms import NEWTON, SKLEARN, need_sklearn, path_time_ratio
from symlab.protocols.lasso_path_arms import PathSetting, path_rows
from symlab.protocols.lasso_problems import GENES, REAL, Problem, gene_like, real
from symlab.protocols.ridge_path import RIDGE, ridge_rows
from symlab.protocols.study import Ground, Number, Study, Tables, Watch, over_seeds

if TYPE_CHECKING:
    import pandas

LEAST_FRACTION = 0.1  # 44 rows of diabetes: with fewer, a column or all targets may be constant
MEASURES = {
    "objective_gap": "largest (F - F*) / F* of spred over the path",
    "support_agreement": "least share of columns zero or not as in scikit-learn's converged path",
    "exact_support_agreement": "the same of spred at a duality gap of 1e-9",
    "zero_difference": "largest difference of the zero fractions, spred and scikit-learn, over the path",
    "zero_fraction": "zero fraction of spred, mean over the path",
    "ridge_zero_fraction": "zero fraction without the product (ridge regression, same decay), mean over the path",
    "time_ratio": "seconds of lasso_path over spred_path at equal objectives",
}


def spred_lasso_real(
    ground: Ground,
    *,
    data_sets: Sequence[str] = (*REAL, GENES),
    fraction: float = 0.8,
    genes: int = 20_000,
    samples: int = 100,
    block: int = 20,
    correlation: float = 0.9,
    causal: int = 10,
    noise: float = 0.3,
    points: int = 30,
    ratio: float = 100.0,
    tols: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8),
    drawn: int = 10,
) -> Study:
    """The path of F(w) = (1/2n) ||X w - y||^2 + alpha ||w||_1 over alpha by `spred_path` and scikit-learn's lasso_path.

    Data (`data_sets`): diabetes (442 x 10) and breast_cancer (569 x 30, strongly correlated columns, its classes as
    numbers) from scikit-learn, standardised, each seed a random `fraction` of the rows; gene_like, drawn: `samples` x
    `genes` in blocks of `block` columns of correlation `correlation`, `causal` of them with a weight of 1 or -1.
    `points` alphas from alpha_max to alpha_max / `ratio`. Times: see `spred_lasso`; in these small sets they are those
    of Python. Control: the same decay without the product, ridge regression in closed form.

    Raises ValueError for values out of range, unknown data sets, and without scikit-learn.
    """
    if not data_sets or not set(data_sets) <= {*REAL, GENES} or len(set(data_sets)) < len(data_sets):
        raise ValueError(f"data_sets must be some of {', '.join((*REAL, GENES))}, each once, got {list(data_sets)}")
    whole = {"genes": (genes, 2), "samples": (samples, 2), "block": (block, 1), "causal": (causal, 1)}
    for key, (number, least) in (whole | {"points": (points, 2), "drawn": (drawn, 1)}).items():
        check_whole(key, number, least=least)
    if not LEAST_FRACTION <= fraction <= 1:
        raise ValueError(f"fraction of the rows must be from {LEAST_FRACTION} to 1, got {fraction}")
    if causal > (blocks := -(-genes // block)):
        raise ValueError(f"causal: at most one column of each of the {blocks} blocks can be, got {causal}")
    if not 0 <= correlation < 1:
        raise ValueError(f"correlation must lie in [0, 1), got {correlation}")
    check_not_negative("noise", noise)
    wide = Wide(samples, genes, block, correlation, causal, noise)
    setting = PathSetting(points, ratio, tuple(tols), drawn)
    return RealStudy(ground, tuple(data_sets), fraction, wide, setting, need_sklearn())


@dataclass(frozen=True)
class Wide:
    """Data like gene expressions."""

    rows: int
    columns: int
    block: int
    correlation: float
    causal: int
    noise: float


@dataclass(frozen=True)
class RealStudy:
    """One part per data set and seed."""

    ground: Ground
    data_sets: tuple[str, ...]
    fraction: float
    wide: Wide
    setting: PathSetting
    sklearn: str

    @property
    def title(self) -> str:
        """What was run."""
        return f"Lasso's path, scikit-learn {self.sklearn}"

    @property
    def figures(self) -> Mapping[str, str]:
        """A path per data set, zero fractions, and gaps, which ridge regression does not have."""
        return {**dict.fromkeys(self.data_sets, "weights"), "zeros": "metrics", "gaps": "gaps"}

    @property
    def references(self) -> Mapping[str, float]:
        """The gap within which objectives count as equal."""
        return {"equal objective": 1e-3}

    def parts(self) -> Sequence[str]:
        """Data set by data set."""
        return [f"{name}, seed {seed}" for name in self.data_sets for seed in self.ground.seeds]

    def run(self, part: str, watch: Watch) -> Tables | None:
        """The whole path of one data set and seed."""
        name, _, number = part.partition(", seed ")
        X, y = (values.to(self.ground.device, self.ground.dtype) for values in self._data(name, int(number)))
        path = path_rows(X, y, self.setting, watch.stopped)
        if path is None:
            return None
        found, weights = path
        found += ridge_rows(X, y, self.setting.alphas(X, y), self.setting.relative())
        mark = {"data": name, "seed": int(number)}
        metrics = [mark | row | {"arm": f"{name}, {row['arm']}", "solver": row["arm"]} for row in found]
        gaps = [row for row in metrics if row["solver"] != RIDGE]
        return {"metrics": metrics, "gaps": gaps, "weights": [mark | row for row in weights]}

    def _data(self, name: str, seed: int) -> Problem:
        if name in REAL:
            return real(name, seed, self.fraction)
        wide = self.wide
        return gene_like(seed, wide.rows, wide.columns, wide.block, wide.correlation, wide.causal, wide.noise)

    def number_names(self) -> Sequence[str]:
        """Each measure of each data set."""
        return [f"{name}_{measure}" for name in self.data_sets for measure in MEASURES]

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """Each with its spread over seeds."""
        found: dict[str, Number] = {}
        for name in self.data_sets:
            own = tables["metrics"][tables["metrics"]["data"] == name]
            values = [_measures(own[own["seed"] == seed]) for seed in self.ground.seeds]
            for measure, text in MEASURES.items():
                found[f"{name}_{measure}"] = over_seeds(f"{name}: {text}", [value[measure] for value in values])
        return found


def _measures(rows: pandas.DataFrame) -> dict[str, float | None]:
    """All measures of one data set and seed."""
    newton, other, ridge = (rows[rows["solver"] == s].set_index("alpha") for s in (NEWTON, SKLEARN, RIDGE))
    return {
        "objective_gap": float(newton["objective_gap"].max()),
        "support_agreement": float(newton["support_agreement"].min()),
        "exact_support_agreement": float(newton["exact_support_agreement"].min()),
        "zero_difference": float((newton["zero_fraction"] - other["reference_zero_fraction"]).abs().max()),
        "zero_fraction": float(newton["zero_fraction"].mean()),
        "ridge_zero_fraction": float(ridge["zero_fraction"].mean()),
        "time_ratio": path_time_ratio(other, newton),
    }
