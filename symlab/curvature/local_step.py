"""Steps that exact local curvature would take, and how another step compares with them.

Local: at the present weights of one net, not averaged over nets. Structured: projected on the commutant of the net's
symmetry, the average over the group of g C g^T: averaged over all nets that compute the same function.

Legend: P  number of weights;  g [P]  gradient;  H, C [P, P]  curvature matrices;  lambda  their eigenvalues;
s [P]  a step: the weights before minus the weights after.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from symlab.curvature.measures import cosines
from symlab.symmetry import InvariantOperator, WeightSymmetry


@dataclass(frozen=True)
class Reference:
    """The direction (|C| + eps I)^exponent g; exponent 0 is the gradient itself."""

    name: str
    curvature: str  # key of `LocalCurvature.matrices`
    exponent: float
    structured: bool = False

    def __post_init__(self) -> None:
        if not -1 <= self.exponent <= 0:
            raise ValueError(f"exponent must lie in [-1, 0], got {self.exponent}")


_EXACT = (
    Reference("hessian", "hessian", -1.0),
    Reference("ggn", "ggn", -1.0),
    Reference("ggn_root", "ggn", -0.5),
    Reference("empirical_fisher_root", "empirical_fisher", -0.5),
)
GRADIENT = Reference("gradient", "gradient", 0.0)
REFERENCES: tuple[Reference, ...] = (
    GRADIENT,
    *_EXACT,
    *(Reference(f"structured_{r.name}", r.curvature, r.exponent, structured=True) for r in _EXACT),
    Reference("structured_gradient_root", "gradient", -0.5, structured=True),
)
"""The gradient; |H|^-1 g, GGN^-1 g, GGN^-1/2 g and E^-1/2 g, E the mean of the rows' g g^T; the same with the
projections on the commutant; and P(g g^T)^-1/2 g, what SymO would take without a memory."""


@dataclass(frozen=True)
class LocalCurvature:
    """Gradient g [P] and matrices C [P, P] by name (hessian, ggn, empirical_fisher) at one point, in float64."""

    gradient: Tensor
    matrices: Mapping[str, Tensor]
    symmetry: WeightSymmetry

    @cached_property
    def spectra(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Eigenvalues [P] and eigenvectors [P, P] of each matrix."""
        return {name: torch.linalg.eigh(_symmetric(matrix)) for name, matrix in self.matrices.items()}

    @cached_property
    def operators(self) -> Mapping[str, InvariantOperator]:
        """The projection of each matrix on the commutant, and that of g g^T under the name gradient."""
        g = self.symmetry.unflatten(self.gradient[None])  # [1, *shape]
        projected = {name: self.symmetry.project_dense(_symmetric(C)) for name, C in self.matrices.items()}
        return {**projected, "gradient": self.symmetry.project(g)}

    def direction(self, reference: Reference, damping: float) -> Tensor:
        """(|C| + eps I)^exponent g [P] with eps = damping x the largest |lambda| of C (or of its projection).

        |C| has the absolute values of the eigenvalues. A matrix of zeros gives a multiple of g.

        Raises:
            ValueError: damping is not positive.
        """
        _check_damping(damping)
        if reference.exponent == 0:
            return self.gradient
        if not reference.structured:
            values, vectors = self.spectra[reference.curvature]
            powers = _powers(values, damping * float(values.abs().max()), reference.exponent)  # [P]
            return vectors @ (powers * (vectors.mT @ self.gradient))
        operator = self.operators[reference.curvature]
        eps = damping * float(operator.eigenvalues()[0].abs().max())
        root = operator.map_spectrum(lambda values: _powers(values, eps, reference.exponent))
        return self.symmetry.flatten(root.matvec(self.symmetry.unflatten(self.gradient[None])))[0]


@dataclass(frozen=True)
class QuadraticModel:
    """L(theta) - L(theta - s) to second order, from the gradient g [P] and the Hessian H [P, P]."""

    gradient: Tensor
    hessian: Tensor
    convex: Tensor  # |H| + eps I
    most: float  # g^T (|H| + eps I)^-1 g / 2

    @classmethod
    def of(cls, local: LocalCurvature, damping: float) -> "QuadraticModel":
        """eps = damping x the largest |lambda| of H.

        Raises:
            ValueError: damping is not positive.
        """
        _check_damping(damping)
        values, vectors = local.spectra["hessian"]
        shifted = _powers(values, damping * float(values.abs().max()), 1.0)  # [P]
        convex = (vectors * shifted) @ vectors.mT
        coordinates = vectors.mT @ local.gradient  # [P]
        most = float((coordinates.square() / shifted).sum()) / 2
        return cls(local.gradient, _symmetric(local.matrices["hessian"]), convex, most)

    def decrease(self, step: Tensor) -> float:
        """g.s - s^T H s / 2: what the loss should fall by; negative where it should rise."""
        return float(self.gradient @ step - step @ self.hessian @ step / 2)

    def share(self, direction: Tensor) -> float:
        """(g.d)^2 / (d^T B d  g^T B^-1 g), in [0, 1], with B = |H| + eps I; 0 where g.d < 0; nan where g or d is zero.

        The largest a g.d - a^2 d^T B d / 2 over all a > 0, as a share of the largest over all steps, g^T B^-1 g / 2:
        how good the direction is when its length is chosen well. 1 for B^-1 g alone.
        """
        slope = float(self.gradient @ direction)
        bound = 2 * float(direction @ self.convex @ direction) * self.most
        return max(slope, 0.0) ** 2 / bound if bound > 0 else math.nan


def cosine(a: Tensor, b: Tensor) -> float:
    """a.b / (|a| |b|) of two vectors [P]; nan where one is zero."""
    a, b = a / a.abs().max(), b / b.abs().max()  # so that no square is too small
    return float(cosines(a, b))


def _powers(values: Tensor, eps: float, exponent: float) -> Tensor:
    """(|lambda| + eps)^exponent, the sum kept above the smallest normal number."""
    return (values.abs() + eps).clamp(min=torch.finfo(values.dtype).tiny) ** exponent


def _symmetric(matrix: Tensor) -> Tensor:
    """Without the rounding errors that make an exact Hessian unsymmetric."""
    return (matrix + matrix.mT) / 2


def _check_damping(damping: float) -> None:
    if not 0 < damping < math.inf:
        raise ValueError(f"damping must be positive and finite, got {damping}")
