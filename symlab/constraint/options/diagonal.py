"""Weights without symmetry traps, rotations included: a random point to decay to, and decay that differs per weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from symlab.constraint.distinct_decay import distinct_decay
from symlab.constraint.options.shift import shift


def diagonal(
    model: nn.Module,
    inputs: Tensor,
    generator: torch.Generator,
    *,
    spread: float = 0.01,
    sigma: float = 0.01,
    per_fan_in: bool = True,
    where: Sequence[str] | None = None,
) -> nn.Module:
    """theta = phi / d + theta_0 for all weights that `where` names (patterns; None: all trainable ones), with fixed
    random theta_0 (see `shift`) and d in 1 +- spread: the optimizer's decay a of phi is a |d (theta - theta_0)|^2 / 2.

    sigma 0 leaves theta_0 out. `inputs` is not used. Raises ValueError for what `remove_symmetry` and `distinct_decay`
    refuse.
    """
    if sigma != 0:
        shift(model, inputs, generator, sigma=sigma, per_fan_in=per_fan_in, where=where)
    return distinct_decay(model, spread, where=where, generator=generator)
