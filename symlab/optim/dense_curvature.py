"""Steps with the dense curvature of all weights of a small net: the upper reference for every approximation of it.

Legend: P  weights;  B  rows of the batch;  M [P, P]  curvature of the batch's mean loss;  g [P]  its gradient.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from symlab.curvature.mean_loss import Loss
from symlab.curvature.problem import Problem
from symlab.optim.checks import check_count, check_positive, check_rate
from symlab.optim.coverage import Coverage
from symlab.optim.guarded import Guarded, named, named_parameters

MATRICES = 4  # of P x P numbers in float64 that a step has in memory at once
JACOBIAN = 2**25  # numbers in the Jacobian of the rows that are in memory at once


class DenseCurvature(Guarded, ABC):
    """theta <- theta - lr s(M)^-1 g, with M the exact curvature of the batch that `observe` was given.

    M is computed in the precision of the weights (float32 at least) and solved in float64. Where the net has batch norm
    or dropout, M is that of training mode, with dropout masks of its own; otherwise rows are independent, and the fast
    paths of `curvature.second_order` are taken. There is no state: every step forgets the last one.

    Raises:
        ValueError, TypeError: a number out of range, or more than `max_weights` weights.
        RuntimeError: from `step`, without `observe` since the last one.
        FloatingPointError: from `step`, a gradient or curvature that is not finite; nothing is changed then.
    """

    def __init__(self, model: nn.Module, lr: float, *, damping: float, max_weights: int) -> None:
        check_rate("lr", lr)
        check_positive("damping", damping)
        check_count("max_weights", max_weights)
        parameters = named_parameters(model)
        P = sum(p.numel() for _, p in parameters)
        if max_weights < P:
            memory = MATRICES * 8 * P**2 / 1024**3
            raise ValueError(
                f"max_weights={max_weights}, but the model has {P}: dense curvature of all weights would take about "
                f"{memory:.3g} GiB and P^3 = {P**3:.1g} operations per step; raise max_weights, or take optimizer kfac"
            )
        self._model = model
        self._pending: Tensor | None = None  # M of the batch that the next step is for
        super().__init__([{"params": parameters}], {"lr": lr, "damping": damping})

    @abstractmethod
    def _curvature(self, problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
        """M [1, P, P] at `parameters` [1, *shape]."""

    @abstractmethod
    def _solve(self, matrix: Tensor, gradient: Tensor, damping: float) -> Tensor:
        """s(M)^-1 g [P], from M [P, P] and g [P] in float64."""

    def _bind(self) -> None:
        """Nothing to tie: there is no state."""

    def observe(self, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
        """Take M of a batch at the present weights for the step that follows; `loss` is a mean over rows."""
        parameters = {name: p.detach() for name, p, _ in named(self.param_groups)}
        work = torch.float32
        for p in parameters.values():
            work = torch.promote_types(work, p.dtype)
        rows = inputs.to(work) if inputs.is_floating_point() else inputs
        problem = Problem.of(self._model, rows, targets, loss, training=depends_on_mode(self._model))
        if not problem.coupled:
            most = max(1, JACOBIAN // (problem.num_outputs * problem.num_parameters))
            problem = replace(problem, row_batch=most)
        everything = dict(self._model.named_parameters())
        stacked = {name: everything[name].detach().to(work).unsqueeze(0) for name in problem.names}  # [1, *shape]
        self._pending = self._curvature(problem, stacked)[0]

    def _update(self) -> None:
        if self._pending is None:
            kind = type(self).__name__
            raise RuntimeError(f"{kind} needs the batch: call observe(loss, inputs, targets) before each step")
        matrix = self._pending.double()
        if not bool(matrix.isfinite().all()):
            raise FloatingPointError("the curvature of the batch holds NaN or inf: nothing was changed")
        (group,) = self.param_groups
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in group["params"]]
        g = torch.cat([gradient.double().reshape(-1) for gradient in gradients])  # [P]
        direction = self._solve(matrix, g, group["damping"])
        parts = direction.split([p.numel() for p in group["params"]])
        for p, part in zip(group["params"], parts, strict=True):
            if p.grad is not None:
                p.add_(part.reshape(p.shape).to(p.dtype), alpha=-group["lr"])
        self._pending = None

    def coverage(self) -> list[Coverage]:
        """One row per tensor: all have the same rule."""
        P = sum(p.numel() for _, p, _ in named(self.param_groups))
        return [Coverage(name, f"dense {P} x {P} curvature", p.numel()) for name, p, _ in named(self.param_groups)]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_model": self._model, "_pending": self._pending}


def depends_on_mode(model: nn.Module) -> bool:
    """Whether a module in training mode is not what it is in eval mode: batch norm, dropout."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return any(isinstance(module, kinds) and module.training for module in model.modules())
