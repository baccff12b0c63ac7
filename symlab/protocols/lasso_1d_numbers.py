"""Where one weight becomes zero, and the exponents of its learning times, from rows of `lasso_1d`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from symlab.protocols.seed_statements import PerSeed, chosen
from symlab.protocols.study import Number, over_seeds

if TYPE_CHECKING:
    import pandas

AWAY = 0.02
"""Relative distance from the transition beyond which the final state is compared with theory."""
EXPONENTS = ("x", "y", "lr")
NAMES = (
    "transition",
    "transition_error",
    "lasso_transition",
    "starts_disagree",
    "wrong_sign",
    "gap_to_theory",
    "lasso_gap",
    "control_smallest",
    "control_zeros",
    *(f"{arm}_exponent_{name}" for arm in ("product", "plain") for name in EXPONENTS),
    *(f"product_fixed_start_exponent_{name}" for name in EXPONENTS),
    "never_learnt",
)


def transition(relative: np.ndarray, largest: np.ndarray, tolerance: float) -> float | None:
    """Where `largest` passes `tolerance` for good, linear in its logarithm; `relative` ascends.

    None where the last point is not zero or the first is.
    """
    zero = largest <= tolerance
    if not zero[-1] or zero[0]:
        return None
    last = int(np.flatnonzero(~zero)[-1])
    if largest[last + 1] <= 0:
        return float(relative[last + 1])
    high, low = math.log(largest[last]), math.log(largest[last + 1])
    share = (high - math.log(tolerance)) / (high - low)
    return float(relative[last] + share * (relative[last + 1] - relative[last]))


def exponents(rows: pandas.DataFrame) -> dict[str, float] | None:
    """Of x, y and lr in updates = constant x^a y^b lr^c, by least squares on logarithms; None for missing times."""
    values = rows[["updates", *EXPONENTS]].astype(float).to_numpy()
    if not np.isfinite(values).all() or not (values > 0).all() or len(values) < 4:
        return None
    logs = np.log(values)
    design = np.column_stack([np.ones(len(logs)), logs[:, 1:]])
    found, *_ = np.linalg.lstsq(design, logs[:, 0], rcond=None)
    return dict(zip(EXPONENTS, map(float, found[1:]), strict=True))


def lasso_1d_numbers(
    metrics: pandas.DataFrame,
    times: pandas.DataFrame,
    seeds: Sequence[int],
    tolerance: float,
    arms: Mapping[str, str],
    kinds: tuple[tuple[str, str], str, str],
) -> dict[str, Number]:
    """The numbers of NAMES. `arms`: names of product, plain, soft and lasso; `kinds`: arms and starts of times."""
    values = _solution_values(metrics, seeds, tolerance, arms)
    (product, plain), relative, fixed = kinds
    sets = {"product": (product, relative), "plain": (plain, relative), "product_fixed_start": (product, fixed)}
    for name, (arm, start) in sets.items():
        found = [exponents(chosen(times, seed=seed, arm=arm, start=start)) for seed in seeds]
        for key in EXPONENTS:
            text = f"exponent of {key} in the updates of {arm} until the fraction of the solution, {start} starts"
            values[f"{name}_exponent_{key}"] = (text, [None if each is None else each[key] for each in found])
    missing: PerSeed = [float(chosen(times, seed=seed)["updates"].isna().mean()) for seed in seeds]
    values["never_learnt"] = ("share of weights that never reached the fraction", missing)
    return {name: over_seeds(*values[name]) for name in NAMES if name in values}


def _solution_values(
    metrics: pandas.DataFrame, seeds: Sequence[int], tolerance: float, arms: Mapping[str, str]
) -> dict[str, tuple[str, PerSeed]]:
    off = f"{AWAY:g} |E[xy]| off the transition"
    per_seed = [chosen(metrics, seed=seed) for seed in seeds]
    product = [chosen(own, arm=arms["product"]).sort_values("relative") for own in per_seed]
    found = [_transition(rows, tolerance) for rows in product]
    plain = [chosen(own, arm=arms["plain"]) for own in per_seed]
    soft = [chosen(own, arm=arms["soft"]) for own in per_seed]
    lasso = [chosen(own, arm=arms["lasso"]).sort_values("relative") for own in per_seed]
    error: PerSeed = [None if value is None else abs(value - 1) for value in found]
    away = [rows[(rows["relative"] - 1).abs() >= AWAY - 1e-9] for rows in product]
    disagree: PerSeed = [_share((rows["largest"] > tolerance) & (rows["smallest"] <= tolerance)) for rows in away]
    wrong: PerSeed = [_share((rows["size"] < 0) & (rows["largest"] > tolerance)) for rows in product]
    values: dict[str, tuple[str, PerSeed]] = {
        "transition": ("smallest gamma whose solution is zero from every start, over |E[xy]|", found),
        "transition_error": ("distance of that from 1", error),
        "starts_disagree": (f"share of gammas {off} where some starts end at zero and others do not", disagree),
        "wrong_sign": ("share of gammas whose solution has the wrong sign", wrong),
        "gap_to_theory": (
            f"largest distance of u w from the soft threshold, over |E[xy]| / E[x^2], gammas {off}",
            [_gap(ours, theirs) for ours, theirs in zip(product, soft, strict=True)],
        ),
        "control_smallest": (
            "smallest solution of one parameter with decay, over |E[xy]| / E[x^2]",
            [float(rows["smallest"].min()) for rows in plain],
        ),
        "control_zeros": (
            "share of gammas at which one parameter is zero",
            [_share(rows["largest"] <= tolerance) for rows in plain],
        ),
    }
    if all(len(rows) for rows in lasso):
        theirs = [transition(rows["relative"].to_numpy(float), rows["largest"].to_numpy(float), 0.0) for rows in lasso]
        values["lasso_transition"] = ("the same of scikit-learn's lasso, on this grid of gammas", theirs)
        gaps = [_gap(ours, others) for ours, others in zip(product, lasso, strict=True)]
        values["lasso_gap"] = (f"largest distance of u w from the lasso, gammas {off}", gaps)
    return values


def _transition(rows: pandas.DataFrame, tolerance: float) -> float | None:
    largest = rows["largest"].to_numpy(float)
    if not np.isfinite(largest).all():
        return None
    return transition(rows["relative"].to_numpy(float), largest, tolerance)


def _gap(ours: pandas.DataFrame, theirs: pandas.DataFrame) -> float | None:
    """The largest |difference| of the column size, away from the transition."""
    gaps = (ours.set_index("relative")["size"] - theirs.set_index("relative")["size"]).abs().dropna()
    away = gaps[np.abs(gaps.index.to_numpy(float) - 1) >= AWAY - 1e-9]
    return float(away.max()) if len(away) else None


def _share(hits: pandas.Series) -> float:
    return float(hits.mean())
