"""The loss of many models, averaged over all rows.

Legend: S  models;  n  rows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from symlab.curvature.ensemble import over_models
from symlab.curvature.problem import Problem


@torch.no_grad()
def losses(problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
    """L(theta) = (1/n) sum_r loss(f(x_r; theta), y_r) of each model: [S] from [S, *shape].

    Independent of the problem's `row_batch` (each batch counts with its share of the rows).
    """

    def one(own: dict[str, Tensor]) -> Tensor:
        parts = [share * problem.loss(problem.outputs(own, x), y) for x, y, share in problem.batches()]
        return torch.stack(parts).sum()

    found: Tensor = over_models(problem, one, parameters)
    return found
