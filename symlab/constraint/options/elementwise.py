"""Sparse weights: every entry is a product u * w."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from symlab.constraint.constrain import balanced_split, constrain, unit_split
from symlab.constraint.projectors.elementwise import Elementwise


def elementwise(
    model: nn.Module,
    inputs: Tensor,
    generator: torch.Generator,
    *,
    where: Sequence[str] | None = None,
    balanced: bool = False,
) -> nn.Module:
    """theta = u * w for all weights that `where` names (patterns; None: all with two or more axes); the optimizer's
    coupled decay a on both is then the L1 penalty a |theta| (spred, ICML 2023).

    Starts from u = theta, w = 1; `balanced`: |u| = |w|, from where no sign can change. `inputs` and `generator` are not
    used. Raises ValueError for what `constrain` refuses.
    """
    return constrain(model, Elementwise(), where=where, split=balanced_split if balanced else unit_split)
