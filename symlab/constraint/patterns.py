"""`where` of the functions that change weights: which names are meant, and which weights cannot be changed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

Where = str | Sequence[str] | Callable[[str, Tensor], bool] | None
"""Names or patterns of parameters (`*`, `?`, `[...]`), a rule (name, parameter) -> bool, or None for the default."""

SHOWN = 6  # names in a message


def patterns_of(where: str | Sequence[str]) -> list[str]:
    """One pattern or several as a list."""
    return [where] if isinstance(where, str) else list(where)


def fits(names: Iterable[str], patterns: Sequence[str]) -> bool:
    """Whether one of a weight's names fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def check_patterns(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raises ValueError without patterns, and for one that fits none of the names, with the nearest of them."""
    if not patterns:
        raise ValueError("where is empty: give a pattern of names such as '*.weight', or leave it out for the default")
    for pattern in patterns:
        if not fits(names, [pattern]):
            near = difflib.get_close_matches(pattern, names, n=SHOWN, cutoff=0.0)
            raise ValueError(f"where: no weight has a name like {pattern!r}; near it: {', '.join(near)}")


def check_changeable(name: str, weight: Tensor, modules: Iterable[nn.Module]) -> None:
    """A weight with a shape, of real numbers, of layers that torch can copy under a parametrization.

    Raises ValueError naming the weight and what would be right.
    """
    if nn.parameter.is_lazy(weight):
        raise ValueError(f"{name} is not initialised: pass a batch through the model first")
    if not weight.is_floating_point():
        raise ValueError(f"{name} is {weight.dtype}: only real floating-point weights can be changed")
    if any(isinstance(module, nn.RNNBase) for module in modules):
        raise ValueError(
            f"{name}: recurrent layers keep a list of their weights, which torch cannot copy under a parametrization:"
            " leave them out by `where`"
        )
