"""The learning rate stays as it is."""


def constant(step: int, total_steps: int) -> float:
    """f(t) = 1: the factor of the base rate for update number `step`, 0 <= step < total_steps."""
    return 1.0
