"""Muon for the matrices and AdamW for everything else, as one optimizer (both are torch's).

torch.optim.Muon takes 2-D parameters only. So every 2-D parameter is updated by Muon, and every other one (biases,
norms, convolution kernels) by AdamW with its own rate. Which rule covers how many weights is logged and can be asked
for with `MuonAdamW.coverage()`.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from symlab.optim.checks import (
    check_count,
    check_fraction,
    check_not_negative,
    check_positive,
    check_rate,
    trainable_parameters,
)
from symlab.optim.coverage import Coverage

logger = logging.getLogger("symlab")


class MuonAdamW(torch.optim.Optimizer):
    """Two of torch's optimizers over one `state` and one list of `param_groups`.

    Each group carries a key `rule`, "muon" or "adamw", and that rule's options. The two optimizers inside hold the same
    group dictionaries and the same state, so state_dict, load_state_dict, deepcopy, pickling and a change of `lr` in a
    group act on this object as on any other optimizer.

    Raises ValueError for a group without a known `rule`.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {})  # calls add_param_group for each

    def _bind(self) -> None:
        by_rule: dict[str, list[dict[str, Any]]] = {"muon": [], "adamw": []}
        for group in self.param_groups:
            if group.get("rule") not in by_rule:
                raise ValueError(f"each group needs rule='muon' or rule='adamw', got {group.get('rule')!r}")
            by_rule[group["rule"]].append(group)
        self._inner: list[torch.optim.Optimizer] = []
        if by_rule["muon"]:
            self._inner.append(torch.optim.Muon(by_rule["muon"]))
        if by_rule["adamw"]:
            self._inner.append(torch.optim.AdamW(by_rule["adamw"]))
        for inner in self._inner:
            inner.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies, pickles and load_state_dict arrive here: tie the two inner optimizers to the new state."""
        super().__setstate__(state)
        self._bind()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its `rule` and that rule's options (those left out take torch's defaults)."""
        super().add_param_group(param_group)
        self._bind()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every group by its rule; returns the closure's loss, if there is a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for inner in self._inner:
            inner.step()
        return loss

    def coverage(self) -> list[Coverage]:
        """One row per tensor: its name (its place in the group, if the group has no names), rule and weights."""
        rows: list[Coverage] = []
        for group in self.param_groups:
            names = group.get("param_names", [str(index) for index in range(len(group["params"]))])
            pairs = zip(names, group["params"], strict=True)
            rows.extend(Coverage(name, group["rule"], parameter.numel()) for name, parameter in pairs)
        return rows


def muon(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    adamw_lr: float,
    momentum: float = 0.95,
    nesterov: bool = True,
    weight_decay: float = 0.0,
    newton_schulz_steps: int = 5,
    adamw_beta1: float = 0.9,
    adamw_beta2: float = 0.999,
    adamw_eps: float = 1e-8,
) -> MuonAdamW:
    """B <- momentum B + (1 - momentum) G;  W <- (1 - lr wd) W - lr sqrt(max(1, rows/columns)) NS(B)  (Jordan, 2024).

    For every 2-D parameter W: NS is the Newton-Schulz iteration towards U V^T of B = U S V^T (of (1 - momentum) G +
    momentum B with `nesterov`), in bfloat16. All other parameters: AdamW with rate `adamw_lr` (see symlab.optim.adamw).
    `weight_decay` (decoupled, default 0 where torch's Muon has 0.1) holds for both rules.

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

    trainable_parameters(model)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p.numel()]
    matrices = {"rule": "muon", "params": [(n, p) for n, p in named if p.ndim == 2], "lr": lr, "momentum": momentum}
    matrices |= {"nesterov": nesterov, "ns_steps": newton_schulz_steps, "weight_decay": weight_decay}
    others = {"rule": "adamw", "params": [(n, p) for n, p in named if p.ndim != 2], "lr": adamw_lr, "eps": adamw_eps}
    others |= {"betas": (adamw_beta1, adamw_beta2), "weight_decay": weight_decay}
    optimizer = MuonAdamW([group for group in (matrices, others) if group["params"]])
    counts = {rule: sum(row.weights for row in optimizer.coverage() if row.rule == rule) for rule in ("muon", "adamw")}
    logger.info("muon covers %d weights (2-D parameters), adamw the other %d", counts["muon"], counts["adamw"])
    return optimizer
