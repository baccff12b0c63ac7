"""The first rows of a split after a seeded shuffle."""

from __future__ import annotations

import torch
from torch import Tensor

from symlab.data.ranges import whole_number


def subset(
    key: str, inputs: Tensor, targets: Tensor, count: int | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Rows pi(0), ..., pi(count - 1) of `inputs` [N, ...] and `targets` [N, ...], pi a random permutation
    of the N rows.

    `count` None keeps all N, in shuffled order. So a smaller subset is the beginning of a larger one.
    `key` names the setting in the ValueError that is raised unless 1 <= count <= N.
    """
    rows = subset_rows(key, inputs.shape[0], count, generator)
    return inputs[rows], targets[rows]


def subset_rows(key: str, total: int, count: int | None, generator: torch.Generator) -> Tensor:
    """The row numbers pi(0), ..., pi(count - 1) of `total` rows, as in `subset`."""
    rows = torch.randperm(total, generator=generator)  # [N]
    if count is None:
        return rows
    if whole_number(key, count, least=1) > total:
        raise ValueError(f"{key} must be at most {total}, the rows that there are, got {count}")
    return rows[:count]
