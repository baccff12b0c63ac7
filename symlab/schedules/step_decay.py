"""The learning rate falls by a factor at regular intervals."""


def step_decay(step: int, total_steps: int, *, every: int, factor: float) -> float:
    """f(t) = factor^floor(t / every): the factor of the base rate for update number `step`, 0 <= step < total_steps.

    `every` is a number of updates, at least 1; `factor` lies in (0, 1].

    Raises ValueError for an `every` below 1 or a `factor` outside (0, 1].
    """
    if not every >= 1:
        raise ValueError(f"every must be at least 1 (updates between two falls), got {every}")
    if not 0 < factor <= 1:
        raise ValueError(f"factor must be in (0, 1], got {factor}")
    return float(factor ** (step // every))
