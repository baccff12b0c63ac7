"""What a comparison infers from few seeds: an interval by the bootstrap, an exact paired test, Holm's correction."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

SMALLEST_SAMPLE = 3  # values from which an interval is made
ROUNDING = 1e-12  # values this close to each other, relatively, are equal
Interval = tuple[float | None, float | None]


def bootstrap_interval(values: Sequence[float], confidence: float, resamples: int, seed: int) -> Interval:
    """Interval of the mean of `values` [n] over resamples with replacement: bias-corrected and accelerated (BCa).

    Efron, JASA 82 (1987). Where BCa is not defined (all values equal, or no resample on one side of the mean) it is
    the percentile interval. (None, None) for fewer than 3 values or a value that is not finite. The result does not
    depend on the order of the values.

    Raises ImportError without scipy.
    """
    sample = np.sort(np.asarray(values, float))
    if len(sample) < SMALLEST_SAMPLE or not np.isfinite(sample).all():
        return None, None
    scale = float(np.abs(sample).max())
    if sample[-1] - sample[0] <= ROUNDING * scale:
        return float(sample[0]), float(sample[-1])
    stats = _scipy_stats()
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # BCa says so, and percentile follows
            found = stats.bootstrap(
                (sample / scale,),  # scaled: squares of 1e200 overflow
                np.mean,
                confidence_level=confidence,
                n_resamples=resamples,
                method=method,
                random_state=np.random.default_rng(seed),
            ).confidence_interval
        if math.isfinite(found.low) and math.isfinite(found.high):
            break
    return scale * float(found.low), scale * float(found.high)


class PairedT(NamedTuple):
    """Student's paired test: mean difference, its interval, t, two-sided p, and the mean in standard deviations."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    t: float | None = None
    p: float | None = None
    effect_size: float | None = None


def paired_t(differences: Sequence[float], confidence: float) -> PairedT:
    """t = m / (s / sqrt n) with n - 1 degrees of freedom; interval m -+ t* s / sqrt n; effect size m / s (Cohen's d_z).

    m, s: mean and standard deviation (n - 1 in the divisor) of the differences [n]. Without a difference all is None;
    with one, or where all are equal, only the mean is known. Raises ValueError for a difference that is not finite,
    ImportError without scipy.
    """
    d = np.asarray(differences, float)
    if not np.isfinite(d).all():
        raise ValueError(f"a t test needs finite differences, got {list(differences)}")
    if not len(d):
        return PairedT()
    scale = float(np.abs(d).max()) or 1.0  # squares of 1e200 overflow
    mean = float((d / scale).mean())
    std = float((d / scale).std(ddof=1)) if len(d) > 1 else 0.0
    if std <= ROUNDING:
        return PairedT(scale * mean)
    error = std / math.sqrt(len(d))
    law = _scipy_stats().t(len(d) - 1)
    half = float(law.ppf((1 + confidence) / 2)) * error
    t = mean / error
    return PairedT(scale * mean, scale * (mean - half), scale * (mean + half), t, float(2 * law.sf(abs(t))), mean / std)


def signed_rank_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test (1945), exact for every n, ties and zeros included.

    With r_i the rank of |d_i| (ties share their mean rank), W = sum of r_i over d_i > 0; p = 2 min(P(W' <= W),
    P(W' >= W)), at most 1, where W' is W under independent fair signs of the differences that are not 0. Zeros are
    ranked and then left out (Pratt, 1959); nothing but zeros gives 1. Infinite differences are the largest, tied.

    Raises ValueError for no difference or one that is nan.
    """
    d = np.asarray(differences, float)
    if not len(d) or np.isnan(d).any():
        raise ValueError(f"a paired test needs differences that are numbers, got {list(differences)}")
    doubled = np.rint(2 * mean_ranks(np.abs(d))).astype(int)  # whole numbers: mean ranks are halves
    kept = doubled[d != 0]
    chance = np.zeros(kept.sum() + 1)  # of each value of 2 W'
    chance[0] = 1.0
    for rank in kept:
        chance[rank:] += chance[:-rank].copy()  # the right side is read before it is changed
        chance /= 2
    observed = doubled[d > 0].sum()
    return float(min(1.0, 2 * min(chance[: observed + 1].sum(), chance[observed:].sum())))


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 [n]; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) adjusted p-values in the given order: max over the smaller ones of (m - rank + 1) p, at most 1.

    None stays None and does not count in m.
    """
    tested = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        adjusted[index] = largest
    return adjusted


def _scipy_stats() -> Any:
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError("the intervals of a comparison need scipy: pip install 'symlab[compare]'") from error
    return stats
