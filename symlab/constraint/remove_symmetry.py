"""Training without symmetry traps: a fixed random shift of the weights, towards which ordinary weight decay pulls.

Legend: theta  weights that the model computes with;  phi = theta - theta_0  what the optimizer moves;  theta_0  shift.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from symlab.constraint.patterns import Where
from symlab.constraint.trainable_tensors import ChosenWeight, choose_weights
from symlab.symmetry.parametrized import own_class, parametrizations_of

Scale = Callable[[Tensor], float]
"""A weight -> the number that sigma is multiplied by, for all entries of its shift."""


class Shift(nn.Module):
    """phi -> phi + shift, the shift a buffer."""

    def __init__(self, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("shift", shift)
        self.shift: Tensor

    def forward(self, phi: Tensor) -> Tensor:
        return phi + self.shift

    def right_inverse(self, theta: Tensor) -> Tensor:
        """theta -> theta - shift."""
        return theta - self.shift


def by_fan_in(weight: Tensor) -> float:
    """1/sqrt(d), d the number of inputs of one output: the entries of weight[0]; 1 for vectors and numbers."""
    return weight[0].numel() ** -0.5 if weight.ndim > 1 else 1.0


def absolute(weight: Tensor) -> float:
    """1."""
    return 1.0


def remove_symmetry(
    model: nn.Module,
    sigma: float = 0.01,
    *,
    scale: Scale = by_fan_in,
    where: Where = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """min over phi of l(phi + theta_0) + gamma ||phi||^2, theta_0 ~ N(0, (sigma scale)^2) drawn once and kept.

    Source: Ziyin, Xu and Chuang, "Remove symmetries to control model expressivity and improve optimization" (ICLR
    2025), syre. A symmetry of l and of ||theta||^2 (equal or dead neurons, u = w = 0 of a product u w) pulls weights
    onto its mirror, where the gradient off it is zero. Here l keeps a mirror, but it lies at O^T phi = -O^T theta_0,
    while that of the decay lies at O^T phi = 0: their sum has neither.

    Changes the model in place and returns it: `optimizer(remove_symmetry(model).parameters(), weight_decay=...)` is
    all. Each weight becomes a torch parametrization theta = phi + theta_0 whose phi is the same nn.Parameter object,
    named `....parametrizations.weight.original`, with theta_0 a buffer beside it: saved in the state_dict, moved by
    `.to`, stacked by functional_call and vmap. Without weight decay it changes nothing but rounding: gradient descent
    on phi is that on theta. `restore_symmetry` gives the plain model back.

    The model computes after the call what it did before it (phi starts at theta - theta_0, to rounding): a net that is
    trained already stays what it is, and arms with and without shift start at the same function. The paper shifts the
    start as well; that is smaller than the start itself by a factor 1/sigma.

    Args:
        model: any module; before an optimizer, a compiled form or DistributedDataParallel is made of it.
        sigma: > 0; the paper's 0.01.
        scale: what sigma is multiplied by. `by_fan_in` (the default) is the paper's sigma_0 = 0.01/sqrt(d), with d read
            as the inputs of one unit, so that theta_0 is 1 % of a usual random start in every layer; biases and other
            vectors have d = 1. `absolute`: the same for all. Any function of the weight will do.
        where: patterns of names of `named_parameters()`; None: all trainable weights, of norms too. Frozen ones stay.
        generator: of theta_0, drawn in float32 on its device, one tensor after the other in the model's order; None:
            torch's global one.

    A tied weight keeps one phi and one shift. A weight that has a parametrization already (a product u * w) is shifted
    before it: u and w get shifts of their own.

    Raises ValueError or TypeError for a sigma or scale that is not positive and finite, a weight that has a shift
    already, and for what `choose_weights` refuses; the model is then as before.
    """
    if isinstance(sigma, bool) or not (sigma > 0 and math.isfinite(sigma)):
        raise ValueError(f"sigma must be positive and finite, got {sigma}")
    chosen = choose_weights(model, where)
    for weight in chosen:
        refuse_second(model, weight, Shift)
    shifts = [drawn(weight, sigma * _checked(scale(weight.parameter), weight), generator) for weight in chosen]
    for weight, shift in zip(chosen, shifts, strict=True):
        attach(weight, Shift(shift))
    return model


def drawn(weight: ChosenWeight, std: float, generator: torch.Generator | None) -> Tensor:
    """N(0, std^2) of the weight's shape, dtype and device, the same on every device and in every dtype."""
    device = torch.device("cpu") if generator is None else generator.device
    p = weight.parameter
    return (std * torch.randn(p.shape, generator=generator, device=device)).to(p.device, p.dtype)


def refuse_second(model: nn.Module, weight: ChosenWeight, kind: type[nn.Module]) -> None:
    """Raises ValueError for a parameter that is behind a parametrization `kind` already, at any depth."""
    path = weight.name.split(".")
    for depth in range(len(path)):
        module = model.get_submodule(".".join(path[:depth]))
        if not isinstance(module, parametrize.ParametrizationList):
            continue
        if any(isinstance(one, kind) for one in parametrizations_of(module)):
            raise ValueError(f"{weight.name} has a {kind.__name__.lower()} already: call restore_symmetry first")


@torch.no_grad()
def attach(weight: ChosenWeight, parametrization: nn.Module) -> None:
    """Put one parametrization between a parameter and all its places, which keep their value and stay tied."""
    value = weight.parameter.clone()
    for module, key in weight.places:
        weight.parameter.copy_(value)  # the earlier place has turned it into phi
        own_class(module)
        parametrize.register_parametrization(module, key, parametrization)


def _checked(scale: float, weight: ChosenWeight) -> float:
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"the scale of {weight.name} must be positive and finite, got {scale}")
    return scale
