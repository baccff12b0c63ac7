"""Damped saddle-free Newton with the dense Hessian of all weights, for small nets."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from symlab.curvature.problem import Problem
from symlab.curvature.second_order import hessians
from symlab.optim.dense_curvature import DenseCurvature


@final
class Newton(DenseCurvature):
    """theta <- theta - lr (|M| + damping I)^-1 g, M the Hessian of the batch's loss: see `DenseCurvature`."""

    def _curvature(self, problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
        return hessians(problem, parameters)

    def _solve(self, matrix: Tensor, gradient: Tensor, damping: float) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        return vectors @ ((vectors.mT @ gradient) / (values.abs() + damping))


def newton(model: nn.Module, inputs: Tensor, *, lr: float, damping: float = 1e-3, max_weights: int = 2000) -> Newton:
    """theta <- theta - lr Q (|h| + damping)^-1 Q^T g, M = Q diag(h) Q^T the Hessian (Dauphin et al., 2014).

    Saddle-free: along a direction of negative curvature the step goes downhill, by g / (|h| + damping), where Newton's
    own would climb to the saddle. Where M is positive definite it is Newton's method, damped. M is exact and dense over
    all weights of the batch's mean loss. `lr` in (0, 100], 1 is the full step; `damping` > 0. One eigendecomposition
    of size P per step, so at most `max_weights` weights. `inputs` is not used.

    Raises ValueError or TypeError for a number out of range and for a larger model.
    """
    return Newton(model, lr, damping=damping, max_weights=max_weights)
