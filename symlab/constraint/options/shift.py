"""Weights without symmetry traps: weight decay pulls towards a fixed random point."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from symlab.constraint.remove_symmetry import absolute, by_fan_in, remove_symmetry


def shift(
    model: nn.Module,
    inputs: Tensor,
    generator: torch.Generator,
    *,
    sigma: float = 0.01,
    per_fan_in: bool = True,
    where: Sequence[str] | None = None,
) -> nn.Module:
    """theta = phi + theta_0 for all weights that `where` names (patterns; None: all trainable ones), theta_0 fixed and
    random: the optimizer's decay of phi has no mirror in common with the loss (syre, ICLR 2025; `remove_symmetry`).

    theta_0 ~ N(0, sigma^2 / d) with d the inputs of one unit, `per_fan_in` false: N(0, sigma^2). Without weight decay
    in the optimizer nothing changes. `inputs` is not used. Raises ValueError for what `remove_symmetry` refuses.
    """
    scale = by_fan_in if per_fan_in else absolute
    return remove_symmetry(model, sigma, scale=scale, where=where, generator=generator)
