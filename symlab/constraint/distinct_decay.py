"""Weight decay with a strength of its own for every weight, so that no exchange of weights leaves it unchanged.

Legend: theta  weights that the model computes with;  phi = d theta  what the optimizer moves;  d  fixed, near 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from symlab.constraint.patterns import Where
from symlab.constraint.remove_symmetry import attach, refuse_second
from symlab.constraint.trainable_tensors import choose_weights


class Divided(nn.Module):
    """phi -> phi / divisor, the divisor a buffer."""

    def __init__(self, divisor: Tensor) -> None:
        super().__init__()
        self.register_buffer("divisor", divisor)
        self.divisor: Tensor

    def forward(self, phi: Tensor) -> Tensor:
        return phi / self.divisor

    def right_inverse(self, theta: Tensor) -> Tensor:
        """theta -> theta x divisor."""
        return theta * self.divisor


def distinct_decay(
    model: nn.Module,
    spread: float = 0.01,
    *,
    where: Where = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """min over phi of l(phi / d) + gamma ||phi||^2, which is min over theta of l(theta) + gamma sum (d_i theta_i)^2.

    d_i ~ U(1 - spread, 1 + spread), drawn once and kept. Source: the variant of syre for families of symmetries that
    are not countable, such as rotations (Ziyin, Xu and Chuang, ICLR 2025): theta_0 and a diagonal D in the decay. That
    whole variant is `distinct_decay(remove_symmetry(model))`: theta = phi / d + theta_0. Alone it removes exchanges and
    rotations, but not signs, which leave (d_i theta_i)^2 unchanged, nor the point theta = 0 of every mirror.

    In place, as a torch parametrization, like `remove_symmetry`: see there for names, buffers, tied weights, `where`
    and `generator`. What the model computes stays the same to rounding; `restore_symmetry` gives the plain model back.

    Plain weight decay on phi is the decay above. The optimizer moves phi, so the learning rate of theta_i is lr / d_i^2
    under gradient descent: about lr (1 +- 2 spread) for a small spread. Minima are those of the objective; paths differ
    by as much. Under decoupled decay (AdamW) all theta_i shrink alike, and only their steps, divided by d_i, differ.

    spread: in (0, 1); larger removes more and distorts more. In float32 some of very many d_i are equal.

    Raises ValueError for a spread out of range, a weight that has such a divisor already, and for what `choose_weights`
    refuses; the model is then as before.
    """
    if isinstance(spread, bool) or not 0 < spread < 1:
        raise ValueError(f"spread must lie between 0 and 1, both excluded, got {spread}")
    chosen = choose_weights(model, where)
    for weight in chosen:
        refuse_second(model, weight, Divided)
    device = torch.device("cpu") if generator is None else generator.device
    divisors = []
    for weight in chosen:
        p = weight.parameter
        uniform = torch.rand(p.shape, generator=generator, device=device)
        divisors.append((1 + spread * (2 * uniform - 1)).to(p.device, p.dtype))
    for weight, divisor in zip(chosen, divisors, strict=True):
        attach(weight, Divided(divisor))
    return model
