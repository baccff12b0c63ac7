"""Quasi-random points: they fill the space evenly, whatever their number (needs scipy)."""

from __future__ import annotations

from typing import Any

import numpy as np

from symlab.search.sampler import Listed, Sampler, check_trials
from symlab.search.space import Space


def quasi_random(space: Space, trials: int, seed: int) -> Sampler:
    """The first `trials` points of a Sobol sequence scrambled with `seed` (Sobol, 1967; Owen, 1998), in scaled
    coordinates; choices are equal intervals of their coordinate.

    The same seed gives the same points, and a larger budget begins with those of a smaller one. Powers of two fill
    the space best. An empty space has the one point {}.

    Raises ImportError without the package scipy.
    """
    check_trials(trials)
    return Listed(quasi_random_points(space, trials, seed))


def quasi_random_points(space: Space, trials: int, seed: int) -> list[dict[str, Any]]:
    """The points of `quasi_random`."""
    if not space.dimensions:
        return [{}]
    try:
        from scipy.stats import qmc
    except ImportError as error:
        raise ImportError("search quasi_random needs scipy: pip install 'symlab[compare]'") from error
    sequence = qmc.Sobol(len(space.dimensions), scramble=True, seed=np.random.default_rng(seed))
    units = sequence.random_base2((trials - 1).bit_length())[:trials]  # [trials, keys]; drawn whole, so balanced
    return [space.from_unit(row) for row in units]
