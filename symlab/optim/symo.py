"""SymO: precondition with the symmetry-structured second moment of the gradient.

Source: Bernacchia, "Global curvature for second-order optimization of neural networks" (ICML 2025).

Legend: k  isotypic block of the weight space;  G_k [m_k, N_k]  the pieces of the gradient in it;  D_k  dimension of its
irreducible piece;  M_k [m_k, m_k]  running second moment;  t  number of the update, from 1.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from symlab.optim.checks import check_rate
from symlab.optim.coverage import Coverage
from symlab.optim.guarded import restore_statistics
from symlab.optim.structured_moment import (
    apply_kept,
    apply_root,
    in_precision,
    matrix_of,
    power_of,
    refreshed,
    second_moments,
    update_moments,
)
from symlab.optim.symo_plan import Plan, check_hyperparameters, check_saved, coverage_of, plan_of
from symlab.symmetry import WeightSymmetry, inspect_symmetry
from symlab.symmetry.axis_choice import choose_groups
from symlab.symmetry.parametrized import without_constants
from symlab.symmetry.spectrum import batched_eigh

SHOWN = 6  # axes named in one line of the log

logger = logging.getLogger("symlab")


class _Gathered(NamedTuple):
    """What one group contributes at one step, before anything is changed."""

    parameters: Mapping[str, Tensor]
    velocity: Mapping[str, Tensor]  # [1, *shape]: momentum's b_t, the gradients themselves without momentum
    pieces: list[Tensor]  # [S, m_k, N_k]: of the gradients, behind them (S = 2) of the velocity; S = 1: of the velocity
    increments: list[Tensor] | None  # [m_k, m_k], what they add to the statistics; None: the root is kept


class SymO(Optimizer):
    """theta <- theta - lr (Sigma_t + eps I)^exponent g_t, Sigma_t the group-averaged second moment of the gradient.

    Per block: M_k <- beta M_k + (1 - beta) G_k G_k^T / D_k;  Sigma_t = M_k / (1 - beta^t);  eps = damping x the
    largest eigenvalue of that block's Sigma_t. With momentum mu, the step takes b_t = mu b_{t-1} + g_t in place of g_t
    (the statistics only with `of_momentum`). Decoupled weight decay: theta <- (1 - lr weight_decay) theta, before it.

    Args:
        named_parameters: pairs (name, parameter), as of `model.named_parameters()`, or a list of groups
            `{"params": [pairs], ...}`. Statistics couple the tensors of one group only: with a group for each tensor,
            every tensor has its own.
        symmetry: the model's `WeightSymmetry`, e.g. of `infer_symmetry(model, inputs)`. It may know more tensors.
        lr: > 0. The update's root mean square per block is about lr, whatever the scale of the loss (exponent -1/2).
        beta: decay of the statistics, in [0, 1).
        momentum: mu, in [0, 1); the step grows by up to 1 / (1 - mu), as with SGD.
        damping: >= 0, relative to the largest eigenvalue, block by block.
        exponent: in [-1, 0]; -1/2 is the paper's, 0 is gradient descent.
        update_every: the eigenvectors of M_k are renewed every that many steps. In between the statistics go on, and
            each kept eigenvector q is scaled by its present second moment q^T M_k q.
        max_block: blocks with m_k above it are coarsened (`WeightSymmetry.coarsen`), so that the cost of a step stays
            bounded by eigh of that size.
        weight_decay: >= 0.
        nesterov: with momentum, the step takes g_t + mu b_t.
        of_momentum: the statistics are those of what the step takes. With beta 0 each block of the update is then
            sqrt(D_k) U V^T of B_k = U S V^T: Muon on the blocks of the symmetry.
        one_sided: hidden-to-hidden weights have one free side in place of both groups (`one_sided_symmetry.one_sided`).
        statistics_every: statistics and roots are renewed every that many steps. In between the root is kept as a
            matrix in the precision of the weights, and no block's update is larger than when the root was renewed.
        statistics_dtype: float64 keeps directions whose second moment is 1e-13 of the largest one; float32 (for a
            device without float64) loses those below 1e-5, and with them most of the gain on ill-conditioned inputs.

    Parameters outside the symmetry: one scalar per tensor, M = running mean of its squared entries (as if every axis
    were under O(n)). Parameters without a gradient at a step are left untouched and count as zero gradients in the
    statistics (with `of_momentum`: as their momentum). Empty parameters are left alone. Eigenvalues are floored at m x
    machine epsilon of the largest; a zero gradient gives a zero update, and so does a block that holds nothing but
    rounding errors (`RoundingFloor`). A step with one NaN or inf gradient entry raises and changes nothing.

    Raises:
        ValueError: an argument out of range (named, with its value); parameters without names; complex parameters.
        FloatingPointError: from `step`, a gradient that is not finite, naming the parameter.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]],
        symmetry: WeightSymmetry,
        lr: float,
        *,
        beta: float = 0.95,
        momentum: float = 0.0,
        damping: float = 0.0,
        exponent: float = -0.5,
        update_every: int = 1,
        max_block: int = 256,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        of_momentum: bool = False,
        one_sided: bool = False,
        statistics_every: int = 1,
        statistics_dtype: torch.dtype = torch.float64,
    ) -> None:
        if statistics_dtype not in (torch.float32, torch.float64):
            raise ValueError(f"statistics_dtype must be torch.float32 or torch.float64, got {statistics_dtype}")
        self.symmetry = symmetry
        self.statistics_dtype = statistics_dtype
        self._plans: list[Plan] = []
        defaults = {
            "lr": lr,
            "beta": beta,
            "momentum": momentum,
            "damping": damping,
            "exponent": exponent,
            "update_every": update_every,
            "max_block": max_block,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "of_momentum": of_momentum,
            "one_sided": one_sided,
            "statistics_every": statistics_every,
        }
        super().__init__(named_parameters, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as pairs (name, parameter); their statistics are their own (see the class)."""
        super().add_param_group(param_group)
        try:
            group = self.param_groups[-1]
            check_hyperparameters(group)
            self._plans.append(plan_of(group, self.symmetry))
        except ValueError:
            del self.param_groups[-1]
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; `closure`, if given, re-evaluates the model and returns the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        steps = [self._gather(g, plan) for g, plan in zip(self.param_groups, self._plans, strict=True)]
        for group, plan, gathered in zip(self.param_groups, self._plans, steps, strict=True):
            if gathered is not None:
                self._step_group(group, plan, gathered)
        return loss

    def _gather(self, group: Mapping[str, Any], plan: Plan) -> _Gathered | None:
        """What one group contributes, checked, before anything is changed; None if no parameter has a gradient."""
        check_hyperparameters(group, after_schedule=True)
        parameters = {n: p for n, p in zip(group["param_names"], group["params"], strict=True) if p.numel() > 0}
        if all(p.grad is None for p in parameters.values()):
            return None
        gradients = {name: plan.gradient(name, p) for name, p in parameters.items()}  # [1, *shape]
        velocity, steps = gradients, gradients
        if group["momentum"]:
            velocity = self._velocity(group["momentum"], parameters, gradients)
            steps = _ahead(group["momentum"], gradients, velocity) if group["nesterov"] else velocity
        if self._steps(group) % group["statistics_every"] and "roots" in self.state[group["params"][0]]:
            _check_finite(gradients, torch.stack([g.norm() for g in gradients.values()]), plan.work_dtype)
            return _Gathered(parameters, velocity, plan.symmetry.split(steps), None)
        both = steps  # [1, *shape]
        if group["momentum"] and not group["of_momentum"]:
            both = {name: torch.cat((g, steps[name])) for name, g in gradients.items()}  # [2, *shape]
        blocks, dtype = plan.symmetry.blocks, self.statistics_dtype
        pieces = in_precision(blocks, plan.symmetry.split(both), dtype)  # [S, m_k, N_k]
        increments = second_moments(blocks, pieces, dtype)  # [m_k, m_k]
        # one bad entry of the gradient makes the trace of its block infinite or NaN
        _check_finite(gradients, torch.stack([m.trace() for m in increments]), dtype)
        return _Gathered(parameters, velocity, pieces, increments)

    def _step_group(self, group: dict[str, Any], plan: Plan, gathered: _Gathered) -> None:
        parameters, velocity, pieces, increments = gathered
        state = self.state[group["params"][0]]
        state["step"] = self._steps(group) + 1
        if increments is None:
            directions = apply_kept(state["roots"], state["bounds"], pieces)
        else:
            roots = self._roots(group, plan, state, increments)
            directions = [apply_root(q, f, g[-1:], plan.work_dtype) for (q, f), g in zip(roots, pieces, strict=True)]
            if group["statistics_every"] > 1:
                state["roots"] = [matrix_of(q, f, plan.work_dtype) for q, f in roots]
                state["bounds"] = torch._foreach_norm(directions)
        updates = plan.symmetry.merge(directions)  # [1, *shape]
        moved = {name: p for name, p in parameters.items() if p.grad is not None}
        if group["momentum"]:
            for name, p in moved.items():
                self.state[p]["momentum_buffer"] = velocity[name]
        weights = list(moved.values())
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        steps = [updates[name].reshape(p.shape).to(p.dtype) for name, p in moved.items()]
        torch._foreach_add_(weights, steps, alpha=-group["lr"])

    def _roots(
        self, group: Mapping[str, Any], plan: Plan, state: dict[str, Any], increments: list[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """Take in what the gradients add; (Sigma_t + eps I)^exponent of each block as eigenvectors and powers."""
        if "moments" not in state:
            state["moments"] = [torch.zeros_like(increment) for increment in increments]
            state["blocks"] = plan.block_sizes
        update_moments(state["moments"], increments, group["beta"])
        renewals = (state["step"] - 1) // group["statistics_every"]  # before this one
        if renewals % group["update_every"] == 0:
            systems = batched_eigh(state["moments"])
        else:
            systems = refreshed(state["moments"], state["eigenvectors"])
        if group["update_every"] > 1:
            state["eigenvectors"] = [q for _, q in systems]
        scale = (1 - group["beta"] ** (renewals + 1), group["damping"], group["exponent"])
        roots = [(q, power_of(values, *scale)) for values, q in systems]
        if plan.floor is not None:
            rounding = plan.floor.is_rounding(state["moments"])  # [K]
            roots = [(q, f * 0.0) if noise else (q, f) for (q, f), noise in zip(roots, rounding.tolist(), strict=True)]
        return roots

    def _steps(self, group: Mapping[str, Any]) -> int:
        """Updates that this group has had."""
        first = group["params"][0]
        return int(self.state[first].get("step", 0)) if first in self.state else 0

    def _velocity(
        self, momentum: float, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """b_t = momentum b_{t-1} + g_t [1, *shape], as new tensors; b_{t-1} where there is no gradient."""
        velocity = {}
        for name, p in parameters.items():
            buffer = self.state[p].get("momentum_buffer") if p in self.state else None
            if buffer is None:
                velocity[name] = gradients[name].clone()
            else:
                velocity[name] = buffer if p.grad is None else torch.add(gradients[name], buffer, alpha=momentum)
        return velocity

    def coverage(self) -> list[Coverage]:
        """One row per tensor: the blocks that hold it, and its number of weights."""
        pairs = zip(self.param_groups, self._plans, strict=True)
        return [row for group, plan in pairs for row in coverage_of(group, plan)]

    def coarsened(self) -> list[str]:
        """The free axes that are treated as if under O(n), because their blocks would be larger than max_block."""
        return list(dict.fromkeys(label for plan in self._plans for label in plan.coarsened))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore statistics and settings; every tensor keeps the dtype it was saved with.

        Raises:
            ValueError: the saved blocks do not fit this optimizer's (another model, symmetry or max_block), or its
                statistics_dtype differs.
        """
        plans = self._plans_for(state_dict)
        super().load_state_dict(state_dict)
        self._plans = plans
        restore_statistics(self, state_dict)

    def _plans_for(self, state_dict: Mapping[str, Any]) -> list[Plan]:
        """The plans under the saved settings, checked against the saved blocks."""
        if [len(g["params"]) for g in state_dict["param_groups"]] != [len(g["params"]) for g in self.param_groups]:
            return self._plans  # torch's own loader names this mistake
        plans = []
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            missing = [key for key in group if key not in saved and key != "param_names"]
            if missing:
                raise ValueError(f"the saved state has no {missing[0]}: it is that of another optimizer")
            check_hyperparameters(saved, after_schedule=True)
            settings = {**group, **saved, "params": group["params"], "param_names": group["param_names"]}
            plan = plan_of(settings, self.symmetry)
            states = [state_dict["state"].get(index, {}) for index in saved["params"]]
            check_saved(dict(zip(group["param_names"], states, strict=True)), plan, self.statistics_dtype)
            plans.append(plan)
        return plans

    def __getstate__(self) -> dict[str, Any]:
        own = {"symmetry": self.symmetry, "statistics_dtype": self.statistics_dtype, "_plans": self._plans}
        return {**super().__getstate__(), **own}


def symo(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    beta: float = 0.95,
    momentum: float = 0.0,
    damping: float = 0.0,
    exponent: float = -0.5,
    update_every: int = 1,
    max_block: int = 256,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    of_momentum: bool = False,
    one_sided: bool = False,
    statistics_every: int = 1,
    statistics_dtype: str = "float64",
    groups: Mapping[str, str] | None = None,
) -> SymO:
    """`SymO` on all trainable parameters of a model, with the symmetry that `inspect_symmetry` finds and verifies.

    `inputs`: a few rows of training data, to trace the model with. lr in (0, 100]. `groups`: other groups for some
    axes, by role or label (see `axis_choice.choose_groups`), before blocks are coarsened to `max_block`; the rest as in
    `SymO`. A smaller group than the axis has is finer and dearer, down to full-matrix statistics; a larger one (kernel:
    orthogonal) is cheaper and an approximation: the statistics are averaged over a group that the loss does not have.
    The log names the axes that coarsening took.

    Where weights are a p + s with constants (a shift or distinct decay of `symlab.constraint`), the symmetry is that of
    the model with w = p. Constants are no part of it, so that with them every axis would be free; but they are drawn
    from laws that the group leaves alone, and the second moment of the gradient over such draws has the symmetry. For
    constants as small as those it is close to that of each.

    Raises ValueError or TypeError for a number out of range and for groups that name no axis or no group.
    """
    check_rate("lr", lr)
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    plain, names = without_constants(model)
    inferred = inspect_symmetry(plain, inputs)
    symmetry = inferred.symmetry.renamed(names) if names else inferred.symmetry
    if groups:
        symmetry = symmetry.with_groups(choose_groups(inferred.axes, groups))
    optimizer = SymO(
        trainable,
        symmetry,
        lr,
        beta=beta,
        momentum=momentum,
        damping=damping,
        exponent=exponent,
        update_every=update_every,
        max_block=max_block,
        weight_decay=weight_decay,
        nesterov=nesterov,
        of_momentum=of_momentum,
        one_sided=one_sided,
        statistics_every=statistics_every,
        statistics_dtype=_statistics_dtype(statistics_dtype),
    )
    taken = optimizer.coarsened()
    if taken:
        more = f" and {len(taken) - SHOWN} more" if len(taken) > SHOWN else ""
        message = "SymO: to keep blocks within max_block=%d, %d free axes are treated as if under O(n): %s%s"
        logger.info(message, max_block, len(taken), ", ".join(taken[:SHOWN]), more)
    return optimizer


def _ahead(momentum: float, gradients: Mapping[str, Tensor], velocity: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """g_t + momentum b_t, Nesterov's form, [1, *shape]."""
    return {name: torch.add(g, velocity[name], alpha=momentum) for name, g in gradients.items()}


def _check_finite(gradients: Mapping[str, Tensor], sizes: Tensor, dtype: torch.dtype) -> None:
    """Raises FloatingPointError unless all `sizes`, of which each gradient has a part in one, are finite."""
    if not math.isfinite(float(sizes.sum())):
        bad = [name for name, g in gradients.items() if not bool(g.isfinite().all())]
        fault = "holds NaN or inf" if bad else f"is too large to be squared in {dtype}"
        raise FloatingPointError(f"the gradient of {(bad or list(gradients))[0]} {fault}: nothing was changed")


def _statistics_dtype(name: str) -> torch.dtype:
    found = {"float32": torch.float32, "float64": torch.float64}
    if name not in found:
        raise ValueError(f"statistics_dtype must be float32 or float64, got {name!r}")
    return found[name]
