"""The learning rate falls by a constant factor with every update, to a given fraction at the end of the run."""


def geometric(step: int, total_steps: int, *, final: float = 1e-3) -> float:
    """f(t) = final^(t / T), with T = `total_steps`: the exponential schedule stretched to the run's length.

    The fraction `final` of the base rate, in (0, 1], would be reached at t = T; the last update is t = T - 1.

    Raises ValueError for a `final` outside (0, 1].
    """
    if not 0 < final <= 1:
        raise ValueError(f"final must be in (0, 1] (a fraction of the base rate), got {final}")
    return float(final ** (step / total_steps))
