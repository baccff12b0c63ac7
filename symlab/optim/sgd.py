"""Stochastic gradient descent with momentum (torch's)."""

import torch
from torch import Tensor, nn

from symlab.optim.checks import check_fraction, check_not_negative, check_rate, trainable_parameters


def sgd(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """m <- momentum * m + (g + weight_decay * w);  w <- w - lr * m  (Sutskever et al., 2013, in torch's convention).

    With `nesterov`, w <- w - lr * (g + weight_decay * w + momentum * m). `lr` in (0, 100], `momentum` in [0, 1),
    `weight_decay` >= 0 (coupled: added to the gradient). `inputs` is not used.

    Raises ValueError or TypeError for a number out of range, and for `nesterov` without momentum.
    """
    check_rate("lr", lr)
    check_fraction("momentum", momentum)
    check_not_negative("weight_decay", weight_decay)
    if nesterov and momentum == 0:
        raise ValueError("nesterov=true needs momentum > 0, got momentum=0")
    parameters = trainable_parameters(model)
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
