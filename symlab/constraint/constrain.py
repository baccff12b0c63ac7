"""Impose a constraint on any model's weights, and read off the plain model in the end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from symlab.constraint.factored import Factored, Projector, Split, balanced_split, unit_split
from symlab.constraint.patterns import Where
from symlab.constraint.plain_weights import Weight, check_free, select, weights
from symlab.constraint.projectors.projection import Projection
from symlab.symmetry.parametrized import own_class, parametrizations_of, parametrized_weights

__all__ = ["Constrained", "balanced_split", "collapse", "constrain", "constrained", "unit_split"]


def constrain(
    model: nn.Module,
    projector: Projector | Tensor | Callable[[Tensor], Tensor],
    *,
    where: Where = None,
    split: Split = unit_split,
) -> nn.Module:
    """theta = P(u * w) + (I - P) v for every chosen weight theta: DCS (Liu Ziyin, ICML 2024), with decay on u and w.

    In place, by torch.nn.utils.parametrize; returns the same model, whose parameters are now u, w and v: make the
    optimizer after this. `projector`: `Elementwise()`, `Groups(...)`, `LowRank(...)`, `EqualNeurons(...)`, or an
    orthogonal projector P of your own, as a function of theta or as a matrix. `where`: names or patterns of parameters,
    a rule (name, parameter) -> bool, or None for all with two or more axes that require gradients. A frozen weight that
    is named stays frozen. The model's function stays as it was, to rounding (a `LowRank` of smaller rank than the
    weight's aside); bit for bit with `Elementwise` and `unit_split`, u = theta and w = 1.

    Raises ValueError, and leaves the model as it was, for weights that are tied, complex, without shape, of a recurrent
    layer, parametrized already, also by this function, empty, or not finite; for names that match nothing; for a wrong
    projector; and for a balanced split of a weight that is all zero, which would stay zero. TypeError for no projector.
    """
    if isinstance(projector, type) or not (isinstance(projector, Projector | Tensor) or callable(projector)):
        raise TypeError(f"projector must be such as Elementwise(), a matrix or a function, got {projector!r}")
    kind = projector if isinstance(projector, Projector) else Projection(projector)
    chosen = select(model, where)
    check_free(model, chosen)
    made = [_checked(kind, weight, split) for weight in chosen]
    for weight, parametrization in zip(chosen, made, strict=True):
        parametrization.place = list(weight.module._parameters).index(weight.own)
        parametrize.register_parametrization(weight.module, weight.own, parametrization)
    return model


@torch.no_grad()
def _checked(kind: Projector, weight: Weight, split: Split) -> Factored:
    """The parametrization of theta. Raises ValueError if it does not fit, or could not move."""
    theta = weight.value
    if theta.is_meta or not theta.numel() or not theta.isfinite().all():
        wrong = "no values yet" if theta.is_meta else "values that are not finite" if theta.numel() else "no entries"
        raise ValueError(f"{weight.name} has {wrong}: leave it out by `where`, or load its values first")
    try:
        parametrization = kind.factored(theta, split)
        parts = parametrization.right_inverse(theta)
    except ValueError as error:
        raise ValueError(f"{weight.name}: {error}") from error
    if not all(bool(part.isfinite().all()) for part in parts):
        raise ValueError(f"{weight.name}: the split makes factors that are not finite: sizes must be at least 0")
    if not parts[0].any() and not parts[1].any():
        raise ValueError(f"{weight.name}: both factors are zero, so it would stay so for ever: use unit_split")
    return parametrization


class Constrained(NamedTuple):
    """A constrained weight: its name in the plain model, the parametrization, and its parts u, w and perhaps v, which
    are parameters, or what they are made of where they are parametrized again."""

    name: str
    module: nn.Module
    own: str
    parametrization: Factored
    parts: tuple[Tensor, ...]


def constrained(model: nn.Module) -> Iterator[Constrained]:
    """All weights that `constrain` has changed, in the model's order."""
    for weight in weights(model):
        if not weight.parametrized:
            continue
        stack = parametrized_weights(weight.module)[weight.own]
        if isinstance(stack, parametrize.ParametrizationList) and isinstance(stack[0], Factored):
            parts = tuple(getattr(stack, f"original{k}") for k in range(stack.ntensors))
            yield Constrained(weight.name, weight.module, weight.own, stack[0], parts)


def collapse(model: nn.Module, threshold: float = 1e-6) -> nn.Module:
    """A copy with plain weights theta = P(u * w) + (I - P) v, in which what is not above `threshold` is exactly zero.

    `threshold` is absolute, in units of theta, so that a layer that has died is zero too. What is compared with it:
    the entries of theta (`Elementwise`), the 2-norms of groups (`Groups`; |scale| ||w||, however the norm is shared),
    singular values (`LowRank`), entries or rows of u * w (`EqualNeurons`, `Projection`). Modules, names and order of
    the parameters are those from before `constrain`; `model` is not changed.

    Raises ValueError for a threshold below 0, if nothing is constrained, and for a weight with a parametrization that
    was put on top of the constraint.
    """
    if not threshold >= 0:
        raise ValueError(f"threshold must be at least 0, got {threshold}")
    plain = copy.deepcopy(model)
    found = list(constrained(plain))
    if not found:
        raise ValueError("no weight of this model is constrained: nothing to collapse")
    for each in reversed(found):
        _make_plain(each, threshold)
    return plain


def _make_plain(each: Constrained, threshold: float) -> None:
    """Put the collapsed weight in place of its parametrization, at its old position."""
    module, own = each.module, each.own
    if len(parametrizations_of(parametrized_weights(module)[own])) > 1:
        raise ValueError(f"{each.name} has another parametrization on top of the constraint: remove that first")
    with torch.no_grad():
        theta = each.parametrization.collapsed(threshold, *each.parts)
    trained = any(part.requires_grad for part in each.parts)
    own_class(module)
    parametrize.remove_parametrizations(module, own)
    delattr(module, own)  # what torch left: a buffer where the weight was frozen
    names, place = list(module._parameters.items()), each.parametrization.place
    module._parameters.clear()
    for name, value in [*names[:place], (own, nn.Parameter(theta, requires_grad=trained)), *names[place:]]:
        module.register_parameter(name, value)
