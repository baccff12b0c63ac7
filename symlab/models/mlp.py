"""Multi-layer perceptron.

Shapes: B rows, d = product of input_shape, C = output_size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from symlab.models.activations import activation_module
from symlab.models.initialisation import INITIALISATIONS, initialise_linear, uninitialised
from symlab.models.sizes import checked_width


class MLP(nn.Module):
    """f(x) = W_L phi(W_{L-1} ... phi(W_1 x + b_1) ... + b_{L-1}) + b_L, inputs flattened to [B, d] first.

    Linear layer number i (from 0) has the parameters `layers.{2 i}.weight` [out, in] and `layers.{2
    i}.bias` [out]; the activations are `layers.1`, `layers.3`, ...
    """

    def __init__(self, sizes: Sequence[int], activation: str, bias: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out, bias=bias), activation_module(activation)]
        self.flatten = nn.Flatten()
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(self.flatten(inputs))  # [B, C]


def mlp(
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    *,
    hidden: Sequence[int] = (70,),
    activation: str = "tanh",
    bias: bool = False,
    init: str = "normal",
    bias_std: float = 0.0,
) -> nn.Module:
    """An `MLP` with widths d, *hidden, output_size, in float32 on the CPU, all its weights drawn from
    `generator`.

    `init`: normal, W ~ N(0, 1 / fan_in); narrow_normal, N(0, 1 / fan_in^2); kaiming, N(0, 2 / fan_in);
    orthogonal. Biases are N(0, bias_std^2), zero for bias_std 0. `hidden` may be empty: then the model is
    linear.

    Raises ValueError or TypeError for a width below 1, an unknown activation or init, a bias_std that is
    negative, not finite, or given although there are no biases.
    """
    sizes = [math.prod(input_shape), *(checked_width("hidden", width) for width in hidden), output_size]
    checked_width("input_shape", sizes[0])
    checked_width("output_size", output_size)
    if init not in INITIALISATIONS:
        raise ValueError(f"init must be one of {', '.join(INITIALISATIONS)}, got {init!r}")
    if not 0 <= bias_std < math.inf:
        raise ValueError(f"bias_std must be finite and at least 0, got {bias_std}")
    if bias_std > 0 and not bias:
        raise ValueError(f"bias_std must be 0 for a model without biases (bias=false), got {bias_std}")
    activation_module(activation)
    model = uninitialised(lambda: MLP(sizes, activation, bias))
    for layer in model.layers:
        if isinstance(layer, nn.Linear):
            initialise_linear(layer, generator, init=init, bias_std=bias_std)
    return model
