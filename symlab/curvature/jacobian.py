"""The Jacobian of a stretch of layers as a dense matrix, by vectorised derivatives, and what it costs.

Legend: B  rows of data;  x [B, *], y [B, *]  of the stretch;  J [M, m, n]  matrices: one of the joint batch (M = 1;
m, n: all numbers of y, of x), or one per row of data (M = B; m, n: of one row), dy_b / dx_b.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vjp, vmap

from symlab.curvature.forward_mode import jvp
from symlab.curvature.jacobian_stretch import Stretch

GIB = 1024**3
MOST_AT_ONCE = 64
"""Products that are vectorised at once, at most: more are no faster."""

_BLOCK = 8192
"""Columns that are in float64 at a time."""

_FLOAT64 = 8
_COPIES = 3  # of a Gram matrix, while its eigenvalues are computed


@dataclass(frozen=True)
class DensePlan:
    """How J is computed: rows by vector-Jacobian products, or columns by Jacobian-vector products where n < m."""

    matrices: int  # M
    outputs: int  # m
    inputs: int  # n
    products: int  # in all
    chunk: int  # products at once
    bytes: int  # at the peak

    @property
    def by_rows(self) -> bool:
        return self.outputs <= self.inputs

    @property
    def smaller(self) -> int:
        """min(m, n): number of singular values of each matrix."""
        return min(self.outputs, self.inputs)

    @property
    def longer(self) -> int:
        """max(m, n)."""
        return max(self.outputs, self.inputs)

    def __str__(self) -> str:
        kind = "vector-Jacobian" if self.by_rows else "Jacobian-vector"
        many = f"{self.matrices} of " if self.matrices > 1 else ""
        return (
            f"dense, {many}{self.outputs} x {self.inputs}, {self.products} {kind} products, {self.chunk} at once,"
            f" {self.bytes / GIB:.2g} GiB"
        )


def dense_plan(stretch: Stretch, per_row: bool, memory_gib: float) -> DensePlan:
    """The largest chunk that fits `memory_gib` beside J and its Gram matrix; a chunk of 1 may be too large for it.

    One product takes what the backward pass keeps, and one x and y. `bytes` is the estimate of all of it.

    Raises:
        ValueError: a budget that is not positive; `per_row` where y has not one entry per row of data.
    """
    if not memory_gib > 0:
        raise ValueError(f"memory_gib must be positive, got {memory_gib}")
    x, y = stretch.point, stretch.output
    if per_row and len(x) != len(y):
        raise ValueError(f"{len(x)} rows enter the stretch and {len(y)} leave it: only their joint Jacobian is defined")
    M = len(x) if per_row else 1
    m, n = y.numel() // M, x.numel() // M
    k, size = min(m, n), x.element_size()
    products = k * (M if stretch.mixes else 1)
    rest = M * m * n * size + _FLOAT64 * M * (_COPIES * k * k + k * min(max(m, n), _BLOCK))
    each = stretch.saved_bytes + 2 * (x.numel() + y.numel()) * size
    chunk = max(1, min(int((memory_gib * GIB - rest) // each), MOST_AT_ONCE, products))
    return DensePlan(M, m, n, products, chunk, rest + chunk * each)


def jacobians(stretch: Stretch, plan: DensePlan) -> Tensor:
    """J [M, m, n] in the model's precision where m <= n, else its transpose [M, n, m]: the long side is the last one.

    Rows that depend on each other: M = B then takes the blocks dy_b / dx_b of the joint Jacobian.
    """
    M, side, long = plan.matrices, plan.smaller, plan.longer
    found = stretch.point.new_empty((M, side, long))
    multiply = _products(stretch, plan.by_rows)
    alone: Sequence[int | None] = range(M) if stretch.mixes and M > 1 else (None,)
    for which in alone:
        own = slice(None) if which is None else slice(which, which + 1)
        for first in range(0, side, plan.chunk):
            index = torch.arange(first, min(first + plan.chunk, side))
            seeds = stretch.point.new_zeros((len(index), M, side))
            seeds[torch.arange(len(index)), own, index] = 1
            product = multiply(seeds).reshape(len(index), M, long)
            found[own, index] = product[:, own].transpose(0, 1)
    return found


def gram_matrices(matrices: Tensor) -> Tensor:
    """J J^T [M, k, k] of J [M, k, l] in float64, a block of columns at a time."""
    M, k, _ = matrices.shape
    total = matrices.new_zeros((M, k, k), dtype=torch.float64)
    for block in matrices.split(_BLOCK, dim=2):
        exact = block.double()
        total += exact @ exact.mT
    return total


def _products(stretch: Stretch, by_rows: bool) -> Callable[[Tensor], Tensor]:
    """Unit tensors of y (or x) [c, M, side], in any shape of that size -> J^T seeds [c, *x] (or J seeds [c, *y])."""
    if by_rows:
        pull = vmap(vjp(stretch, stretch.point)[1])
        return lambda seeds: pull(seeds.reshape(len(seeds), *stretch.output.shape))[0]
    push = vmap(lambda seed: jvp(stretch, (stretch.point,), (seed,))[1])
    return lambda seeds: push(seeds.reshape(len(seeds), *stretch.point.shape))
