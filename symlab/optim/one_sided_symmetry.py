"""A symmetry in which hidden-to-hidden weights have one free side: finer statistics where the groups leave one number.

Legend: W [r, c]  a weight matrix; of a kernel [out, in, kh, kw], r is out and c all the rest;  G [r, c]  its gradient.
"""

import math
from collections.abc import Sequence

from symlab.symmetry import Group, WeightSymmetry
from symlab.symmetry.layout import Axis


def one_sided(symmetry: WeightSymmetry) -> WeightSymmetry:
    """Sigma_W = A (x) I_c, A = G G^T / c [r, r] if r <= c, else I_r (x) A, A = G^T G / r: for W `between_groups`.

    Under the model's own groups such a tensor keeps one number for all that is not a mean. Here it gets statistics of
    its own: its smaller side is free, and they are pooled over the other as if that were under O(n), as in one-sided
    Shampoo. A dimension made of several axes counts as one. All other tensors keep their symmetry.
    """
    inner = [name for name in symmetry.axes if between_groups(symmetry, name)]
    axes: dict[str, tuple[Axis, ...]] = dict(symmetry.axes)
    groups: dict[str, Group] = {}
    for name in inner:
        shape = symmetry.shapes[name]
        axes[name] = tuple(f"{name}/{d}" for d in range(len(shape)))
        pooled = slice(1, None) if shape[0] <= math.prod(shape[1:]) else slice(0, 1)
        groups |= {f"{name}/{d}": Group.ORTHOGONAL for d in range(len(shape))[pooled]}
    kept = {a for name in axes if name not in inner for axis in axes[name] for a in _labels(axis)}
    groups |= {a: group for a, group in symmetry.groups.items() if a in kept}
    sizes = {a: n for a, n in symmetry.sizes.items() if a in kept}
    return WeightSymmetry(axes, symmetry.shapes, groups, sizes)


def between_groups(symmetry: WeightSymmetry, name: str) -> bool:
    """Whether a group moves the rows of a tensor and at least one of its other dimensions."""
    moved = [any(a in symmetry.groups for a in _labels(axis)) for axis in symmetry.axes[name]]
    return len(moved) > 1 and moved[0] and any(moved[1:])


def _labels(axis: Axis) -> Sequence[str]:
    return [axis] if isinstance(axis, str) else [a for segment in axis.segments for a in segment]
