"""Gradient descent: the rate and nothing else."""

import torch
from torch import Tensor, nn

from symlab.optim.checks import check_rate, trainable_parameters


def gd(model: nn.Module, inputs: Tensor, *, lr: float) -> torch.optim.Optimizer:
    """w <- w - lr * g (Cauchy, 1847), with g the gradient of the batch loss; with `batch_size=null` the full gradient.

    `lr` in (0, 100]. `inputs` is not used.

    Raises ValueError or TypeError for an `lr` out of range.
    """
    check_rate("lr", lr)
    return torch.optim.SGD(trainable_parameters(model), lr=lr)
