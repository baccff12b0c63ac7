"""Limit laws of the singular values of large random matrices: A, and I + A.

Legend: n  size;  A [n, n]  independent entries of mean 0 and variance sigma^2 / n;  s  singular values;  x = s^2
eigenvalues of the square;  g(z)  the Stieltjes transform, lim (1/n) sum_i 1 / (x_i - z).
"""

import math

import torch
from torch import Tensor

UNIFORM_SIGMA = 1 / math.sqrt(3)
"""sigma of entries uniform on (-1/sqrt n, 1/sqrt n)."""

_EDGE = 1e-7  # imaginary part of a root, relative, that rounding makes of a double real one


def quarter_circle_density(s: Tensor, sigma: float) -> Tensor:
    """Density of the singular values of A: sqrt(4 sigma^2 - s^2) / (pi sigma^2) on [0, 2 sigma] (Marchenko and Pastur,
    1967, for square matrices), of any shape.

    Raises:
        ValueError: sigma is not positive.
    """
    _check(sigma)
    s = s.double()
    inside = (s >= 0) & (s <= 2 * sigma)
    return torch.where(inside, (4 * sigma**2 - s.square()).clamp(min=0).sqrt() / (math.pi * sigma**2), 0.0)


def shifted_density(s: Tensor, sigma: float) -> Tensor:
    """Density of the singular values of I + A, 2 s Im g(s^2 + 0i) / pi, of any shape, s >= 0.

    g solves g = 1 / (1 / (1 + sigma^2 g) - (1 + sigma^2 g) z) (Dozier and Silverstein, "On the empirical distribution
    of eigenvalues of large dimensional information-plus-noise type matrices", J. Multivariate Anal. 98, 2007, for
    square matrices and the identity as information): with w = 1 + sigma^2 g a cubic,
    z w^3 - z w^2 + (sigma^2 - 1) w + 1 = 0, of whose roots one at most has a positive imaginary part.

    Raises:
        ValueError: sigma is not positive.
    """
    _check(sigma)
    x = s.double().square()
    return torch.where(s > 0, _density_of_square(torch.where(s > 0, x, 1.0), sigma) * 2 * s.double(), 0.0)


def _density_of_square(x: Tensor, sigma: float) -> Tensor:
    """Im g(x + 0i) / pi for x > 0 of any shape, from the roots of the cubic: eigenvalues of its companion matrices."""
    companion = x.new_zeros((*x.shape, 3, 3))
    companion[..., 0, 0] = 1.0
    companion[..., 0, 1] = (1 - sigma**2) / x
    companion[..., 0, 2] = -1 / x
    companion[..., 1, 0] = companion[..., 2, 1] = 1.0
    roots = torch.linalg.eigvals(companion)  # [..., 3]
    highest, size = roots.imag.max(-1).values, roots.abs().max(-1).values
    return torch.where(highest > _EDGE * size, highest, 0.0) / (math.pi * sigma**2)


def _check(sigma: float) -> None:
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma must be positive and finite, got {sigma}")


LAWS = {"a": quarter_circle_density, "i_plus_a": shifted_density}
"""Names of the laws in a config."""
