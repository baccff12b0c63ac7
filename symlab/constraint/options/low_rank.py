"""Weights of low rank: products of two matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from symlab.constraint.constrain import balanced_split, constrain, unit_split
from symlab.constraint.projectors.low_rank import LowRank


def low_rank(
    model: nn.Module,
    inputs: Tensor,
    generator: torch.Generator,
    *,
    rank: int | None = None,
    where: Sequence[str] | None = None,
    balanced: bool = False,
) -> nn.Module:
    """theta = U V^T of rank `rank` (None: full) for all weights that `where` names (patterns; None: all with two or
    more axes); decay on both is then the penalty of the nuclear norm.

    Starts from V with orthonormal columns; `balanced`: U and V share the singular values. `inputs` and `generator` are
    not used. Raises ValueError for what `LowRank` and `constrain` refuse.
    """
    return constrain(model, LowRank(rank), where=where, split=balanced_split if balanced else unit_split)
