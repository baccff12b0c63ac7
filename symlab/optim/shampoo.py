"""Shampoo (pytorch-optimizer's)."""

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


def shampoo(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    momentum: float = 0.0,
    eps: float = 1e-6,
    update_every: int = 1,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """W <- W - lr * L^(-1/4) G R^(-1/4), L <- L + G G^T, R <- R + G^T G  (Gupta et al., 2018, algorithm 1).

    L and R start as `eps` times the identity and are never forgotten; a tensor of k dimensions has k of them, with
    exponent -1/(2k). Roots are renewed every `update_every` steps. `lr` in (0, 100], `momentum` in [0, 1), `eps` > 0,
    `weight_decay` >= 0 (coupled). `inputs` is not used.

    Raises ValueError or TypeError for a number out of range, ImportError without the package pytorch-optimizer.
    """
    check_rate("lr", lr)
    check_fraction("momentum", momentum)
    check_positive("eps", eps)
    check_count("update_every", update_every)
    check_not_negative("weight_decay", weight_decay)
    try:
        from pytorch_optimizer import Shampoo
    except ImportError as error:
        raise ImportError("optimizer shampoo needs pytorch-optimizer: pip install 'symlab[baselines]'") from error
    return Shampoo(
        trainable_parameters(model),
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        preconditioning_compute_steps=update_every,
        matrix_eps=eps,
    )
