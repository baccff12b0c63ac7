"""Statements of MacDonald et al. (NeurIPS 2023) beside what was measured.

Rows come from `convergence_rows`; every row of the result is one statement about one kind of net.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Row = Mapping[str, Any]

ROUNDING = 1e-10
"""Of a bound, relative to its value; of lambda, see `_floor`."""
EPSILON = 2.0**-52
SATURATED = 10.0
"""Scale of the weights from which on a bounded curvature no longer grows."""
TINY = 1e-9
GROWTH = 0.25
"""Largest exponent of the first layer's norm, in t (Theorem 5.1's proof)."""


@dataclass(frozen=True)
class Measured:
    """All rows of one kind of net: along its paths, and at random weights."""

    path: Sequence[Row]
    draws: Sequence[Row]
    level: float
    lr: float

    def starts(self) -> list[list[Row]]:
        """The rows of each start, in the order of steps."""
        found: dict[tuple[Any, Any], list[Row]] = {}
        for row in sorted(self.path, key=lambda row: row["step"]):
            found.setdefault((row["scale"], row["seed"]), []).append(row)
        return list(found.values())

    def points(self) -> list[Row]:
        """Path and draws on the data as they are, where there is a number."""
        return [row for row in (*self.path, *self.draws) if row["regularity"] is not None and _as_given(row)]


@dataclass(frozen=True)
class Finding:
    """`measured` the number that decides, with its smallest and largest value over `of` starts, nets or measurements.

    verdict: holds; fails; not yet (it may still come: nothing contradicts it so far); unknown (no number).
    """

    measured: float | None
    low: float | None
    high: float | None
    of: int
    verdict: str
    meaning: str


def layerwise_bound(data: Measured) -> Finding:
    """Proposition 4.6: lambda(DF) >= the bound everywhere. Measured: lambda(DF) / bound, its least and largest, where
    both are above rounding; a bound that exceeds lambda(DF) by more than rounding fails anywhere.
    """
    if not data.points():
        return Finding(None, None, None, 0, "unknown", "no finite measurement")
    points = [row for row in data.points() if row["bound"] > 0 and row["regularity"] > _floor(row)]
    ratios = [row["regularity"] / row["bound"] for row in points]
    broken = [row for row in data.points() if row["bound"] > row["regularity"] * (1 + ROUNDING) + _floor(row)]
    verdict = "fails" if broken else "holds"
    if not points:
        return Finding(None, None, None, 0, verdict, "lambda(DF) or the bound is below rounding at all measurements")
    meaning = "lambda(DF) / bound: median, least, largest"
    return Finding(median(ratios), min(ratios), max(ratios), len(points), verdict, meaning)


def positivity(data: Measured) -> Finding:
    """Theorem 4.7: lambda(DF) > 0. Measured: the least lambda(DF); positive where it is above rounding. Nets so large
    that rounding alone makes more than `TINY` of lambda say nothing.
    """
    points = [row for row in data.points() if row["regularity"] > _floor(row) or _floor(row) < TINY]
    if not points:
        return Finding(None, None, None, 0, "unknown", "no finite measurement")
    values = [row["regularity"] for row in points]
    positive = all(row["regularity"] > _floor(row) for row in points)
    meaning = "lambda(DF): least, least, greatest"
    return Finding(min(values), min(values), max(values), len(points), "holds" if positive else "fails", meaning)


def smoothness(data: Measured) -> Finding:
    """Theorem 4.5: the gradient is Lipschitz with one constant for all weights. Measured: the exponent with which the
    largest |Hessian eigenvalue| of random nets grows with the scale of their weights, from 10 on, where normalised
    weights are near their bounds: at most 0 where it is bounded; low and high are the least and the greatest of these
    largest eigenvalues. Nets on their way are left out: one that blows up would rule its scale.
    """
    worst: dict[float, float] = {}
    for row in (*data.path, *data.draws):
        if row["scale"] >= SATURATED and _as_given(row) and row.get("step", 0) == 0:
            worst[row["scale"]] = max(worst.get(row["scale"], 0.0), curvature(row))
    pairs = [(math.log(scale), math.log(value)) for scale, value in sorted(worst.items()) if value > 0]
    if len(pairs) < 2:
        return Finding(None, None, None, len(pairs), "unknown", f"needs two scales of at least {SATURATED:g}")
    exponent = slope(pairs)
    values = list(worst.values())
    meaning = "exponent of the largest curvature in the scale of the weights; least and largest over scales"
    return Finding(exponent, min(values), max(values), len(pairs), "holds" if exponent <= 0.1 else "fails", meaning)


def gradient_bound(data: Measured) -> Finding:
    """|grad L|^2 >= lambda(DF) |grad c|^2 everywhere, the first step of every convergence proof. Measured: |grad L|^2 /
    (lambda(DF) |grad c|^2): median, least, largest.
    """
    points = [row for row in data.points() if row["output_ratio"] is not None and row["regularity"] > _floor(row)]
    ratios = [row["output_ratio"] / row["regularity"] for row in points]
    if not ratios:
        return Finding(None, None, None, 0, "unknown", "lambda(DF) is 0, or all gradients are")
    verdict = "holds" if min(ratios) >= 1 - 1e-6 else "fails"
    meaning = "|grad L|^2 / (lambda(DF) |grad c|^2): median, least, largest"
    return Finding(median(ratios), min(ratios), max(ratios), len(ratios), verdict, meaning)


def monotone(data: Measured) -> Finding:
    """Theorem 5.1: no update makes the loss larger. Measured: share of starts without a rise, and alive at the end."""
    ends = [rows[-1] for rows in data.starts()]
    good = [row["alive"] and row["rises"] == 0 for row in ends]
    rises = [row["rises"] for row in ends]
    verdict = "holds" if all(good) else "fails"
    meaning = "share of starts whose loss never rose; least and largest number of rises"
    return Finding(sum(good) / len(good), min(rises), max(rises), len(good), verdict, meaning)


def small_steps(data: Measured) -> Finding:
    """Theorem 5.1 needs a small enough rate: no curvature on the way is 2 / lr or more. Measured: the largest one in
    units of 2 / lr, of every start the larger of |Hessian eigenvalue| + its error at the recorded steps and of |change
    of the gradient| / |step| over all updates; low and high over the starts.
    """
    worst = []
    for rows in data.starts():
        changes = [row["lipschitz"] for row in rows if row["lipschitz"] is not None]
        known = [curvature(row) + row["hessian_error"] for row in rows if row["hessian_error"] is not None]
        if known or changes:
            worst.append(max([*known, *changes]) * data.lr / 2)
    if not worst:
        return Finding(None, None, None, 0, "unknown", "no finite measurement")
    verdict = "holds" if max(worst) < 1 else "fails"
    meaning = "largest curvature on the way, in units of 2 / lr: greatest, least, greatest over starts"
    return Finding(max(worst), min(worst), max(worst), len(worst), verdict, meaning)


def below_level(data: Measured) -> Finding:
    """Theorem 5.1: the loss falls below every level. Measured: share of starts below `level` at the end.

    Not yet: all other starts have fallen over their last recorded stretch and never rose.
    """
    ends = [rows[-2:] for rows in data.starts()]
    losses = [rows[-1]["loss"] if rows[-1]["alive"] else math.inf for rows in ends]
    done = [loss is not None and loss < data.level for loss in losses]
    falling = [_falls(rows) for rows in ends]
    verdict = (
        "holds" if all(done) else "not yet" if all(d or f for d, f in zip(done, falling, strict=True)) else "fails"
    )
    finite = [loss for loss in losses if loss is not None and loss < math.inf]
    meaning = f"share of starts with a loss below {data.level:g}; least and largest final loss"
    low, high = min(finite, default=None), max(finite, default=None)
    return Finding(sum(done) / len(done), low, high, len(done), verdict, meaning)


def growth(data: Measured) -> Finding:
    """Theorem 5.1's proof: |W_1| = O(t^(1/4)). Measured: over the last tenfold of steps, the exponent of |W_1| in t."""
    exponents = []
    for rows in data.starts():
        last = rows[-1]["step"]
        late = [row for row in rows if row["alive"] and row["step"] >= last / 10 and row["step"] > 0]
        if len(late) >= 2 and rows[-1]["alive"]:
            exponents.append(slope([(math.log(row["step"]), math.log(row["first_norm"])) for row in late]))
    if not exponents:
        return Finding(None, None, None, 0, "unknown", "no start was alive at the end")
    meaning = "exponent of the first layer's norm over the last tenfold of steps: median, least, largest"
    verdict = "holds" if max(exponents) <= GROWTH else "fails"
    return Finding(median(exponents), min(exponents), max(exponents), len(exponents), verdict, meaning)


STATEMENTS: dict[str, tuple[str, str, Callable[[Measured], Finding]]] = {
    "bound": ("Proposition 4.6", "lambda(DF) >= sum of the layers' terms", layerwise_bound),
    "gradient": ("PL inequality", "|grad L|^2 >= lambda(DF) |grad c|^2", gradient_bound),
    "positivity": ("Theorem 4.7", "lambda(DF) > 0", positivity),
    "smoothness": ("Theorem 4.5", "the gradient's Lipschitz constant is bounded", smoothness),
    "small_steps": ("Theorem 5.1", "no curvature on the way is 2 / lr or more", small_steps),
    "monotone": ("Theorem 5.1", "the loss never rises", monotone),
    "level": ("Theorem 5.1", "the loss falls below the level", below_level),
    "growth": ("Theorem 5.1, proof", "the first layer grows at most as t^(1/4)", growth),
}


def theorem_rows(measured: Mapping[str, Measured], promises: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """One row per statement and kind of net. `promises`: statement -> the nets that meet its conditions; the others are
    controls. The two bounds are linear algebra and promised to all.
    """
    rows = []
    for key, (source, statement, judge) in STATEMENTS.items():
        for variant, data in measured.items():
            found = judge(data)
            promised = key in ("bound", "gradient") or variant in promises.get(key, ())
            rows.append(
                {"statement": key, "source": source, "says": statement, "variant": variant, "promised": promised}
                | {"measured": found.measured, "low": found.low, "high": found.high, "of": found.of}
                | {"verdict": found.verdict, "meaning": found.meaning}
            )
    return rows


def curvature(row: Row) -> float:
    """The largest |Hessian eigenvalue| that the row knows of: 0 without any."""
    known = [row.get(key) for key in ("hessian_largest", "hessian_smallest")]
    return max((abs(value) for value in known if value is not None), default=0.0)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line through (x, y); at least two different x."""
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def _as_given(row: Row) -> bool:
    """Not one of the controls on other data."""
    return row.get("rows", "given") == "given"


def _floor(row: Row) -> float:
    """What rounding may leave of lambda(DF) = 0: (100 eps)^2 times the largest eigenvalue."""
    return (100 * EPSILON) ** 2 * float(row["largest"])


def _falls(rows: Sequence[Row]) -> bool:
    """Alive, lower than at the last recorded step but one, and never higher than just before on the whole path."""
    if len(rows) < 2 or not rows[-1]["alive"]:
        return False
    return bool(rows[-1]["loss"] < rows[-2]["loss"]) and rows[-1]["rises"] == 0
