"""Damped Gauss-Newton with the dense matrix of all weights, for small nets."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from symlab.curvature.problem import Problem
from symlab.curvature.second_order import ggns
from symlab.optim.damped_roots import damped_roots
from symlab.optim.dense_curvature import DenseCurvature


@final
class GaussNewton(DenseCurvature):
    """theta <- theta - lr (M + damping I)^-1 g, M = (1/B) sum_r J_r^T H_r J_r: see `DenseCurvature`."""

    def _curvature(self, problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
        return ggns(problem, parameters)

    def _solve(self, matrix: Tensor, gradient: Tensor, damping: float) -> Tensor:
        (root,) = damped_roots([matrix], [matrix.new_tensor(damping)])
        return torch.cholesky_solve(gradient.unsqueeze(1), root).squeeze(1)


def gauss_newton(
    model: nn.Module, inputs: Tensor, *, lr: float, damping: float = 1e-3, max_weights: int = 5000
) -> GaussNewton:
    """theta <- theta - lr (M + damping I)^-1 g, M the Gauss-Newton matrix of the batch (Schraudolph, 2002).

    M = (1/B) sum_r J_r^T H_r J_r over the rows of the batch, exact and dense over all weights; for cross-entropy and
    half the squared error it is the Fisher, and the step a damped natural gradient (Amari, 1998; Martens, 2020). `lr`
    in (0, 100]; 1 with a tiny `damping` (> 0, in the units of the loss per squared weight) solves linear least squares
    in one step. Cost P^3 for P weights, so at most `max_weights` of them. `inputs` is not used.

    Raises ValueError or TypeError for a number out of range and for a larger model.
    """
    return GaussNewton(model, lr, damping=damping, max_weights=max_weights)
