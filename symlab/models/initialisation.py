"""Random initial weights of layers, drawn from a given generator.

Shapes: a weight is [out, in]; fan_in = in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

Net = TypeVar("Net", bound=nn.Module)


def normal(weight: Tensor, generator: torch.Generator) -> None:
    """W ~ N(0, 1 / fan_in), independent entries (Bernacchia, ICML 2025)."""
    weight.normal_(0.0, weight.shape[1] ** -0.5, generator=generator)


def narrow_normal(weight: Tensor, generator: torch.Generator) -> None:
    """W ~ N(0, 1 / fan_in^2), independent entries: standard deviation 1 / fan_in."""
    weight.normal_(0.0, 1.0 / weight.shape[1], generator=generator)


def kaiming(weight: Tensor, generator: torch.Generator) -> None:
    """W ~ N(0, 2 / fan_in), independent entries (He et al., ICCV 2015)."""
    weight.normal_(0.0, (2.0 / weight.shape[1]) ** 0.5, generator=generator)


def orthogonal(weight: Tensor, generator: torch.Generator) -> None:
    """W uniform among matrices with orthonormal rows (out <= in) or orthonormal columns (out >= in)."""
    nn.init.orthogonal_(weight, generator=generator)


INITIALISATIONS: dict[str, Callable[[Tensor, torch.Generator], None]] = {
    "normal": normal,
    "narrow_normal": narrow_normal,
    "kaiming": kaiming,
    "orthogonal": orthogonal,
}


@torch.no_grad()
def initialise_linear(layer: nn.Linear, generator: torch.Generator, *, init: str, bias_std: float) -> None:
    """Draw the weight by the rule `init`, then the bias (if any) from N(0, bias_std^2); bias_std 0 gives
    zeros.
    """
    INITIALISATIONS[init](layer.weight, generator)
    if layer.bias is not None:
        layer.bias.normal_(0.0, 1.0, generator=generator).mul_(bias_std)


def uninitialised(make: Callable[[], Net]) -> Net:
    """The net of `make`, float32 on the CPU, with whatever is in memory: torch's own initialisation would draw from the
    global generator."""
    with torch.device("meta"):
        model = make()
    return model.to_empty(device="cpu").to(torch.float32)


@torch.no_grad()
def kaiming_layer(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    """W ~ N(0, 2 / fan_in), bias 0 (He et al., ICCV 2015)."""
    kaiming(layer.weight.flatten(1), generator)  # a view [out, fan_in]
    if layer.bias is not None:
        layer.bias.zero_()


@torch.no_grad()
def uniform_layer(layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    """W, b ~ U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), as torch's own layers: variance 1 / (3 fan_in)."""
    bound = layer.weight[0].numel() ** -0.5
    layer.weight.uniform_(-bound, bound, generator=generator)
    if layer.bias is not None:
        layer.bias.uniform_(-bound, bound, generator=generator)


LAYER_INITIALISATIONS: dict[str, Callable[[nn.Conv2d | nn.Linear, torch.Generator], None]] = {
    "kaiming": kaiming_layer,
    "uniform": uniform_layer,
}
