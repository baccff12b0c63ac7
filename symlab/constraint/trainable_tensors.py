"""The tensors that an optimizer trains, also those behind parametrizations, and every place that holds each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from symlab.constraint.patterns import Where, check_changeable, check_patterns, fits, patterns_of

BEHIND = re.compile(r"parametrizations\.([^.]+)\.original\d*")


@dataclass(frozen=True, eq=False)
class ChosenWeight:
    """A trainable tensor by its first name, with each module and attribute that holds it: several if it is tied."""

    name: str
    parameter: nn.Parameter
    places: tuple[tuple[nn.Module, str], ...]


def choose_weights(model: nn.Module, where: Where = None) -> list[ChosenWeight]:
    """The trainable tensors with entries that `where` means (None: all), in the model's order, tied ones once.

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
                check_changeable(name, p, [module])
            if p.requires_grad and p.numel():
                tensors[id(p)] = p
                names.setdefault(id(p), []).extend(dict.fromkeys((name, _name_of_weight(name))))
                places.setdefault(id(p), []).append((module, key))
    if not tensors:
        raise ValueError(f"{type(model).__name__} has no trainable parameter")
    chosen = _meant(where, names, tensors)
    for key in chosen:
        check_changeable(names[key][0], tensors[key], [module for module, _ in places[key]])
    return [ChosenWeight(names[key][0], tensors[key], tuple(places[key])) for key in chosen]


def _name_of_weight(name: str) -> str:
    """fc.weight for fc.parametrizations.weight.original0, through parametrizations within one another."""
    outer = BEHIND.sub(r"\1", name)
    return name if outer == name else _name_of_weight(outer)


def _meant(where: Where, names: dict[int, list[str]], tensors: dict[int, nn.Parameter]) -> list[int]:
    """Keys of the tensors that `where` means, in their order."""
    if where is None:
        return list(tensors)
    if callable(where):
        chosen = [key for key, p in tensors.items() if any(where(name, p) for name in names[key])]
        if not chosen:
            raise ValueError("where: the rule chooses no trainable weight")
        return chosen
    patterns = patterns_of(where)
    check_patterns(patterns, [name for known in names.values() for name in known])
    return [key for key in tensors if fits(names[key], patterns)]
