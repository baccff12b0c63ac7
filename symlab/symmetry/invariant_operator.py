"""Matrices on weight space that commute with a symmetry, kept as their blocks.

Legend: P  number of weights;  S  number of samples;  k  block;  M_k [m_k, m_k]  its matrix;  D_k  its multiplicity.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from symlab.symmetry.spectrum import batched_eigh

if TYPE_CHECKING:
    from symlab.symmetry.weight_symmetry import WeightSymmetry


class InvariantOperator:
    """Sigma = direct sum over k of M_k (x) I_{D_k}, acting on a network's weights. Only `dense` forms a P x P matrix.

    Args:
        symmetry: the `WeightSymmetry` that it commutes with.
        matrices: M_k [m_k, m_k], one per block, in the order of `symmetry.blocks`.

    Raises:
        ValueError: number or shapes of the matrices do not fit the blocks.
    """

    def __init__(self, symmetry: "WeightSymmetry", matrices: Sequence[Tensor]) -> None:
        if len(matrices) != len(symmetry.blocks):
            raise ValueError(f"the symmetry has {len(symmetry.blocks)} blocks, got {len(matrices)} matrices")
        for block, matrix in zip(symmetry.blocks, matrices, strict=True):
            if matrix.shape != (block.copies, block.copies):
                raise ValueError(f"block {block} got a matrix {list(matrix.shape)}")
        self.symmetry = symmetry
        self.matrices: tuple[Tensor, ...] = tuple(matrices)

    def matvec(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sigma v for v given as tensors [*shape] or, many at once, [S, *shape]; the result has the same shapes."""
        batch = self.symmetry.with_sample_dimension(tensors)
        products = [m @ rows for m, rows in zip(self.matrices, self.symmetry.split(batch), strict=True)]
        merged = self.symmetry.merge(products)
        return {name: x if tensors[name].ndim == x.ndim else x[0] for name, x in merged.items()}

    def dense(self) -> Tensor:
        """Sigma as a matrix [P, P], in the order of `symmetry.axes`, row-major: for tests and small nets."""
        eye = torch.eye(self.symmetry.num_parameters).to(self.matrices[0])
        return self.symmetry.flatten(self.matvec(self.symmetry.unflatten(eye))).mT

    def map_spectrum(self, fn: Callable[[Tensor], Tensor]) -> "InvariantOperator":
        """f(Sigma) = Q f(lambda) Q^T: `fn` maps all eigenvalues of one block, [m_k] ascending, to as many numbers.

        Raises:
            ValueError: Sigma is not symmetric.
            FloatingPointError: Sigma holds NaN or inf.
        """
        self._require_symmetric()
        return InvariantOperator(self.symmetry, [q @ (fn(w)[:, None] * q.mT) for w, q in batched_eigh(self.matrices)])

    def inverse(self, damping: float = 0.0, cutoff: float = 0.0) -> "InvariantOperator":
        """(Sigma + damping I)^{-1}; see `power`."""
        return self.power(-1.0, damping, cutoff)

    def inverse_sqrt(self, damping: float = 0.0, cutoff: float = 0.0) -> "InvariantOperator":
        """(Sigma + damping I)^{-1/2}; see `power`."""
        return self.power(-0.5, damping, cutoff)

    def power(self, exponent: float, damping: float = 0.0, cutoff: float = 0.0) -> "InvariantOperator":
        """(Sigma + damping I)^exponent.

        Args:
            exponent: any real number.
            damping: >= 0, absolute, in the units of Sigma.
            cutoff: in [0, 1): eigenvalues of Sigma + damping I at or below cutoff x the largest one of Sigma's own are
                mapped to zero (the pseudo-inverse, for a negative exponent).

        Raises:
            ValueError: damping or cutoff out of range; an eigenvalue above the cut-off is zero up to rounding (negative
                exponent) or clearly negative (fractional exponent).
        """
        if not damping >= 0:
            raise ValueError(f"damping must be at least 0, got {damping}")
        if not 0 <= cutoff < 1:
            raise ValueError(f"cutoff must lie in [0, 1), got {cutoff}")
        eigenvalues, _ = self.eigenvalues()
        largest = float(eigenvalues.max())
        rounding = len(eigenvalues) * torch.finfo(eigenvalues.dtype).eps * largest if not cutoff else 0.0

        def power_of(values: Tensor) -> Tensor:
            shifted = values + damping  # [m]
            kept = shifted > cutoff * largest if cutoff else torch.ones_like(shifted, dtype=torch.bool)
            lowest = float(shifted[kept].min()) if bool(kept.any()) else 0.0
            if exponent < 0 and bool(kept.any()) and not lowest > rounding:
                raise ValueError(
                    f"smallest eigenvalue is {lowest:.3g}, the largest {largest:.3g}: give a positive damping or cutoff"
                )
            if exponent % 1 and lowest < -1e-6 * largest:
                raise ValueError(f"smallest eigenvalue is {lowest:.3g}: a fractional power needs them non-negative")
            base = shifted.clamp(min=max(lowest, 0.0)) if exponent % 1 or exponent < 0 else shifted
            return torch.where(kept, base**exponent, 0.0)

        return self.map_spectrum(power_of)

    def eigenvalues(self) -> tuple[Tensor, Tensor]:
        """The distinct-by-structure eigenvalues [sum m_k], descending, and the multiplicity D_k of each (int64).

        Raises:
            ValueError: Sigma is not symmetric.
            FloatingPointError: Sigma holds NaN or inf.
        """
        self._require_symmetric()
        values = torch.cat([w for w, _ in batched_eigh(self.matrices)])  # [sum m_k]
        times = torch.cat([torch.full((b.copies,), b.dimension) for b in self.symmetry.blocks]).to(values.device)
        order = values.argsort(descending=True)
        return values[order], times[order]

    def trace(self) -> Tensor:
        """tr Sigma = sum over k of D_k tr M_k, 0-d."""
        return torch.stack([b.dimension * m.trace() for b, m in self._blocks()]).sum()

    def inner(self, other: "InvariantOperator") -> Tensor:
        """tr(A^T B) = sum over k of D_k tr(A_k^T B_k), 0-d: the scalar product behind the Frobenius norm."""
        self._require_same(other)
        products = [b.dimension * (m * n).sum() for (b, m), n in zip(self._blocks(), other.matrices, strict=True)]
        return torch.stack(products).sum()

    def frobenius_norm(self) -> Tensor:
        """sqrt(tr(Sigma^T Sigma)), 0-d."""
        return self.inner(self).sqrt()

    @property
    def is_symmetric(self) -> bool:
        """Whether every M_k equals its transpose, within 1e-5 (float32) or 1e-10 (float64) of its largest entry."""
        return all(bool((m - m.mT).abs().max() <= _tolerance(m) * m.abs().max()) for m in self.matrices)

    def __add__(self, other: "InvariantOperator") -> "InvariantOperator":
        self._require_same(other)
        return InvariantOperator(self.symmetry, [m + n for m, n in zip(self.matrices, other.matrices, strict=True)])

    def __sub__(self, other: "InvariantOperator") -> "InvariantOperator":
        return self + (-1.0) * other

    def __mul__(self, scalar: float) -> "InvariantOperator":
        return InvariantOperator(self.symmetry, [scalar * m for m in self.matrices])

    __rmul__ = __mul__

    def __matmul__(self, other: "InvariantOperator") -> "InvariantOperator":
        """A B, with blocks A_k B_k: symmetric only if A and B commute (see `is_symmetric`)."""
        self._require_same(other)
        return InvariantOperator(self.symmetry, [m @ n for m, n in zip(self.matrices, other.matrices, strict=True)])

    def _blocks(self) -> list:
        return list(zip(self.symmetry.blocks, self.matrices, strict=True))

    def _require_symmetric(self) -> None:
        if not all(bool(m.isfinite().all()) for m in self.matrices):
            raise FloatingPointError("the operator holds NaN or inf: it has no spectrum")
        if not self.is_symmetric:
            worst = max(float((m - m.mT).abs().max()) for m in self.matrices)
            raise ValueError(f"the operator is not symmetric (entries differ by {worst:.3g}): it has no eigh")

    def _require_same(self, other: "InvariantOperator") -> None:
        mine, theirs = self.symmetry, other.symmetry
        if mine is not theirs and (mine.axes, mine.shapes, mine.groups, mine.sizes) != (
            theirs.axes,
            theirs.shapes,
            theirs.groups,
            theirs.sizes,
        ):
            raise ValueError(f"operators belong to different symmetries: {mine} and {theirs}")


def _tolerance(matrix: Tensor) -> float:
    return math.sqrt(torch.finfo(matrix.dtype).eps) * (1e-2 if matrix.dtype is torch.float64 else 0.03)
