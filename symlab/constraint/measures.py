"""What a constraint leaves behind, measured: zeros, ranks, equal neurons, dead units.

All functions take tensors of any real dtype on any device, with leading batch dimensions [...], compute in float64
(zero_fraction: in the dtype of its input), and return float64 [...], counts too: an item that holds a NaN or an
infinity has the value NaN, so that one diverged net of a stack does not stop the others. An empty item is a ValueError.

Legend: n  neurons or units;  d  weights of a neuron, or features;  N  rows (samples).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def zero_fraction(x: Tensor, threshold: float = 0.0, *, batch_dims: int = 0) -> Tensor:
    """#{i: |x_i| <= threshold} / #{i}, in [0, 1]; threshold 0 counts exact zeros (-0.0 too).

    Over all dimensions behind the first `batch_dims`: the whole tensor by default.

    Raises ValueError for a threshold that is negative or not finite, and for an empty item.
    """
    if not 0 <= threshold < math.inf:
        raise ValueError(f"threshold must be 0 or a positive number, got {threshold}")
    if not 0 <= batch_dims <= x.ndim:
        raise ValueError(f"batch_dims must be 0 to {x.ndim}, the dimensions of the tensor, got {batch_dims}")
    _check_real(x)
    items = (x.detach().byte() if x.dtype is torch.bool else x.detach()).reshape(
        *x.shape[:batch_dims], math.prod(x.shape[batch_dims:])
    )  # [..., all]
    _check_not_empty(items, 1)
    fraction = (items.abs() <= threshold).double().mean(-1)
    return torch.where(items.isfinite().all(-1), fraction, torch.nan)


def numerical_rank(matrix: Tensor, rtol: float) -> Tensor:
    """#{i: s_i > rtol s_1} of the singular values s_1 >= s_2 >= ... of each matrix [..., n, d]; 0 for a zero matrix.

    Raises ValueError unless 0 <= rtol < 1, and for an empty matrix.
    """
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol, the cut-off relative to the largest singular value, must be in [0, 1), got {rtol}")
    values, finite = _singular_values(matrix)  # [..., min(n, d)]
    count = ((values > rtol * values[..., :1]) & (values > 0)).sum(-1).double()
    return torch.where(finite, count, torch.nan)


def stable_rank(matrix: Tensor) -> Tensor:
    """||W||_F^2 / ||W||_2^2 of each matrix [..., n, d] (Rudelson and Vershynin, 2007): in [1, rank], 0 for W = 0.

    Raises ValueError for an empty matrix.
    """
    values, finite = _singular_values(matrix)  # [..., min(n, d)]
    largest = values[..., 0]
    ratio = (values / torch.where(largest > 0, largest, 1.0)[..., None]).square().sum(-1)
    return torch.where(finite, ratio, torch.nan)


def effective_dimension(features: Tensor, *, centre: bool = True) -> Tensor:
    """(sum_i l_i)^2 / sum_i l_i^2, the participation ratio of the eigenvalues l of the features' covariance.

    features [..., N, d]; covariance X^T X / N of the rows, minus their mean if `centre`. In [1, min(N, d)], and 0 where
    all eigenvalues are zero (with `centre`: all rows equal to rounding, that is |x - mean| <= 1e-12 max |x|).
    Source: Gao et al., "A theory of multineuronal dimensionality, dynamics and measurement" (2017).

    Raises ValueError for an empty matrix.
    """
    exact, finite = _finite_items(features, 2)
    size = exact.abs().amax((-2, -1), keepdim=True)
    rows = exact / torch.where(size > 0, size, 1.0)  # largest entry 1: no overflow
    if centre:
        rows = rows - rows.mean(-2, keepdim=True)
        rows = torch.where(rows.abs().amax((-2, -1), keepdim=True) > 1e-12, rows, 0.0)
    size = rows.abs().amax((-2, -1), keepdim=True)
    rows = rows / torch.where(size > 0, size, 1.0)
    gram = rows.mT @ rows if rows.shape[-1] <= rows.shape[-2] else rows @ rows.mT
    traces = gram.diagonal(dim1=-2, dim2=-1).sum(-1), gram.square().sum((-2, -1))  # sum l, sum l^2
    ratio = traces[0].square() / torch.where(traces[1] > 0, traces[1], 1.0)
    return torch.where(finite, ratio, torch.nan)


def neuron_norms(rows: Tensor) -> Tensor:
    """||r_i||, [..., n] from the neurons' weights or activations [..., n, d]. Raises ValueError for an empty matrix."""
    exact, finite = _finite_items(rows, 2)
    return torch.where(finite[..., None], torch.linalg.vector_norm(exact, dim=-1), torch.nan)


def zero_neurons(rows: Tensor, *, zero: float = 1e-6) -> Tensor:
    """#{i: ||r_i|| <= zero max_j ||r_j||}: neurons of [..., n, d] that decayed to nothing; n for a zero matrix.

    Raises ValueError unless 0 <= zero < 1, and for an empty matrix.
    """
    norms = neuron_norms(rows)
    return torch.where(norms.isfinite().all(-1), (~_there(norms, zero)).sum(-1).double(), torch.nan)


def neuron_correlation(rows: Tensor, *, centre: bool = False, zero: float = 1e-6) -> Tensor:
    """C[i, j] = <r_i, r_j> / (||r_i|| ||r_j||), [..., n, n] in [-1, 1], of the neurons' rows [..., n, d].

    Rows are a neuron's weights (with its bias as one more column), or its activations over d samples. As it stands C is
    1 exactly when two rows have the same direction, as merged neurons have. With `centre`, each row's mean is taken off
    first (Pearson): the measure for activations, where a common offset, as of ReLUs, says nothing.

    A neuron without length, ||r_i|| <= zero max_j ||r_j||, has no direction: its row and column are 0, the diagonal
    included. A matrix with a NaN or an infinity gives NaN.

    Raises ValueError unless 0 <= zero < 1, and for an empty matrix.
    """
    exact, finite = _finite_items(rows, 2)
    there = _there(torch.linalg.vector_norm(exact, dim=-1), zero)  # [..., n]
    unit = _directions(exact)
    if centre:  # of a constant row only rounding is left: no direction either
        mean = unit.mean(-1, keepdim=True)
        unit = unit - mean
        there = there & (unit.abs().amax(-1) > 1e-12 * mean.abs()[..., 0])
        unit = _directions(unit)
    unit = unit * there[..., None]
    correlation = (unit @ unit.mT).clamp(-1, 1)
    correlation.diagonal(dim1=-2, dim2=-1).copy_(there)  # 1 without rounding
    return torch.where(finite[..., None, None], correlation, torch.nan)


def distinct_neurons(
    rows: Tensor, correlation: float = 0.95, *, centre: bool = False, signless: bool = False, zero: float = 1e-6
) -> Tensor:
    """Number of groups of equal neurons among those that are there, [...] from rows [..., n, d].

    Neurons i and j are linked if C[i, j] >= correlation (C of `neuron_correlation`; |C| if `signless`, for odd units,
    where r and -r are the same neuron); groups are the connected components (single linkage). Neurons without length
    are no group: `zero_neurons` counts them, and n = (members of all groups) + zero_neurons if not `centre`. In [0, n].

    Raises ValueError unless 0 < correlation <= 1 and 0 <= zero < 1, and for an empty matrix.
    """
    if not 0 < correlation <= 1:
        raise ValueError(f"correlation, from which two neurons count as one, must be in (0, 1], got {correlation}")
    matrix = neuron_correlation(rows, centre=centre, zero=zero)  # [..., n, n]
    matrix = matrix.abs() if signless else matrix
    linked = matrix >= correlation - 1e-12  # equal rows have 1 up to rounding
    labels = _components(linked)  # [..., n]
    there = matrix.diagonal(dim1=-2, dim2=-1) > 0  # [..., n]
    roots = (labels == torch.arange(labels.shape[-1], device=labels.device)) & there
    return torch.where(matrix.isfinite().all(-1).all(-1), roots.sum(-1).double(), torch.nan)


def dead_units(activations: Tensor, *, rtol: float = 0.0) -> Tensor:
    """#{j: max_i a[i, j] - min_i a[i, j] <= rtol max |a|}, of [..., N, n]: units that are zero or constant in all rows.

    In [0, n]. Every unit of a single row is constant: give the activations of many inputs.

    Raises ValueError unless 0 <= rtol < 1, for fewer than two rows, and for an empty matrix.
    """
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol must be in [0, 1), got {rtol}")
    exact, finite = _finite_items(activations, 2)
    if exact.shape[-2] < 2:
        raise ValueError("dead_units needs the activations of at least two inputs [N, n], got one row")
    spread = exact.amax(-2) - exact.amin(-2)  # [..., n]
    count = (spread <= rtol * exact.abs().amax((-2, -1))[..., None]).sum(-1).double()
    return torch.where(finite, count, torch.nan)


def cluster_order(rows: Tensor, *, centre: bool = False, zero: float = 1e-6) -> Tensor:
    """An order [n] of the neurons of one matrix [n, d] in which `neuron_correlation` is block-like.

    Average linkage: the two groups with the largest mean correlation are joined until one is left, each join turned so
    that the neurons that meet correlate most (of the four ways). Neurons without length come last. O(n^3).

    Raises ValueError for more dimensions than two, for NaN and infinity, and for an empty matrix.
    """
    if rows.ndim != 2:
        raise ValueError(f"cluster_order takes one matrix [n, d], got {list(rows.shape)}")
    matrix = neuron_correlation(rows, centre=centre, zero=zero).cpu()  # [n, n]
    if not matrix.isfinite().all():
        raise ValueError("cluster_order: the rows hold a NaN or an infinity")
    there = (matrix.diagonal() > 0).tolist()
    groups = [[i] for i, found in enumerate(there) if found]
    while len(groups) > 1:
        a, b = _closest(matrix, groups)
        groups[a] = _joined(matrix, groups[a], groups.pop(b))
    alive = [i for group in groups for i in group]
    return torch.tensor(alive + [i for i, found in enumerate(there) if not found], device=rows.device)


def _closest(matrix: Tensor, groups: list[list[int]]) -> tuple[int, int]:
    """Numbers a < b of the two groups with the largest mean correlation between them."""
    member = torch.zeros(len(groups), len(matrix), dtype=matrix.dtype)  # [groups, n]
    for k, group in enumerate(groups):
        member[k, group] = 1 / len(group)
    means = (member @ matrix @ member.T).fill_diagonal_(-torch.inf)  # [groups, groups]
    a, b = divmod(int(means.argmax()), len(groups))
    return min(a, b), max(a, b)


def _joined(matrix: Tensor, first: list[int], second: list[int]) -> list[int]:
    ways = [(f, s) for f in (first, first[::-1]) for s in (second, second[::-1])]
    best = max(ways, key=lambda way: float(matrix[way[0][-1], way[1][0]]))
    return best[0] + best[1]


def _components(linked: Tensor) -> Tensor:
    """[..., n]: the smallest number of all neurons that can be reached from each; `linked` [..., n, n] is symmetric."""
    n = linked.shape[-1]
    numbers = torch.arange(n, device=linked.device).expand(linked.shape[:-1])  # [..., n]
    labels = numbers
    while True:
        near = torch.where(linked, labels[..., None, :], n).amin(-1)  # smallest label among the neighbours
        after = torch.minimum(labels, near)
        after = after.gather(-1, after)  # and that one's own label
        if torch.equal(after, labels):
            return labels
        labels = after


def _there(norms: Tensor, zero: float) -> Tensor:
    """[..., n]: which neurons have a length."""
    if not 0 <= zero < 1:
        raise ValueError(f"zero, the length below which a neuron counts as zero, must be in [0, 1), got {zero}")
    return (norms > zero * norms.amax(-1, keepdim=True)) & (norms > 0)


def _directions(rows: Tensor) -> Tensor:
    """Rows of length 1; zero rows stay zero."""
    size = rows.abs().amax(-1, keepdim=True)
    scaled = rows / torch.where(size > 0, size, 1.0)  # no under- or overflow in the squares
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / torch.where(length > 0, length, 1.0)


def _singular_values(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """[..., min(n, d)] and which matrices are finite [...]."""
    exact, finite = _finite_items(matrix, 2)
    return torch.linalg.svdvals(exact), finite


def _finite_items(x: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """x in float64 with zeros in place of items that are not finite, and which are [...]."""
    if x.ndim < dims:
        raise ValueError(f"expected a tensor of {dims} or more dimensions, got {list(x.shape)}")
    _check_not_empty(x, dims)
    _check_real(x)
    exact = x.detach().double()
    finite = exact.isfinite().flatten(-dims).all(-1)  # [...]
    return torch.where(finite.reshape(*finite.shape, *[1] * dims), exact, 0.0), finite


def _check_real(x: Tensor) -> None:
    if x.is_complex():
        raise ValueError(f"expected real numbers, got {x.dtype}: measure .real, .imag or .abs()")


def _check_not_empty(x: Tensor, dims: int) -> None:
    if 0 in x.shape[x.ndim - dims :]:
        raise ValueError(f"expected something to measure, got an empty tensor {list(x.shape)}")
