"""Gradients of many models, averaged over all rows.

Legend: S  models;  n  rows.
"""

from collections.abc import Mapping

from torch import Tensor
from torch.func import grad

from symlab.curvature.ensemble import over_models
from symlab.curvature.problem import Problem


def gradients(problem: Problem, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """grad of L(theta) = (1/n) sum_r loss(f(x_r; theta), y_r) of each model: [S, *shape] from [S, *shape].

    Independent of the problem's `row_batch` (each batch counts with its share of the rows).
    """

    def one(own: dict[str, Tensor]) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for inputs, targets, share in problem.batches():
            part = grad(lambda p, x=inputs, y=targets: problem.loss(problem.outputs(p, x), y))(own)
            total = {name: share * x + total[name] if total else share * x for name, x in part.items()}
        return total

    return over_models(problem, one, parameters, key="gradients")
