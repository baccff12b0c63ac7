"""The learning rate falls along half a cosine to a floor at the end of the run."""

import math


def cosine(step: int, total_steps: int, *, floor: float = 0.0) -> float:
    """f(t) = floor + (1 - floor) (1 + cos(pi t / T)) / 2, with T = `total_steps`, for update number t = `step`.

    One period without restarts (Loshchilov and Hutter, SGDR, 2017, eq. 5). The last update, t = T - 1, still moves;
    the floor itself would be reached at t = T. `floor` is a fraction of the base rate in [0, 1].

    Raises ValueError for a `floor` outside [0, 1].
    """
    if not 0 <= floor <= 1:
        raise ValueError(f"floor must be in [0, 1] (a fraction of the base rate), got {floor}")
    return floor + (1 - floor) * (1 + math.cos(math.pi * step / total_steps)) / 2
