"""Shampoo as published: accumulated statistics of every dimension, exponent -1/(2k).

Legend: W [n_1, ..., n_k]  a parameter, G its gradient;  G_(d) [n_d, N / n_d]  G unfolded along dimension d;
L_d [n_d, n_d]  statistics of dimension d;  x_d  product along dimension d;  t  number of the update, from 1.
"""

from collections.abc import Mapping, Sequence
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
from symlab.symmetry.spectrum import batched_eigh


class Shampoo(Guarded):
    """L_d <- L_d + G_(d) G_(d)^T;  U = G x_1 L_1^(-1/2k) ... x_k L_k^(-1/2k);  B <- momentum B + U;  W <- W - lr B.

    Gupta, Koren and Singer (2018), algorithms 1 and 2, momentum on the update as in heavy-ball. L_d starts as `eps`
    times the identity and is never forgotten. Roots are renewed at updates 1, 1 + update_every, ... Weight decay is
    decoupled: W <- (1 - lr weight_decay) W first. A 0-d parameter has no dimension: U = G.

    Groups are `{"params": [(name, parameter), ...], "lr": ..., "momentum": ..., "eps": ..., "update_every": ...,
    "weight_decay": ...}`. Statistics are float64: in float32 those of an ill-conditioned linear problem lose the small
    directions, and the loss after 100 steps doubles. Eigenvalues are floored at `eps` and at n_d x machine epsilon of
    the largest.
    """

    def _bind(self) -> None:
        """There is nothing inside."""

    def _update(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step_parameter(p, p.grad, group)

    def _step_parameter(self, p: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[p]
        g = gradient.to(torch.float64 if p.dtype is torch.float64 else torch.float32)
        if "step" not in state:
            state["step"] = 0
            state["statistics"] = [group["eps"] * torch.eye(n, dtype=torch.float64, device=g.device) for n in g.shape]
        for d, statistics in enumerate(state["statistics"]):
            unfolded = g.movedim(d, 0).reshape(g.shape[d], -1).double()  # [n_d, N / n_d]
            statistics.addmm_(unfolded, unfolded.T)
        if state["step"] % group["update_every"] == 0:
            roots = inverse_roots(state["statistics"], 2 * g.ndim, group["eps"])
            state["roots"] = [root.to(g.dtype) for root in roots]
        state["step"] += 1
        update = g
        for root in state["roots"]:
            update = torch.tensordot(update, root, dims=([0], [0]))  # its first dimension goes to the end
        if group["momentum"]:
            buffer = state.setdefault("momentum_buffer", torch.zeros_like(update))
            update = buffer.mul_(group["momentum"]).add_(update)
        if group["weight_decay"]:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(update.to(p.dtype), alpha=-group["lr"])

    def coverage(self) -> list[Coverage]:
        """One row per tensor: its statistics, and its number of weights."""
        rows = []
        for name, p, _ in named(self.param_groups):
            sizes = ", ".join(f"{n} x {n}" for n in p.shape)
            rows.append(Coverage(name, f"statistics of {sizes}" if sizes else "gradient descent", p.numel()))
        return rows


def inverse_roots(statistics: Sequence[Tensor], order: int, eps: float) -> list[Tensor]:
    """L^(-1/order) [n, n] of every L [n, n], its eigenvalues floored as in `Shampoo`."""
    roots = []
    for values, vectors in batched_eigh(statistics):
        floor = max(eps, float(values[-1]) * len(values) * torch.finfo(values.dtype).eps)
        roots.append((vectors * values.clamp(min=floor).pow(-1 / order)) @ vectors.T)
    return roots


def shampoo(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    momentum: float = 0.0,
    eps: float = 1e-6,
    update_every: int = 1,
    weight_decay: float = 0.0,
) -> Shampoo:
    """W <- W - lr L^(-1/4) G R^(-1/4), L <- L + G G^T, R <- R + G^T G  (Gupta et al., 2018), for matrices.

    For all trainable parameters; a tensor of k dimensions has k statistics and exponent -1/(2k) (see `Shampoo`).
    `lr` in (0, 100], `momentum` in [0, 1), `eps` > 0 (initial value of the statistics), `update_every` >= 1,
    `weight_decay` >= 0 (decoupled). `inputs` is not used.

    A renewal costs one eigh of each L_d, in float64 about 1 ms for n_d = 140 and 45 ms for 512 on one thread; with
    `update_every` the other updates are spared it.

    Without momentum it is pytorch-optimizer's `Shampoo`, which is not used: its eigenvectors come from an SVD, several
    times as dear as eigh; with roots every k-th step it does not move before step k; its momentum mixes the last
    update into the gradient, and changes `.grad`.

    Raises ValueError or TypeError for a number out of range.
    """
    check_rate("lr", lr)
    check_fraction("momentum", momentum)
    check_positive("eps", eps)
    check_count("update_every", update_every)
    check_not_negative("weight_decay", weight_decay)
    group = {"params": named_parameters(model), "lr": lr, "momentum": momentum, "eps": eps}
    return Shampoo([group | {"update_every": update_every, "weight_decay": weight_decay}], {})
