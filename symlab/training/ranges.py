"""One rule for the least value of a job's numbers."""

import math

from symlab.rundir import BadInput


def check_at_least(least: int, **values: float | None) -> None:
    """Raises BadInput, naming the key, for a value below `least`, infinite or NaN; None passes."""
    for name, value in values.items():
        if value is not None and not least <= value < math.inf:
            raise BadInput(f"{name} must be finite and at least {least}, got {value}")
