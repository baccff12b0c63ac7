"""Extreme eigenvalues and spectral density of a symmetric operator that is known by its products with vectors.

Sources: Lanczos (1950) with full reorthogonalisation (Paige, 1972; Parlett, "The symmetric eigenvalue problem", 1980);
stochastic Lanczos quadrature: Ubaru, Chen and Saad, "Fast estimation of tr(f(A)) via stochastic Lanczos quadrature"
(SIAM J. Matrix Anal. Appl. 38, 2017).

Legend: A [n, n]  operator;  K  steps;  V [K, n]  orthonormal basis;  T = V A V^T [K, K]  tridiagonal, diagonal a,
off-diagonal b;  theta, s_j  eigenvalues (Ritz values) and eigenvectors of T;  R  probes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Matvec = Callable[[Tensor], Tensor]
"""x [n] -> A x [n]."""

CHECK_EVERY = 5
"""Steps between two looks at the convergence."""


@dataclass(frozen=True)
class Extremes:
    """Smallest and largest eigenvalue found; within each error of it there is an eigenvalue of A. `steps` products."""

    smallest: float
    largest: float
    smallest_error: float
    largest_error: float
    steps: int


@dataclass(frozen=True)
class SpectralDensity:
    """(1/n) sum_i delta(x - lambda_i), as the mean over probes r of sum_k weights[r, k] delta(x - nodes[r, k]).

    `nodes`, `weights` [R, K] float64 on the CPU; weights of a probe sum to 1; an unused entry has weight 0.
    """

    nodes: Tensor
    weights: Tensor

    def mean(self, function: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        """tr f(A) / n and its standard error over the probes (the quadrature's own error is not in it)."""
        values = torch.where(self.weights > 0, function(self.nodes) * self.weights, 0.0).sum(1)  # [R]
        return _mean_and_error(values)

    def below(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Share of the eigenvalues <= each level [L]: mean over the probes, and its standard error, both [L]."""
        reached = self.nodes[:, :, None] <= levels.to(self.nodes)  # [R, K, L]
        shares = (self.weights[:, :, None] * reached).sum(1)  # [R, L]
        return shares.mean(0), shares.std(0) / math.sqrt(len(shares))


class UnsymmetricError(ValueError):
    """The products of an operator are those of no symmetric one, to rounding in proportion to the largest seen."""


def extreme_eigenvalues(
    matvec: Matvec,
    size: int,
    *,
    generator: torch.Generator,
    steps: int = 100,
    tolerance: float = 1e-6,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Extremes:
    """min and max theta of T_K, K <= `steps`, from one random start vector of `generator`.

    Error bound of a Ritz value: b_K |s_K|, the norm of its residual, plus 10 eps max|theta| for rounding: an
    eigenvalue of A lies so near. All Ritz values lie between the extremes, so `largest` is never too large by more than
    rounding, `smallest` never too small. Ends when both errors are below `tolerance` x max|theta|, or when the Krylov
    space is exhausted (few distinct eigenvalues): then both are exact. Holds K vectors of `size` numbers of `dtype` on
    `device`.

    Raises:
        ValueError: size or steps below 1, a tolerance that is not positive, a product of another shape, and an operator
            that is not symmetric.
        FloatingPointError: a product with a number that is not finite.
    """
    _check(size, steps)
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    recurrence = _Recurrence(matvec, _unit_vector(size, generator, dtype, device), min(steps, size))
    while True:
        recurrence.advance()
        if recurrence.done or recurrence.count % CHECK_EVERY == 0:
            found = recurrence.extremes()
            scale = max(abs(found.smallest), abs(found.largest))
            if recurrence.done or max(found.smallest_error, found.largest_error) <= tolerance * scale:
                return found


def spectral_density(
    matvec: Matvec,
    size: int,
    *,
    probes: int = 10,
    steps: int = 60,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> SpectralDensity:
    """For each of `probes` random unit vectors the Gauss quadrature of z^T f(A) z: nodes theta, weights (s_j)_1^2.

    E z^T f(A) z = tr f(A) / n, exact for polynomials f of degree below 2 `steps`. The standard errors of the result are
    over probes. Holds `steps` vectors of `size` numbers at a time.

    Raises:
        ValueError, FloatingPointError: as `extreme_eigenvalues`, and for fewer than 2 probes, which have no spread.
    """
    _check(size, steps)
    if not probes >= 2:
        raise ValueError(f"probes must be at least 2, to have an error, got {probes}")
    steps = min(steps, size)
    nodes, weights = torch.zeros(probes, steps, dtype=torch.float64), torch.zeros(probes, steps, dtype=torch.float64)
    for r in range(probes):
        recurrence = _Recurrence(matvec, _unit_vector(size, generator, dtype, device), steps)
        while not recurrence.done:
            recurrence.advance()
        values, vectors = torch.linalg.eigh(recurrence.tridiagonal())  # [K], [K, K]
        nodes[r, : len(values)] = values
        weights[r, : len(values)] = vectors[0].square()
    return SpectralDensity(nodes, weights)


class _Recurrence:
    """A v_k = b_{k-1} v_{k-1} + a_k v_k + b_k v_{k+1}, every new vector orthogonalised against all before it, twice."""

    def __init__(self, matvec: Matvec, start: Tensor, steps: int) -> None:
        self.matvec, self.steps = matvec, steps
        self.basis = start.new_zeros(steps, len(start))  # [steps, n]
        self.basis[0] = start
        self.a: list[float] = []
        self.b: list[float] = []  # b[k] couples vectors k and k + 1; the last one is the residual's norm
        self.eps = torch.finfo(start.dtype).eps
        self.exhausted = False

    @property
    def count(self) -> int:
        return len(self.a)

    @property
    def done(self) -> bool:
        return self.exhausted or self.count == self.steps

    def advance(self) -> None:
        """One product with A."""
        k, known = self.count, self.basis[: self.count + 1]  # [k + 1, n]
        product = self._product(self.basis[k])  # [n]
        coefficients = known @ product  # [k + 1]
        self._check_symmetry(coefficients.tolist(), float(product.norm()))
        self.a.append(float(coefficients[k]))
        rest = product - known.mT @ coefficients
        rest = rest - known.mT @ (known @ rest)
        norm = float(rest.norm())
        self.exhausted = k + 1 == len(product) or norm <= 10 * self.eps * math.sqrt(len(product)) * self.scale
        self.b.append(0.0 if k + 1 == len(product) else norm)
        if not self.done:
            self.basis[k + 1] = rest / norm

    @property
    def scale(self) -> float:
        """A lower bound of the operator's norm."""
        return max(map(abs, [*self.a, *self.b]), default=0.0)

    def tridiagonal(self) -> Tensor:
        """T [K, K], float64 on the CPU."""
        T = torch.diag(torch.tensor(self.a, dtype=torch.float64))
        off = torch.tensor(self.b[: self.count - 1], dtype=torch.float64)
        return T + torch.diag(off, 1) + torch.diag(off, -1)

    def extremes(self) -> Extremes:
        values, vectors = torch.linalg.eigh(self.tridiagonal())
        rounding = 10 * self.eps * float(values.abs().max())
        errors = (self.b[-1] * vectors[-1].abs() + rounding).tolist()  # [K]
        return Extremes(float(values[0]), float(values[-1]), errors[0], errors[-1], self.count)

    def _product(self, vector: Tensor) -> Tensor:
        product = self.matvec(vector).detach()
        if product.shape != vector.shape:
            raise ValueError(f"the operator turns shape {list(vector.shape)} into {list(product.shape)}, not the same")
        if not bool(product.isfinite().all()):
            raise FloatingPointError(f"product {self.count + 1} with the operator is not finite")
        return product.to(vector)

    def _check_symmetry(self, coefficients: list[float], norm: float) -> None:
        """v_j . A v_k is b_{k-1} for j = k - 1 and 0 for j < k - 1."""
        k = self.count
        wanted = [0.0] * (k - 1) + self.b[-1:] if k else []
        worst = max((abs(own - b) for own, b in zip(coefficients, wanted, strict=False)), default=0.0)
        if worst > math.sqrt(self.eps) * max(self.scale, norm):
            raise UnsymmetricError(
                f"the operator is not symmetric: entries of V A V^T differ by {worst:.3g} across its diagonal"
            )


def _unit_vector(size: int, generator: torch.Generator, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Uniform on the sphere, drawn in float64 where the generator is, so that every device has the same."""
    vector = torch.randn(size, generator=generator, dtype=torch.float64, device=generator.device)
    return (vector / vector.norm()).to(device, dtype)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


def _check(size: int, steps: int) -> None:
    for name, value in (("size", size), ("steps", steps)):
        if not value >= 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
