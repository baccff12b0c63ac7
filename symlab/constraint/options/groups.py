"""Weights that vanish in groups, each with one extra number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from symlab.constraint.constrain import balanced_split, constrain, unit_split
from symlab.constraint.projectors.groups import Groups


def groups(
    model: nn.Module,
    inputs: Tensor,
    generator: torch.Generator,
    *,
    axes: Sequence[int] = (0,),
    where: Sequence[str] | None = None,
    balanced: bool = False,
) -> nn.Module:
    """theta[g] = scale[g] * w[g] for the groups along `axes` (0: filters or output neurons, 1: input features) of all
    weights that `where` names (patterns; None: all with two or more axes); decay is then the group lasso's penalty.

    Starts from scale 1; `balanced`: |scale| = ||w[g]||. `inputs` and `generator` are not used. Raises ValueError for
    what `Groups` and `constrain` refuse.
    """
    return constrain(model, Groups(axes), where=where, split=balanced_split if balanced else unit_split)
