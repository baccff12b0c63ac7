"""Which weights of a model a constraint changes, and every place where the model has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

Where = str | Sequence[str] | None
"""One or several patterns of names as in `model.named_parameters()` (`*` and `?` stand for any characters), or None for
all."""


BEHIND = re.compile(r"parametrizations\.([^.]+)\.original\d*")


@dataclass(frozen=True, eq=False)
class ChosenWeight:
    """A trainable tensor by its first name, with each module and attribute that holds it: several if it is tied."""

    name: str
    parameter: nn.Parameter
    places: tuple[tuple[nn.Module, str], ...]


def choose_weights(model: nn.Module, where: Where = None) -> list[ChosenWeight]:
    """The trainable tensors with entries whose name fits one of the patterns, in the model's order, tied ones once.

    Frozen tensors (requires_grad=False) and empty ones are left out. A tensor behind a parametrization has two names,
    its own (fc.parametrizations.weight.original0) and that of the weight (fc.weight).

    Raises ValueError for a pattern that fits none of them (all of a tied tensor's names count), a tensor that is not
    initialised, complex, or a recurrent layer's, and a model without any.
    """
    names: dict[int, list[str]] = {}
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for key, p in module.named_parameters(recurse=False):
            name = f"{path}.{key}" if path else key
            if nn.parameter.is_lazy(p):
                raise ValueError(f"parameter {name} is not initialised: run one forward pass first")
            if p.requires_grad and p.numel():
                tensors[id(p)] = p
                names.setdefault(id(p), []).extend(dict.fromkeys((name, _name_of_weight(name))))
                places.setdefault(id(p), []).append((module, key))
    if not tensors:
        raise ValueError(f"{type(model).__name__} has no trainable parameter")
    chosen = [key for key in tensors if _fits(names[key], where)]
    _check_patterns(where, [name for known in names.values() for name in known])
    for key in chosen:
        if any(isinstance(module, nn.RNNBase) for module, _ in places[key]):
            raise ValueError(
                f"{names[key][0]}: recurrent layers keep a list of their weights, which torch cannot copy under a"
                " parametrization: leave them out by `where`"
            )
        if not tensors[key].is_floating_point():
            raise ValueError(f"parameter {names[key][0]} is {tensors[key].dtype}: real floating-point weights only")
    return [ChosenWeight(names[key][0], tensors[key], tuple(places[key])) for key in chosen]


def _name_of_weight(name: str) -> str:
    """fc.weight for fc.parametrizations.weight.original0, through parametrizations within one another."""
    outer = BEHIND.sub(r"\1", name)
    return name if outer == name else _name_of_weight(outer)


def _patterns(where: Where) -> list[str]:
    return ["*"] if where is None else [where] if isinstance(where, str) else list(where)


def _fits(names: Sequence[str], where: Where) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in _patterns(where))


def _check_patterns(where: Where, names: Sequence[str]) -> None:
    patterns = _patterns(where)
    if not patterns:
        raise ValueError("where is empty: give a pattern of names such as '*.weight', or leave it out for all weights")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            raise ValueError(f"where: {pattern!r} is the name of no trainable weight; there are {shown}")
