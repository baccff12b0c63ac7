"""The mirrors in the symmetry group of a model: equal neurons, neurons of opposite sign, silent neurons, low rank.

A reflection g = I - 2 n n^T of the units of one axis (n [size], ||n|| = 1) acts on all tensors with that axis, on
flattened and concatenated dimensions too, and R = `WeightSymmetry.act` of it is a mirror of the whole space:

| group of the axis | n | the set O^T theta = 0 |
|---|---|---|
| permutations | (e_i - e_j) / sqrt 2 | units i and j are equal: `swap` |
| signed permutations | also (e_i + e_j) / sqrt 2, e_i | also i = -j: `negated_swap`; no weights at i: `sign_flip` |
| O(n) | any | no weights along n: W n = 0, n^T U = 0, so that W U has lower rank: `along` |

A tensor with the axis in one dimension has O = n (x) I. One with the axis twice moves as g W g, which is an involution
and a mirror too (its O is spanned by n (x) m and m (x) n for m orthogonal to n): the set is then g W g = W, which for a
swap says that exchanging i and j in both dimensions changes nothing.
Source: Ziyin, "Symmetry induces structure and constraint of learning" (ICML 2024), section 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from symlab.constraint.mirror import Shapes, StructuredMirror
from symlab.symmetry.groups import Group
from symlab.symmetry.weight_symmetry import WeightSymmetry

ROOMY = {Group.SIGNED_PERMUTATION, Group.ORTHOGONAL}
"""Groups that hold sign flips."""


def swap(symmetry: WeightSymmetry, axis: str, i: int, j: int) -> StructuredMirror:
    """Units i and j of the axis change places. The set: all weights of the two are equal.

    Raises ValueError for an axis without a group, and for units that are not two of its own.
    """
    return _mirror(symmetry, axis, f"swap of {axis} {i} and {j}", _signed_swap(_size(symmetry, axis), i, j, 1))


def negated_swap(symmetry: WeightSymmetry, axis: str, i: int, j: int) -> StructuredMirror:
    """Units i and j change places and signs. The set: the weights of i are minus those of j.

    Raises ValueError for an axis without sign flips, and for units that are not two of its own.
    """
    size = _size(symmetry, axis, ROOMY)
    return _mirror(symmetry, axis, f"negated swap of {axis} {i} and {j}", _signed_swap(size, i, j, -1))


def sign_flip(symmetry: WeightSymmetry, axis: str, i: int) -> StructuredMirror:
    """Unit i changes its sign (odd units, such as tanh). The set: all weights of i along the axis are zero.

    Raises ValueError for an axis without sign flips, and for a unit that is not one of its own.
    """
    g = torch.eye(_size(symmetry, axis, ROOMY), dtype=torch.float64)
    _check_unit(len(g), i)
    g[i, i] = -1
    return _mirror(symmetry, axis, f"sign flip of {axis} {i}", g)


def along(symmetry: WeightSymmetry, axis: str, direction: Tensor) -> StructuredMirror:
    """I - 2 n n^T with n = direction / ||direction|| on an axis under O(n). The set: no weights along n.

    Raises ValueError for an axis under a smaller group, and for a direction that is zero, not finite or not [size].
    """
    size = _size(symmetry, axis, {Group.ORTHOGONAL})
    exact = direction.detach().double().cpu()
    length = torch.linalg.vector_norm(exact)
    if exact.shape != (size,) or not (0 < length.item() < torch.inf):
        raise ValueError(f"the direction on axis {axis} must be [{size}], finite and not zero, got {direction}")
    n = exact / length
    return _mirror(symmetry, axis, f"reflection of {axis}", torch.eye(size, dtype=torch.float64) - 2 * n.outer(n))


def rotation_mirror(
    shapes: Shapes, u: str, w: str, direction: Tensor, *, dims: tuple[int, int] = (1, 0)
) -> StructuredMirror:
    """U -> U (I - 2 n n^T), W -> (I - 2 n n^T) W: a mirror of every loss of U W. Its set: U n = 0 and n^T W = 0.

    On it U W has rank at most r - 1. U [a, r] and W [r, b] by default; `dims` are the dimensions of size r that are
    summed over: (0, 0) for queries and keys Q^T K. n = direction / ||direction||, direction [r].

    Raises ValueError for names that the tensors do not have, sizes that differ, and a bad direction.
    """
    if u == w or u not in shapes or w not in shapes:
        raise ValueError(f"a product needs two tensors of {list(shapes)}, got {u!r} and {w!r}")
    axes = {name: [f"{name}:{d}" for d in range(len(shapes[name]))] for name in (u, w)}
    for name, dim in zip((u, w), dims, strict=True):
        if not 0 <= dim < len(axes[name]):
            raise ValueError(f"dims: {name} {list(shapes[name])} has no dimension {dim}")
        axes[name][dim] = "inner"
    symmetry = WeightSymmetry(axes, {name: shapes[name] for name in axes}, {"inner": Group.ORTHOGONAL})
    found = along(symmetry, "inner", direction)
    return StructuredMirror(f"rotation of {u} {w}", found.shapes, found.reflect)


def mirrors_of(symmetry: WeightSymmetry, axis: str) -> Iterator[StructuredMirror]:
    """All mirrors I - 2 n n^T of one axis: n (n - 1) / 2 swaps; under signed permutations also negated swaps and flips.

    Raises ValueError for an axis that is free, or under O(n), which has infinitely many: see `along`.
    """
    size = _size(symmetry, axis, {Group.PERMUTATION, Group.SIGNED_PERMUTATION})
    pairs = list(itertools.combinations(range(size), 2))
    found = [swap(symmetry, axis, i, j) for i, j in pairs]
    if symmetry.groups[axis] is Group.SIGNED_PERMUTATION:
        found += [negated_swap(symmetry, axis, i, j) for i, j in pairs]
        found += [sign_flip(symmetry, axis, i) for i in range(size)]
    return iter(found)


def random_mirror(symmetry: WeightSymmetry, axis: str, generator: torch.Generator) -> StructuredMirror:
    """One of the axis's mirrors at random: a swap under permutations, any of the kinds under B_n, any n under O(n).

    Raises ValueError for a free axis (one unit under permutations is free).
    """
    size = _size(symmetry, axis)
    if symmetry.groups[axis] is Group.ORTHOGONAL:
        return along(symmetry, axis, torch.randn(size, generator=generator, dtype=torch.float64))
    signs = symmetry.groups[axis] is Group.SIGNED_PERMUTATION
    i, j = torch.randint(size, (2,), generator=generator).tolist()
    if i == j and signs:
        return sign_flip(symmetry, axis, i)
    i, j = torch.randperm(size, generator=generator)[:2].tolist() if i == j else (i, j)
    negate = signs and bool(torch.randint(2, (), generator=generator))
    return negated_swap(symmetry, axis, i, j) if negate else swap(symmetry, axis, i, j)


def unit_weights(symmetry: WeightSymmetry, axis: str, point: dict[str, Tensor]) -> Tensor:
    """[..., n, D]: all D weights of each unit of the axis, in and out, from tensors [..., *shape] with equal [...].

    ||row i - row j|| / sqrt 2 is the distance to the set of `swap` i j.

    Raises ValueError for an axis that some tensor has twice, and for one that no tensor has.
    """
    rows = []
    for name, layout in symmetry.layouts.items():
        lead = point[name].ndim - len(layout.shape) if name in point else 0
        for part in layout.parts:
            if part.labels.count(axis) > 1:
                raise ValueError(f"axis {axis} occurs twice in {name}: its units have no weights of their own")
            if axis in part.labels:
                own = part.cut(point[name]).movedim(lead + part.labels.index(axis), lead)  # [..., n, ...]
                rows.append(own.flatten(lead + 1) if own.ndim > lead + 1 else own[..., None])
    if not rows:
        raise ValueError(f"no tensor has the axis {axis!r}; the axes are {list(symmetry.sizes)}")
    return torch.cat(rows, dim=-1)


def _mirror(symmetry: WeightSymmetry, axis: str, name: str, g: Tensor) -> StructuredMirror:
    """The mirror of the reflection g [n, n] of one axis, on the tensors that have the axis."""
    names = [n for n, layout in symmetry.layouts.items() if any(axis in part.labels for part in layout.parts)]
    shapes = {n: symmetry.shapes[n] for n in names}
    return StructuredMirror(name, shapes, lambda point: symmetry.act({axis: g}, point))


def _signed_swap(size: int, i: int, j: int, sign: int) -> Tensor:
    """I - 2 n n^T with n = (e_i - sign e_j) / sqrt 2, without rounding."""
    _check_unit(size, i)
    _check_unit(size, j)
    if i == j:
        raise ValueError(f"a swap needs two different units, got {i} twice")
    g = torch.eye(size, dtype=torch.float64)
    g[i, i] = g[j, j] = 0
    g[i, j] = g[j, i] = sign
    return g


def _check_unit(size: int, i: int) -> None:
    if not 0 <= i < size:
        raise ValueError(f"the axis has units 0 to {size - 1}, got {i}")


def _size(symmetry: WeightSymmetry, axis: str, allowed: set[Group] | None = None) -> int:
    """The size of an axis whose group is one of the allowed (None: any)."""
    if axis not in symmetry.groups:
        raise ValueError(f"axis {axis!r} is not one with a group; those are {list(symmetry.groups)}")
    group = symmetry.groups[axis]
    if allowed is not None and group not in allowed:
        names = " or ".join(sorted(g.value for g in allowed))
        raise ValueError(f"axis {axis!r} is under {group.value}; this needs {names}")
    return symmetry.sizes[axis]
