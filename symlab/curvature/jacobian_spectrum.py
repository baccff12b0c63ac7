"""Singular values of the Jacobian of a stretch of layers: exactly from a dense matrix, or by products with it alone.

Legend: J [M, m, n]  as in `jacobian`;  k = min(m, n);  s  singular values;  G = J J^T or J^T J [k, k], the smaller.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vjp

from symlab.curvature.forward_mode import jvp
from symlab.curvature.jacobian import GIB, DensePlan, dense_plan, gram_matrices, jacobians
from symlab.curvature.jacobian_stretch import Stretch
from symlab.curvature.lanczos import Extremes, Matvec, extreme_eigenvalues, spectral_density

METHODS = ("auto", "gram", "svd", "lanczos")


@dataclass(frozen=True)
class SingularValues:
    """s >= 0 with their shares of all singular values (summing to 1): k equal ones each, or nodes of a quadrature.

    `resolution`: values below it are not told from 0. Of `lanczos` the errors of the extremes are bounds (an exact
    singular value lies so near), and the first and last entry are these extremes, with share 0.
    """

    values: Tensor  # [N] float64, ascending, on the CPU
    shares: Tensor  # [N] float64
    matrices: int  # M
    method: str
    how: str  # what was computed, with its sizes
    resolution: float
    smallest_error: float = 0.0
    largest_error: float = 0.0
    probe_values: Tensor | None = None  # [R, K] of lanczos: nodes of each probe
    probe_shares: Tensor | None = None  # [R, K], each row sums to 1

    @property
    def exact(self) -> bool:
        return self.probe_values is None

    def share_below(self, level: float) -> tuple[float, float | None]:
        """Share of the singular values < level, and its standard error over the probes (None: all were computed)."""
        if self.probe_values is None or self.probe_shares is None:
            return float(self.shares[self.values < level].sum()), None
        each = (self.probe_shares * (self.probe_values < level)).sum(1)  # [R]
        return float(each.mean()), float(each.std()) / math.sqrt(len(each))

    def mean(self) -> tuple[float, float | None]:
        """Mean of s, and its standard error over the probes (None: all were computed)."""
        if self.probe_values is None or self.probe_shares is None:
            return float(self.values @ self.shares), None
        each = (self.probe_shares * self.probe_values).sum(1)  # [R]
        return float(each.mean()), float(each.std()) / math.sqrt(len(each))

    def quantile(self, q: float) -> float:
        """The value with a share q below it, interpolated between neighbours; of a quadrature, between its nodes."""
        if self.exact:
            return float(torch.quantile(self.values, q))
        middle = self.shares.cumsum(0) - self.shares / 2  # [N]
        above = int(torch.searchsorted(middle, torch.tensor(q, dtype=torch.float64)).clamp(1, len(middle) - 1))
        low, high = middle[above - 1 : above + 1].tolist()
        weight = min(max((q - low) / (high - low), 0.0), 1.0) if high > low else 0.0
        return float(torch.lerp(self.values[above - 1], self.values[above], weight))

    def histogram(self, edges: Tensor) -> Tensor:
        """Density [bins] per unit of s in the bins between `edges` [bins + 1], of all singular values, also those
        outside of them; the last bin holds its right edge, as numpy's.
        """
        edges = edges.double()
        place = torch.bucketize(self.values, edges, right=True) - 1  # [N]
        place = torch.where(self.values == edges[-1], len(edges) - 2, place)
        inside = (place >= 0) & (place < len(edges) - 1)
        counts = torch.zeros(len(edges) - 1, dtype=torch.float64).index_add_(0, place[inside], self.shares[inside])
        return counts / edges.diff()


def singular_values(
    stretch: Stretch,
    *,
    per_row: bool = False,
    memory_gib: float = 1.0,
    method: str = "auto",
    probes: int = 10,
    steps: int = 60,
    generator: torch.Generator | None = None,
) -> SingularValues:
    """s_i(J): roots of the eigenvalues of G, of the joint batch or of every row's own Jacobian, all pooled.

    `gram`: G in float64 from a dense J; values below sqrt(k eps_64) x the largest (and below the precision of the
    model times the largest) are not resolved. `svd`: directly from the dense J in float64, slower. `lanczos`: never a
    matrix: extremes by Lanczos with error bounds, the density by stochastic Lanczos quadrature of `probes` random
    vectors (of `generator`; each `steps` steps), at the precision of the model. `auto`: gram where it fits
    `memory_gib`, else lanczos; `how` of the result says which.

    Raises:
        ValueError: an unknown method, a dense J that does not fit (of gram and svd), Lanczos vectors that do not fit,
            and what `dense_plan` and `Stretch.row` raise.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    plan = dense_plan(stretch, per_row, memory_gib)
    fits = plan.bytes <= memory_gib * GIB
    if method in ("gram", "svd") and not fits:
        raise ValueError(
            f"method={method}: the dense Jacobian ({plan}) is more than memory_gib={memory_gib:g}; give more memory, or"
            " take method=lanczos, fewer rows of data or a shorter stretch"
        )
    if method == "lanczos" or not fits:
        generator = generator or torch.Generator().manual_seed(0)
        return _by_products(stretch, per_row, plan, memory_gib, probes, steps, generator)
    return _dense(stretch, plan, svd=method == "svd")


def _dense(stretch: Stretch, plan: DensePlan, *, svd: bool) -> SingularValues:
    J = jacobians(stretch, plan)  # [M, k, l]
    if not bool(J.isfinite().all()):
        raise FloatingPointError("the Jacobian is not finite")
    eps, eps64 = torch.finfo(J.dtype).eps, torch.finfo(torch.float64).eps
    if svd:
        values, relative = torch.linalg.svdvals(J.double()), eps
    else:
        unit = float(J.abs().max()) or 1.0  # squares of 1e200 overflow
        squares = torch.linalg.eigvalsh(gram_matrices(J / unit))  # [M, k]
        values, relative = unit * squares.clamp(min=0).sqrt(), max(math.sqrt(plan.smaller * eps64), eps)
    values = values.flatten().sort().values.cpu()
    shares = torch.full_like(values, 1 / len(values))
    method = "svd" if svd else "gram"
    return SingularValues(values, shares, plan.matrices, method, f"{method}: {plan}", relative * float(values[-1]))


def _by_products(
    stretch: Stretch,
    per_row: bool,
    plan: DensePlan,
    memory_gib: float,
    probes: int,
    steps: int,
    generator: torch.Generator,
) -> SingularValues:
    parts = [stretch.row(b) for b in range(plan.matrices)] if per_row and plan.matrices > 1 else [stretch]
    k, point = plan.smaller, stretch.point
    needed = (min(steps, k) + 4) * k * point.element_size() + stretch.saved_bytes
    if needed > memory_gib * GIB:
        raise ValueError(
            f"method=lanczos: {min(steps, k)} vectors of {k} numbers need {needed / GIB:.2g} GiB, more than"
            f" memory_gib={memory_gib:g}: give more memory, fewer lanczos_steps or fewer rows of data"
        )
    operators = [gram_operator(part, by_rows=plan.by_rows) for part in parts]
    dtype, device = point.dtype, point.device
    found = [extreme_eigenvalues(G, k, steps=steps, generator=generator, dtype=dtype, device=device) for G in operators]
    densities = [
        spectral_density(G, k, probes=probes, steps=steps, generator=generator, dtype=dtype, device=device)
        for G in operators
    ]
    squares = torch.cat([d.nodes for d in densities], 1)  # [R, M K]
    shares = torch.cat([d.weights for d in densities], 1) / len(parts)
    nodes = squares.clamp(min=0).sqrt()
    smallest, smallest_error = _lower_end(found, squares[shares > 0])
    largest, largest_error = _upper_end(found, squares[shares > 0])
    values, order = nodes.flatten().sort()
    own, values = (shares / probes).flatten()[order], values.clamp(smallest, largest)  # entries without a share too
    ends = torch.tensor([[smallest], [largest]], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    return SingularValues(
        torch.cat([ends[0], values, ends[1]]), torch.cat([zero, own, zero]), len(parts), "lanczos",
        how=f"lanczos: {len(parts)} of {plan.outputs} x {plan.inputs}, never a matrix; {probes} probes of"
            f" {min(steps, k)} steps",
        resolution=math.sqrt(torch.finfo(point.dtype).eps) * largest,
        smallest_error=smallest_error,
        largest_error=largest_error,
        probe_values=nodes, probe_shares=shares,
    )  # fmt: skip


def gram_operator(stretch: Stretch, *, by_rows: bool) -> Matvec:
    """u [m] -> J J^T u (`by_rows`), or v [n] -> J^T J v, by one product with J and one with its transpose."""
    x, y = stretch.point, stretch.output
    pull = vjp(stretch, x)[1]

    def push(tangent: Tensor) -> Tensor:
        return jvp(stretch, (x,), (tangent,))[1]

    if by_rows:
        return lambda u: _finite(push(pull(u.reshape(y.shape))[0]).flatten())
    return lambda v: _finite(pull(push(v.reshape(x.shape)))[0].flatten())


def _finite(product: Tensor) -> Tensor:
    if not bool(product.isfinite().all()):
        raise FloatingPointError("a product with the Jacobian is not finite")
    return product


ISOMETRY = (
    *("min", "q1", "median", "q3", "max", "mean", "std", "condition", "mean_square", "square_variation", "mean_log"),
    *("unresolved", "min_error", "max_error", "mean_error"),
)
"""Keys of `isometry`, before the shares below levels."""


def isometry(found: SingularValues, levels: Sequence[float]) -> dict[str, float | None]:
    """Numbers of one spectrum: extremes, quartiles, mean, deviation, condition number, shares below the `levels`.

    And those of dynamical isometry (Pennington, Schoenholz and Ganguli, NeurIPS 2017), where all are near 1:
    mean_square = mean s^2 (1 keeps the norm of gradients on average), square_variation = var(s^2) / mean(s^2)^2
    (0: every direction alike), mean_log = mean ln s (the typical growth).
    condition and mean_log are None where the smallest value is not resolved: below the resolution, or within its error
    of it.
    `unresolved` is the share of values below the resolution. Of lanczos *_error are errors: bounds of min and max,
    standard errors over probes of the others; min is then an upper bound, and values that crowd at 0 stand at the
    lowest nodes.
    """
    s, w = found.values, found.shares
    mean, mean_error = found.mean()
    unit = float(s[-1]) or 1.0  # fourth powers of 1e100 overflow
    t = s / unit
    second, fourth = float(t.square() @ w), float(t.pow(4) @ w)
    kept = (s > found.resolution) & (s > 0)
    resolved = float(w[kept].sum())
    all_resolved = bool(s[0] - found.smallest_error > found.resolution)
    numbers: dict[str, float | None] = {
        "min": float(s[0]),
        "q1": found.quantile(0.25),
        "median": found.quantile(0.5),
        "q3": found.quantile(0.75),
        "max": float(s[-1]),
        "mean": mean,
        "std": unit * math.sqrt(max(second - float(t @ w) ** 2, 0.0)),
        "condition": float(s[-1] / s[0]) if all_resolved else None,
        "mean_square": unit * unit * second,
        "square_variation": fourth / second**2 - 1 if second > 0 else None,
        "mean_log": float(s.log() @ w) if all_resolved else None,
        "unresolved": 1 - resolved if resolved < 1 - 1e-12 else 0.0,
        "min_error": found.smallest_error,
        "max_error": found.largest_error,
        "mean_error": mean_error,
    }
    assert tuple(numbers) == ISOMETRY
    for level in levels:
        share, error = found.share_below(level)
        numbers |= {below(level): share, f"{below(level)}_error": error}
    return numbers


def isometry_names(levels: Sequence[float]) -> list[str]:
    """Keys of `isometry`."""
    return [*ISOMETRY, *(name for level in levels for name in (below(level), f"{below(level)}_error"))]


def below(level: float) -> str:
    """Name of the share of singular values below a level: below_0_25 for 0.25."""
    return f"below_{f'{level:g}'.replace('.', '_').replace('-', 'm')}"


def _lower_end(found: Sequence[Extremes], nodes: Tensor) -> tuple[float, float]:
    """Smallest singular value and the bound of its error: no Ritz value of G lies below the smallest eigenvalue, so the
    least of all of them is the nearest; an eigenvalue lies between it and 0.
    """
    low = min(found, key=lambda extremes: extremes.smallest)
    least = max(min(low.smallest, float(nodes.min())), 0.0)
    error = min(low.smallest_error + abs(low.smallest - least), least)
    return math.sqrt(least), math.sqrt(least) - math.sqrt(max(least - error, 0.0))


def _upper_end(found: Sequence[Extremes], nodes: Tensor) -> tuple[float, float]:
    """Largest singular value and the bound of its error: no Ritz value lies above the largest eigenvalue."""
    high = max(found, key=lambda extremes: extremes.largest)
    most = max(high.largest, float(nodes.max()), 0.0)
    error = high.largest_error + abs(high.largest - most)
    return math.sqrt(most), math.sqrt(most) - math.sqrt(max(most - error, 0.0))
