"""How low the rank is: columns of a table from matrices, and contrasts per seed from the table.

The rank counts singular values above a cut-off times a fixed scale, the largest singular value of the target: relative
to its own largest one, a matrix that has gone to zero altogether would have a rank. `own_rank` is that one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from symlab.constraint.measures import numerical_rank, stable_rank
from symlab.protocols.study import Number, over_seeds

if TYPE_CHECKING:
    import pandas

Columns = dict[str, list[float | None]]


def rank_names(cut_offs: Sequence[float]) -> list[str]:
    """The columns of the rank at each cut-off, rank_1e-03 for .001."""
    return [f"rank_{cut_off:.0e}" for cut_off in cut_offs]


def check_cut_offs(cut_off: float, cut_offs: Sequence[float]) -> None:
    """Raises ValueError unless all lie strictly between 0 and 1, and name a column each."""
    for key, values in (("cut_off", [cut_off]), ("cut_offs", cut_offs)):
        for value in values:
            if not 0 < value < 1:
                raise ValueError(
                    f"{key}: a cut-off is relative to the target's largest singular value, in (0, 1), got {value}"
                )
    if len(set(names := rank_names(cut_offs))) < len(names):
        raise ValueError(f"cut_offs: each once, also when rounded to one digit as columns are: got {list(cut_offs)}")


def rank_columns(matrices: Tensor, live: Tensor, scale: float, cut_off: float, cut_offs: Sequence[float]) -> Columns:
    """rank = #{i: s_i > cut_off scale}, also at `cut_offs`, own_rank, stable_rank, largest and smallest s_i / scale.

    matrices [S, d, d]; None where not `live` [S].
    """
    values = torch.linalg.svdvals(matrices.double()) / scale  # [S, d]
    found = {"rank": (values > cut_off).sum(1)}
    found |= {name: (values > c).sum(1) for name, c in zip(rank_names(cut_offs), cut_offs, strict=True)}
    found |= {"own_rank": numerical_rank(matrices, cut_off), "stable_rank": stable_rank(matrices)}
    found |= {"largest": values[:, 0], "smallest": values[:, -1]}
    keep = live.tolist()
    return {
        name: [float(v) if kept else None for v, kept in zip(column.tolist(), keep, strict=True)]
        for name, column in found.items()
    }


def per_seed(frame: pandas.DataFrame, measure: Callable[[pandas.DataFrame], float | None]) -> list[float | None]:
    """`measure` of each seed's own rows; an empty list without rows, so that the number is unknown."""
    return [measure(own) for _, own in frame.groupby("seed")]


def contrast(text: str, frame: pandas.DataFrame, measure: Callable[[pandas.DataFrame], float | None]) -> Number:
    """The measure's mean and spread over seeds."""
    return over_seeds(text, per_seed(frame, measure))


def drop(axis: str, value: str = "rank") -> Callable[[pandas.DataFrame], float | None]:
    """value at the least setting of `axis` minus that at the greatest with a number: mean over all other settings."""

    def measure(own: pandas.DataFrame) -> float | None:
        series = _series(own, axis, value)
        ends = [values[0] - values[-1] for values in series if len(values) > 1]
        return sum(ends) / len(ends) if ends else None

    return measure


def falling(axis: str, value: str = "rank") -> Callable[[pandas.DataFrame], float | None]:
    """Share of neighbouring settings of `axis`, over all other settings, between which the value does not rise."""

    def measure(own: pandas.DataFrame) -> float | None:
        pairs = [b <= a for values in _series(own, axis, value) for a, b in itertools.pairwise(values)]
        return sum(pairs) / len(pairs) if pairs else None

    return measure


def least_drop(axis: str, names: Sequence[str]) -> Callable[[pandas.DataFrame], float | None]:
    """The smallest `drop` of the ranks at all cut-offs, `names` of `rank_names`."""

    def measure(own: pandas.DataFrame) -> float | None:
        drops = [found for name in names if (found := drop(axis, name)(own)) is not None]
        return min(drops) if drops else None

    return measure


def mean_of(value: str) -> Callable[[pandas.DataFrame], float | None]:
    """Mean over the rows that have a number."""

    def measure(own: pandas.DataFrame) -> float | None:
        mean = float(own[value].mean())
        return mean if math.isfinite(mean) else None

    return measure


def difference(frame: pandas.DataFrame, arm: str, other: str, value: str, keys: Sequence[str]) -> list[float | None]:
    """Per seed: mean over the settings `keys`, where both arms have a number, of value(arm) - value(other)."""
    pairs = frame[frame["arm"] == arm].merge(frame[frame["arm"] == other], on=["seed", *keys], suffixes=("_a", "_b"))
    pairs["gap"] = pairs[f"{value}_a"] - pairs[f"{value}_b"]
    return per_seed(pairs, mean_of("gap"))


def gaps_of_starts(frame: pandas.DataFrame, arm: str, other: str, size: int, keys: Sequence[str]) -> list[float | None]:
    """Per seed: mean of |rank of one arm - rank of the other| / size over the settings where both have a number."""
    pairs = frame[frame["arm"] == arm].merge(frame[frame["arm"] == other], on=["seed", *keys], suffixes=("_a", "_b"))
    return per_seed(pairs.assign(gap=(pairs["rank_a"] - pairs["rank_b"]).abs() / size), mean_of("gap"))


def late_change(size: int) -> Callable[[pandas.DataFrame], float | None]:
    """Mean of |rank at the end - rank at half the time| / size."""

    def measure(own: pandas.DataFrame) -> float | None:
        return mean_of("change")(own.assign(change=(own["rank"] - own["rank_at_half_time"]).abs() / size))

    return measure


def without_rank(own: pandas.DataFrame) -> float:
    """Share of the rows without a rank: of what diverged."""
    return float(own["rank"].isna().mean())


AXES = ("lr", "decay", "noise", "batch")


def _series(own: pandas.DataFrame, axis: str, value: str) -> list[list[float]]:
    """The values along `axis`, ascending, one list per combination of the other settings; gaps left out."""
    others = [name for name in AXES if name in own.columns and name != axis]
    rows = own.dropna(subset=[value]).sort_values(axis)
    groups = [group for _, group in rows.groupby(others)] if others else [rows]
    return [list(map(float, group[value])) for group in groups]
