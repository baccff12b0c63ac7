"""A running average of the weights, which is evaluated in the place of the weights themselves."""

import copy

import torch
from torch import Tensor, nn


class WeightAverage:
    """e_t = d e_{t-1} + (1 - d) w_t after every update, e_0 = w_0 (Polyak and Juditsky, 1992; exponential form).

    Floating-point buffers, the running statistics of batch norm, are averaged in the same way; other buffers are
    copied. `model` holds the averages.

    Raises ValueError unless 0 <= decay < 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"ema must be at least 0 and below 1 (a decay such as 0.999), or null, got {decay}")
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def take(self, model: nn.Module) -> None:
        """One update of the averages from the weights and buffers of `model`."""
        averages, values = [], []
        for average, value in zip(_tensors(self.model), _tensors(model), strict=True):
            if average.is_floating_point():
                averages.append(average)
                values.append(value)
            else:
                average.copy_(value)
        torch._foreach_lerp_(averages, values, 1 - self.decay)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*(parameter.detach() for parameter in model.parameters()), *model.buffers()]
