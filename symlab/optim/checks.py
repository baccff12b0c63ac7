"""One rule for the numbers of every optimizer, applied before anything is built."""

import math

from torch import nn

LARGEST_RATE = 100.0


def check_rate(name: str, value: float) -> None:
    """`value` is a number in (0, 100]: 0 trains nothing, a larger rate is a slip of the exponent.

    Raises ValueError (out of range, NaN, infinite) or TypeError (a bool, a string, a tensor).
    """
    _check_number(name, value)
    if not 0 < value <= LARGEST_RATE:
        raise ValueError(f"{name} must be positive and at most {LARGEST_RATE:g}, got {value}")


def check_positive(name: str, value: float) -> None:
    """`value` is a finite number above 0. Raises ValueError or TypeError."""
    _check_number(name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")


def check_not_negative(name: str, value: float) -> None:
    """`value` is a finite number, at least 0. Raises ValueError or TypeError."""
    _check_number(name, value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and not negative, got {value}")


def check_fraction(name: str, value: float) -> None:
    """`value` is a number in [0, 1): the weight of the past in a moving average. Raises ValueError or TypeError."""
    _check_number(name, value)
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def check_count(name: str, value: int) -> None:
    """`value` is an integer, at least 1. Raises ValueError or TypeError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not value >= 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that ask for gradients, in the model's order. Raises ValueError when there is none."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the model has no trainable parameter: nothing to optimize")
    return parameters


def _check_number(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
