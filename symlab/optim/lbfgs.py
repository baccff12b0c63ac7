"""L-BFGS with a strong-Wolfe line search (torch's)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from symlab.curvature.mean_loss import Loss
from symlab.optim.checks import check_count, check_rate
from symlab.optim.coverage import Coverage
from symlab.optim.guarded import Guarded, named, named_parameters

TOLERANCES = {"tolerance_grad": 0.0, "tolerance_change": 1e-30}  # it is the run that ends, not the optimizer


class LBFGS(Guarded):
    """One iteration of torch.optim.LBFGS per `step`, on the batch that `observe` was given; see `lbfgs`.

    State, groups and settings are those of torch's optimizer. Evaluations within a step draw the same random numbers
    (dropout masks) as the forward pass of the gradient, under symlab's loop; running statistics of batch norm move with
    each of them outside of it.

    Raises:
        RuntimeError: from `step`, without `observe` since the last one.
        FloatingPointError: from `step`, a loss or gradient at the present weights that is not finite (nothing is
            changed then), or weights that are not finite at the end (they are put back, and the history is dropped).
    """

    def __init__(self, model: nn.Module, lr: float, *, history: int, evaluations: int) -> None:
        check_rate("lr", lr)
        check_count("history", history)
        check_count("evaluations", evaluations)
        self._model = model
        self._batch: tuple[Loss, Tensor, Tensor, list[Tensor]] | None = None
        settings = {"lr": lr, "max_iter": 1, "max_eval": evaluations + 1, "history_size": history, **TOLERANCES}
        super().__init__([{"params": named_parameters(model)}], {**settings, "line_search_fn": "strong_wolfe"})

    def _bind(self) -> None:
        self._inner = torch.optim.LBFGS(self.param_groups)
        self._inner.state = self.state

    def observe(self, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
        """Take the batch whose loss the line search of the step that follows evaluates."""
        device = inputs.device
        randomness = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if inputs.is_cuda else [])]
        self._batch = (loss, inputs, targets, randomness)

    def _update(self) -> None:
        if self._batch is None:
            raise RuntimeError("LBFGS needs the batch: call observe(loss, inputs, targets) before each step")
        if self.param_groups[0]["lr"] == 0:  # a schedule may end there: no line to search
            self._batch = None
            return
        parameters = [p for _, p, _ in named(self.param_groups)]
        weights, gradients = [p.clone() for p in parameters], [p.grad for p in parameters]
        evaluations = 0

        def closure() -> Tensor:
            nonlocal evaluations
            value, finite = self._evaluate(parameters)
            evaluations += 1
            if not finite and evaluations == 1:
                raise FloatingPointError(f"the loss of the batch is {float(value)}: nothing was changed")
            return value

        try:
            self._inner.step(closure)
        finally:
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = g
            self._batch = None
        if not all(bool(p.isfinite().all()) for p in parameters):
            for p, w in zip(parameters, weights, strict=True):
                p.copy_(w)
            self.state.clear()
            raise FloatingPointError(
                "the line search ended at weights that are not finite: they are as before, the history is dropped"
            )

    def _evaluate(self, parameters: list[Tensor]) -> tuple[Tensor, bool]:
        """The loss at the present weights, its gradient in `.grad`, and whether both are finite: inf and NaN if not.

        A trial that overflows is then a barrier from which the line search turns back by bisection.
        """
        assert self._batch is not None
        loss, inputs, targets, randomness = self._batch
        for p in parameters:
            p.grad = None
        with torch.random.fork_rng([inputs.device] if inputs.is_cuda else []), torch.enable_grad():
            torch.set_rng_state(randomness[0])
            if inputs.is_cuda:
                torch.cuda.set_rng_state(randomness[1], inputs.device)
            value = loss(self._model(inputs), targets)
            value.backward()
        value = value.detach()
        gradients = [p.grad for p in parameters if p.grad is not None]
        largest = nn.utils.get_total_norm(gradients, norm_type=math.inf)
        finite = bool(torch.isfinite(value) & torch.isfinite(largest))
        if not finite:
            value = torch.full_like(value, math.inf)
            for g in gradients:
                g.fill_(math.nan)
        return value, finite

    def coverage(self) -> list[Coverage]:
        """One row per tensor: all have the same rule."""
        return [Coverage(name, "L-BFGS over all weights", p.numel()) for name, p, _ in named(self.param_groups)]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_model": self._model, "_batch": None}


def lbfgs(model: nn.Module, inputs: Tensor, *, lr: float, history: int = 10, evaluations: int = 25) -> LBFGS:
    """theta <- theta - t H g, H the L-BFGS matrix of the last `history` steps, t by strong-Wolfe line search.

    Nocedal and Wright, Numerical Optimization, algorithms 7.4 and 3.5, torch's implementation. One update is one
    iteration: one evaluation (forward and backward pass) at the present weights and up to `evaluations` more of the
    line search, so its time varies, and steps are not comparable with those of other optimizers: compare seconds.
    `lr` in (0, 100] is the first t that is tried (of the first update: lr min(1, 1 / |g|_1)); 1 is right for most.

    Meant for full batches (batch_size of all rows): H is made of differences of gradients, and between two batches
    those are noise, with which it still runs. A trial whose loss is not finite counts as infinitely high. `inputs` is
    not used.

    Raises ValueError or TypeError for a number out of range.
    """
    return LBFGS(model, lr, history=history, evaluations=evaluations)
