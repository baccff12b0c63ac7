"""Losses and gradients of many models, averaged over all rows.

Legend: S  models;  n  rows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import grad

from symlab.curvature.ensemble import over_models
from symlab.curvature.problem import Problem, seeded


def gradients(problem: Problem, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """grad of L(theta) = (1/n) sum_r loss(f(x_r; theta), y_r) of each model: [S, *shape] from [S, *shape].

    Independent of the problem's `row_batch` (each batch counts with its share of the rows).
    """
    if len(next(iter(parameters.values()))) == 1:
        return _of_one(problem, {name: x[0] for name, x in parameters.items()})

    def one(own: dict[str, Tensor]) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for inputs, targets, share in problem.batches():
            part = grad(lambda p, x=inputs, y=targets: problem.loss(problem.outputs(p, x), y))(own)
            total = {name: share * x + total[name] if total else share * x for name, x in part.items()}
        return total

    return over_models(problem, one, parameters, key="gradients")


@torch.no_grad()
def losses(problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
    """L(theta) of each model: [S] from [S, *shape]; as independent of `row_batch` as `gradients`."""

    def one(own: dict[str, Tensor]) -> Tensor:
        parts = [share * problem.loss(problem.outputs(own, x), y) for x, y, share in problem.batches()]
        return torch.stack(parts).sum()

    found: Tensor = over_models(problem, one, parameters)
    return found


def _of_one(problem: Problem, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of one model [1, *shape] by a plain backward pass: torch.func's keeps a graph of itself, a sixth of the time."""
    own = {name: x.detach().requires_grad_() for name, x in parameters.items()}
    total: dict[str, Tensor] = {}
    with seeded(problem), torch.enable_grad():
        for inputs, targets, share in problem.batches():
            value = share * problem.loss(problem.outputs(own, inputs), targets)
            part = torch.autograd.grad(value, list(own.values()), materialize_grads=True)
            total = {name: x + total[name] if total else x for name, x in zip(own, part, strict=True)}
    return {name: x.unsqueeze(0) for name, x in total.items()}
