"""Muon for the matrices and AdamW for everything else, as one optimizer (both are torch's).

torch.optim.Muon takes 2-D parameters only. A convolution kernel [out, in, k, k] is shown to it as the matrix
[out, in k k], as its author does; vectors and scalars go to AdamW with its own rate. Which rule covers how many weights
is logged and can be asked for with `MuonAdamW.coverage()`.
"""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from symlab.optim.checks import (
    check_count,
    check_fraction,
    check_not_negative,
    check_positive,
    check_rate,
)
from symlab.optim.coverage import Coverage
from symlab.optim.guarded import Guarded, named, named_parameters

logger = logging.getLogger("symlab")


class MuonAdamW(Guarded):
    """Two of torch's optimizers over one `state` and one list of `param_groups` (see `Guarded`).

    Each group carries a key `rule`, "muon" or "adamw", and that rule's options (those left out take torch's defaults).
    Parameters of more than two dimensions in a group of Muon are flattened to [out, rest], and so is their momentum.

    Raises ValueError for a group without a known `rule`, and for a parameter of Muon that has fewer than two dimensions
    or is in a memory format without such a view.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {})  # calls add_param_group for each

    def _bind(self) -> None:
        by_rule: dict[str, list[dict[str, Any]]] = {"muon": [], "adamw": []}
        for group in self.param_groups:
            if group.get("rule") not in by_rule:
                raise ValueError(f"each group needs rule='muon' or rule='adamw', got {group.get('rule')!r}")
            by_rule[group["rule"]].append(group)
        self._matrices = by_rule["muon"]
        self._muon = torch.optim.Muon([_flattened(group) for group in self._matrices]) if self._matrices else None
        self._adamw = torch.optim.AdamW(by_rule["adamw"]) if by_rule["adamw"] else None
        if self._adamw is not None:
            self._adamw.state = self.state

    def _update(self) -> None:
        if self._muon is not None:
            self._update_matrices(self._muon)
        if self._adamw is not None:
            self._adamw.step()

    def _update_matrices(self, muon: torch.optim.Muon) -> None:
        """torch's Muon on 2-D views of the parameters, each with this object's state of its parameter."""
        muon.state.clear()
        for inner, group in zip(muon.param_groups, self._matrices, strict=True):
            inner.update(_flattened(group))
            for view, p in zip(inner["params"], group["params"], strict=True):
                if p.grad is not None:
                    view.grad = as_matrix(p.grad, p)
                    muon.state[view] = self.state[p]
        muon.step()

    def coverage(self) -> list[Coverage]:
        """One row per tensor: its name (its place in the group, if the group has no names), rule and weights."""
        return [Coverage(name, group["rule"], p.numel()) for name, p, group in named(self.param_groups)]


def as_matrix(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A parameter, or its gradient, as [first dimension, all others]: a view of the parameter in memory.

    In channels_last the columns stand in another order, to which Muon's update is indifferent.

    Raises ValueError for a parameter of fewer than two dimensions, or in a memory format without such a view.
    """
    if parameter.ndim == 2:
        return tensor
    if parameter.ndim > 2 and parameter.is_contiguous():
        return tensor.reshape(parameter.shape[0], -1)
    if parameter.ndim == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
        return tensor.permute(0, 2, 3, 1).reshape(parameter.shape[0], -1)
    shape, stride = list(parameter.shape), list(parameter.stride())
    raise ValueError(
        f"Muon takes matrices and kernels, contiguous or channels_last: got shape {shape}, stride {stride}"
    )


def _flattened(group: dict[str, Any]) -> dict[str, Any]:
    return {**group, "params": [as_matrix(p.detach(), p) for p in group["params"]]}


def muon(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    adamw_lr: float,
    conv: bool = True,
    momentum: float = 0.95,
    nesterov: bool = True,
    weight_decay: float = 0.0,
    newton_schulz_steps: int = 5,
    adamw_beta1: float = 0.9,
    adamw_beta2: float = 0.999,
    adamw_eps: float = 1e-8,
) -> MuonAdamW:
    """B <- momentum B + (1 - momentum) G;  W <- (1 - lr wd) W - lr sqrt(max(1, rows/columns)) NS(B)  (Jordan, 2024).

    For every 2-D parameter W, and with `conv` every parameter of more dimensions as the matrix [out, in k k]: NS is the
    Newton-Schulz iteration towards U V^T of B = U S V^T (of (1 - momentum) G + momentum B with `nesterov`), in
    bfloat16. All other parameters: AdamW with rate `adamw_lr` (see symlab.optim.adamw). `weight_decay` (decoupled,
    default 0 where torch's Muon has 0.1) holds for both rules.

    `lr` and `adamw_lr` in (0, 100], momentum and betas in [0, 1), `newton_schulz_steps` in 1..99. `inputs` is not used.

    Raises ValueError or TypeError for a number out of range.
    """
    check_rate("lr", lr)
    check_rate("adamw_lr", adamw_lr)
    for name, value in (("momentum", momentum), ("adamw_beta1", adamw_beta1), ("adamw_beta2", adamw_beta2)):
        check_fraction(name, value)
    check_positive("adamw_eps", adamw_eps)
    check_not_negative("weight_decay", weight_decay)
    check_count("newton_schulz_steps", newton_schulz_steps)
    if not newton_schulz_steps < 100:
        raise ValueError(f"newton_schulz_steps must be below 100, got {newton_schulz_steps}")

    pairs = named_parameters(model)
    chosen = {name for name, p in pairs if p.ndim == 2 or (conv and p.ndim > 2)}
    matrices = {"rule": "muon", "params": [pair for pair in pairs if pair[0] in chosen], "lr": lr}
    matrices |= {"momentum": momentum, "nesterov": nesterov, "ns_steps": newton_schulz_steps}
    others = {"rule": "adamw", "params": [pair for pair in pairs if pair[0] not in chosen], "lr": adamw_lr}
    others |= {"eps": adamw_eps, "betas": (adamw_beta1, adamw_beta2)}
    groups = [group | {"weight_decay": weight_decay} for group in (matrices, others) if group["params"]]
    optimizer = MuonAdamW(groups)
    counts = {rule: sum(row.weights for row in optimizer.coverage() if row.rule == rule) for rule in ("muon", "adamw")}
    logger.info("muon covers %d weights (matrices), adamw the other %d", counts["muon"], counts["adamw"])
    return optimizer
