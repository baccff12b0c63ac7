"""A regular grid over the space."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from symlab.search.quasi_random import quasi_random_points
from symlab.search.sampler import Listed, Sampler, check_trials
from symlab.search.space import Dimension, Space


def grid(space: Space, trials: int, seed: int, *, fill: bool = True) -> Sampler:
    """The product of n_k evenly spaced values per key, in scaled coordinates, end points included.

    A key with choices takes them all, together C. With B = floor(trials / C) and d other keys, n_k = floor(B^(1/d));
    then each of those keys in turn, the first first, gets one value more if the product stays at most B. One value
    alone stands in the middle of the range. So at most `trials` points, in the order of nested loops, the first key
    outermost. An empty space has the one point {}.

    With `fill` what the grid leaves of the trials goes to quasi-random points (`seed` is theirs), so that optimizers
    with different numbers of keys have the same number of trials; choices that are more than `trials` leave all to
    them. Without, such choices raise ValueError.
    """
    check_trials(trials)
    if fill and _choices(space) > trials:
        return Listed(quasi_random_points(space, trials, seed))
    counts = _counts(space.dimensions, trials)
    values = [_values(dimension, count) for dimension, count in zip(space.dimensions, counts, strict=True)]
    keys = [dimension.key for dimension in space.dimensions]
    points = [dict(zip(keys, point, strict=True)) for point in itertools.product(*values)]
    rest = trials - len(points) if fill and space.dimensions else 0
    return Listed(points + (quasi_random_points(space, rest, seed) if rest else []))


def _choices(space: Space) -> int:
    """C."""
    return math.prod(len(dimension.choices) for dimension in space.dimensions if dimension.choices is not None)


def _counts(dimensions: Sequence[Dimension], trials: int) -> list[int]:
    """n_k by the rule above."""
    counts = [0 if dimension.choices is None else len(dimension.choices) for dimension in dimensions]
    fixed = math.prod(count for count in counts if count)
    if fixed > trials:
        raise ValueError(
            f"trials must be at least {fixed}, the number of choices that a grid takes all of, got {trials}"
        )
    free = [place for place, count in enumerate(counts) if count == 0]
    budget = trials // fixed
    for place in free:
        counts[place] = _root(budget, len(free))
    for place in free:
        product = math.prod(counts[other] for other in free)
        if product // counts[place] * (counts[place] + 1) <= budget:
            counts[place] += 1
    return counts


def _root(number: int, degree: int) -> int:
    """floor(number^(1 / degree)), exactly."""
    root = round(number ** (1 / degree))
    return root if root**degree <= number else root - 1


def _values(dimension: Dimension, count: int) -> list[Any]:
    if dimension.choices is not None:
        return list(dimension.choices)
    if count == 1:
        return [dimension.from_unit(0.5)]
    return [dimension.from_unit(index / (count - 1)) for index in range(count)]
