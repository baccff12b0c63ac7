"""The learning rate falls by a constant factor with every update."""


def exponential(step: int, total_steps: int, *, gamma: float) -> float:
    """f(t) = gamma^t: the factor of the base rate for update number `step`, 0 <= step < total_steps.

    `gamma` is per update (not per epoch) and lies in (0, 1].

    Raises ValueError for a `gamma` outside (0, 1].
    """
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma must be in (0, 1], got {gamma}")
    return float(gamma**step)
