"""Coarser couplings of a symmetry for preconditioning: statistics per tensor, and one free side per weight matrix.

Both return a `WeightSymmetry` on the same tensors whose axes or groups differ, so everything that holds for one
symmetry (blocks, roots, exact resume) holds for these. Legend: W [r, c]  a weight matrix; of a kernel [out, in, kh, kw]
r is out and c all the rest.
"""

import math
from collections.abc import Sequence

from symlab.symmetry import Composite, Group, WeightSymmetry
from symlab.symmetry.layout import Axis


def uncoupled(symmetry: WeightSymmetry) -> WeightSymmetry:
    """Sigma = direct sum over tensors T of Sigma_T, each of T's own symmetry: no tensor shares a block with another.

    Every axis is given a label of its own in each tensor, under the same group. This is the structure under the larger
    group in which the units of each tensor move on their own.
    """
    axes = {name: tuple(_renamed(name, axis) for axis in row) for name, row in symmetry.axes.items()}
    labels = {name: _labels(symmetry, name) for name in symmetry.axes}
    groups = {_own(name, a): symmetry.groups[a] for name in axes for a in labels[name] if a in symmetry.groups}
    sizes = {_own(name, a): symmetry.sizes[a] for name in axes for a in labels[name]}
    return WeightSymmetry(axes, symmetry.shapes, groups, sizes)


def one_sided(symmetry: WeightSymmetry) -> WeightSymmetry:
    """Sigma_W = A (x) I_c, A = W-gradient G G^T / c [r, r], for each W between two axes that are under a group.

    Such a tensor (hidden to hidden) would otherwise keep one number for all that is not a mean. It gets statistics of
    its own: its smaller side is free, [r, r] or [c, c], and they are pooled over the other side as if that were under
    O(n): one-sided Shampoo. A dimension made of several axes counts as one. All other tensors keep their symmetry.
    """
    inner = [name for name in symmetry.axes if between_groups(symmetry, name)]
    axes: dict[str, tuple[Axis, ...]] = dict(symmetry.axes)
    groups: dict[str, Group] = {}
    for name in inner:
        shape = symmetry.shapes[name]
        labels = tuple(_own(name, str(d)) for d in range(len(shape)))
        axes[name] = labels
        pooled = labels[1:] if shape[0] <= math.prod(shape[1:]) else labels[:1]
        groups |= dict.fromkeys(pooled, Group.ORTHOGONAL)
    kept = {a for name in axes if name not in inner for a in _labels(symmetry, name)}
    groups |= {a: group for a, group in symmetry.groups.items() if a in kept}
    sizes = {a: n for a, n in symmetry.sizes.items() if a in kept}
    return WeightSymmetry(axes, symmetry.shapes, groups, sizes)


def between_groups(symmetry: WeightSymmetry, name: str) -> bool:
    """Whether at least two dimensions of a tensor are indexed by units that a group moves, its rows among them."""
    moved = [any(a in symmetry.groups for a in _of_axis(axis)) for axis in symmetry.axes[name]]
    return len(moved) > 1 and moved[0] and any(moved[1:])


def _labels(symmetry: WeightSymmetry, name: str) -> Sequence[str]:
    return list(dict.fromkeys(a for axis in symmetry.axes[name] for a in _of_axis(axis)))


def _of_axis(axis: Axis) -> Sequence[str]:
    return [axis] if isinstance(axis, str) else [a for segment in axis.segments for a in segment]


def _own(name: str, label: str) -> str:
    return f"{name}/{label}"


def _renamed(name: str, axis: Axis) -> Axis:
    if isinstance(axis, str):
        return _own(name, axis)
    return Composite(tuple(tuple(_own(name, a) for a in segment) for segment in axis.segments))
