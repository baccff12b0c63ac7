"""Adam (torch's)."""

import torch
from torch import Tensor, nn

from symlab.optim.checks import (
    check_fraction,
    check_not_negative,
    check_positive,
    check_rate,
    trainable_parameters,
)


def adam(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """w <- w - lr * m / (sqrt(v) + eps)  (Kingma and Ba, 2015, algorithm 1).

    m and v are the moving averages of g and g^2 with weights `beta1` and `beta2`, divided by 1 - beta^t.
    `lr` in (0, 100], betas in [0, 1), `eps` > 0, `weight_decay` >= 0 (coupled: weight_decay * w is added
    to g). `inputs` is not used.

    Raises ValueError or TypeError for a number out of range.
    """
    check_rate("lr", lr)
    check_fraction("beta1", beta1)
    check_fraction("beta2", beta2)
    check_positive("eps", eps)
    check_not_negative("weight_decay", weight_decay)
    parameters = trainable_parameters(model)
    return torch.optim.Adam(parameters, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
