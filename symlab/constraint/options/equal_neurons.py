"""Neurons that become equal: decay on the differences between them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from symlab.constraint.constrain import balanced_split, constrain, unit_split
from symlab.constraint.projectors.equal_neurons import EqualNeurons


def equal_neurons(
    model: nn.Module,
    inputs: Tensor,
    generator: torch.Generator,
    *,
    whole: bool = False,
    where: Sequence[str] | None = None,
    balanced: bool = False,
) -> nn.Module:
    """theta[i] = (u * w)[i] - its mean over rows + v for all weights that `where` names (patterns; None: all with two
    or more axes): decay makes the incoming weights of neurons i equal, entry by entry, or `whole` neurons at once.

    Starts from w = 1; `balanced`: |u| = |w|. `inputs` and `generator` are not used. Raises ValueError for what
    `EqualNeurons` and `constrain` refuse.
    """
    return constrain(model, EqualNeurons(whole), where=where, split=balanced_split if balanced else unit_split)
