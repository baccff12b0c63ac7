"""SOAP (pytorch-optimizer's)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from symlab.optim.checks import check_count, check_fraction, check_not_negative, check_positive, check_rate
from symlab.optim.guarded import LibraryOptimizer, library, named_parameters


def soap(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    beta1: float = 0.95,
    beta2: float = 0.95,
    shampoo_beta: float | None = None,
    update_every: int = 10,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    max_precondition_dim: int = 10000,
    precondition_1d: bool = False,
) -> LibraryOptimizer:
    """Adam in the slowly turning eigenbasis of Shampoo's statistics  (Vyas et al., 2024, algorithm 3).

    For a matrix G, with L <- b L + (1 - b) G G^T, R <- b R + (1 - b) G^T G, b = `shampoo_beta` (None: `beta2`), and
    their bases Q_L, Q_R:  M <- beta1 M + (1 - beta1) G;  V <- beta2 V + (1 - beta2) (Q_L^T G Q_R)^2;
    W <- W - lr c Q_L [Q_L^T M Q_R / (sqrt(V) + eps)] Q_R^T, c = sqrt(1 - beta2^t) / (1 - beta1^t);
    then W <- (1 - lr weight_decay) W. A tensor of k dimensions has k bases; a dimension above `max_precondition_dim`
    none; a vector none but with `precondition_1d`, a scalar none: they are under Adam.

    The first call of `step` only gathers statistics and leaves the weights, as in the authors' code: t counts from the
    second. The bases are eigh's in the first call; every `update_every` updates each takes one step of power iteration
    with QR (in float32), and V is sorted with it. Statistics have the parameter's dtype.

    `lr` in (0, 100], betas in [0, 1), `update_every` and `max_precondition_dim` >= 1, `eps` > 0, `weight_decay` >= 0
    (decoupled). `inputs` is not used.

    Raises ValueError or TypeError for a number out of range, ImportError without the package pytorch-optimizer.
    """
    check_rate("lr", lr)
    for name, value in (("beta1", beta1), ("beta2", beta2), ("shampoo_beta", shampoo_beta)):
        if value is not None:
            check_fraction(name, value)
    check_count("update_every", update_every)
    check_count("max_precondition_dim", max_precondition_dim)
    check_positive("eps", eps)
    check_not_negative("weight_decay", weight_decay)
    group = {"params": named_parameters(model), "lr": lr, "betas": (beta1, beta2), "shampoo_beta": shampoo_beta}
    group |= {"precondition_frequency": update_every, "eps": eps, "weight_decay": weight_decay}
    group |= {"max_precondition_dim": max_precondition_dim, "precondition_1d": precondition_1d}
    return LibraryOptimizer([group], library("SOAP", "soap"), {}, _rule)


def _rule(p: Tensor, group: Mapping[str, Any]) -> str:
    sizes = [n for n in p.shape if n <= group["max_precondition_dim"]]
    if not sizes or (p.ndim == 1 and not group["precondition_1d"]):
        return "Adam"
    return f"Adam in the eigenbasis of {', '.join(f'{n} x {n}' for n in sizes)}"
