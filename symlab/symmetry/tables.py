"""The symmetry of a model as rows: its axes, its blocks, and how much of it lies on axes that have a group.

Legend: m_k  copies of block k;  D_k  dimension of its irreducible piece;  P  number of weights.
"""

import math
from collections.abc import Sequence
from typing import Any

from symlab.symmetry.groups import Group
from symlab.symmetry.infer import AxisReport
from symlab.symmetry.weight_symmetry import WeightSymmetry


def axis_rows(axes: Sequence[AxisReport], symmetry: WeightSymmetry) -> list[dict[str, Any]]:
    """One row per axis. `group` is the model's own, `used_group` that of `symmetry` (chosen, or coarsened).

    `places`: every use, as <parameter>:<dimension>. `weights`: in the tensors that have the axis. `error`: relative
    change of the output when the axis moves; None for a free axis and without verification.
    """
    numbers = {name: math.prod(shape) for name, shape in symmetry.shapes.items()}
    return [
        {
            "axis": axis.label,
            "size": axis.size,
            "group": axis.group.value,
            "used_group": symmetry.groups.get(axis.label, Group.TRIVIAL).value,
            "role": axis.role,
            "weights": sum(numbers[name] for name in dict(axis.places) if name in numbers),
            "error": axis.error,
            "places": " ".join(f"{name}:{dimension}" for name, dimension in axis.places),
            "reasons": "; ".join(axis.reasons),
        }
        for axis in axes
    ]


def block_rows(symmetry: WeightSymmetry) -> list[dict[str, Any]]:
    """One row per isotypic block; m_k D_k, its number of weights, sums to P."""
    return [
        {
            "block": index,
            "axes": " ".join(block.axes),
            "copies": block.copies,
            "dimension": block.dimension,
            "weights": block.copies * block.dimension,
            "tensors": " ".join(dict.fromkeys(piece.tensor for piece in block.pieces)),
        }
        for index, block in enumerate(symmetry.blocks)
    ]


def share_on_axes(symmetry: WeightSymmetry) -> float:
    """The share of the weights that at least one axis with a group indexes, in [0, 1]; of a concatenated dimension the
    segments count by themselves.
    """
    parts = [part for layout in symmetry.layouts.values() for part in layout.parts]
    covered = sum(math.prod(part.shape) for part in parts if any(label in symmetry.groups for label in part.labels))
    return covered / symmetry.num_parameters
