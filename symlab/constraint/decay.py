"""Decay as the theory of the constraint needs it: its own on the factors, the usual one elsewhere."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from symlab.constraint.constrain import constrained


def parameter_groups(
    model: nn.Module, *, decay: float, free_decay: float = 0.0, by_size: bool = False
) -> list[dict[str, Any]]:
    """Groups for a torch optimizer: weight_decay `decay` on u and w, `free_decay` on all others, v among them.

    With torch's coupled weight_decay a (a / 2 times the square is added to the loss, as SGD and Adam do) on both u and
    w of theta = u * w, minima are those of loss + a |theta|_1, so a = 2 alpha for scikit-learn's Lasso(alpha) and the
    mean squared error (spred, ICML 2023). Decoupled decay (AdamW) shrinks u and w without regard to the gradient's
    scale: no function is minimised, and this is not the L1 penalty. v has no penalty of the constraint: to shrink what
    the constraint leaves free is `free_decay`'s choice, and where P is not the identity that of the norm of the mean.

    `by_size`: decay times sqrt(`group_size`), the usual weights of the group lasso.

    Raises ValueError for a decay that is negative or not finite, if nothing is constrained, and if u, w
    or v have parametrizations of their own.
    """
    for name, value in (("decay", decay), ("free_decay", free_decay)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and at least 0, got {value}")
    found = list(constrained(model))
    if not found:
        raise ValueError("no weight of this model is constrained: call constrain(model, ...) first")
    own: dict[float, list[Tensor]] = {}
    for each in found:
        if not all(isinstance(part, nn.Parameter) for part in each.parts):
            raise ValueError(f"the parts of {each.name} are parametrized again: give the optimizer your own groups")
        factor = math.sqrt(each.parametrization.group_size) if by_size else 1.0
        own.setdefault(decay * factor, []).extend(each.parts[:2])
    taken = {id(part) for parts in own.values() for part in parts}
    rest = [p for p in model.parameters() if id(p) not in taken]
    groups = [{"params": parts, "weight_decay": value} for value, parts in own.items()]
    return groups + ([{"params": rest, "weight_decay": free_decay}] if rest else [])
