"""Any orthogonal projection of a weight, as a function or as a matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from symlab.constraint.factored import Factored, Projector, Split, divide

PROBES = 4


class Projection(Projector):
    """theta = P(u * w) + (I - P) v with P given: three times the parameters, as none of u, w, v knows of the others.

    `projection` is a function theta -> P theta of tensors in the weight's shape, or the matrix of P [n, n] for theta
    flattened to n entries; for O with orthonormal columns, that of the set O^T theta = 0 is O O^T. Decay a on u and w
    favours P theta = 0: at one theta it is a times the least sum of |x| over all x with P x = P theta.

    Raises ValueError, when it meets a weight, unless P is linear, symmetric and P P = P, tested on random tensors.
    """

    def __init__(self, projection: Callable[[Tensor], Tensor] | Tensor) -> None:
        self.projection = projection

    def factored(self, weight: Tensor, split: Split) -> Factored:
        matrix, function = None, None
        if isinstance(self.projection, Tensor):
            n = weight.numel()
            if self.projection.shape != (n, n):
                shapes = f"{list(self.projection.shape)}, a weight of shape {list(weight.shape)} needs {[n, n]}"
                raise ValueError(f"the matrix of the projector is {shapes}")
            matrix = self.projection.to(weight.device, weight.dtype)
        else:
            function = self.projection
        made = Projected(split, matrix, function)
        _check(made.project, weight)
        return made


class Projected(Factored):
    """theta = P(u * w) + v - P v."""

    def __init__(self, split: Split, matrix: Tensor | None, function: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.split, self.function = split, function
        self.register_buffer("matrix", matrix, persistent=False)

    def project(self, theta: Tensor) -> Tensor:
        """P theta."""
        if self.function is not None:
            return self.function(theta)
        matrix = self.get_buffer("matrix")
        return (matrix @ theta.flatten()).view(theta.shape)

    def forward(self, *parts: Tensor) -> Tensor:
        u, w, v = parts
        return self.project(u * w - v) + v

    def right_inverse(self, theta: Tensor) -> tuple[Tensor, ...]:
        """x = u * w = P theta, v = theta - P theta."""
        x = self.project(theta)
        w = self.split(x.abs())
        return divide(x, w), w, theta - x

    def collapsed(self, threshold: float, *parts: Tensor) -> Tensor:
        """Entries |u w| <= threshold are 0: P theta is then 0 to rounding if all are."""
        u, w, v = parts
        x = u * w
        return self.project(torch.where(x.abs() > threshold, x, 0.0) - v) + v


def _check(project: Callable[[Tensor], Tensor], weight: Tensor) -> None:
    """On random tensors x, y, to rounding: P(P x) = P x, <y, P x> = <P y, x>, P(x + 2 y) = P x + 2 P y."""
    generator = torch.Generator().manual_seed(0)
    tolerance = torch.finfo(weight.dtype).eps ** 0.75 * weight.numel() ** 0.5
    for _ in range(PROBES):
        x, y = (torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight) for _ in range(2))
        Px, Py = project(x), project(y)
        if Px.shape != x.shape or Px.dtype != x.dtype:
            found = f"{list(Px.shape)} {Px.dtype} from {list(x.shape)} {x.dtype}"
            raise ValueError(f"the projector must keep shape and dtype, it makes {found}")
        errors = {
            "P(P x) = P x": (project(Px) - Px).abs().max(),
            "<y, P x> = <P y, x> (symmetric: an orthogonal projector)": ((y * Px).sum() - (Py * x).sum()).abs()
            / weight.numel() ** 0.5,
            "P(x + 2 y) = P x + 2 P y": (project(x + 2 * y) - Px - 2 * Py).abs().max(),
        }
        for law, error in errors.items():
            if not float(error) <= tolerance:
                raise ValueError(f"not a projector: {law} is off by {float(error):.2g} for a weight {list(x.shape)}")
