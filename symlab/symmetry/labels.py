"""The names of axes.

A leaf is named after one of its uses: "<parameter>:<dimension>" where it is the whole dimension, with ":<start>:<stop>"
behind it where it is the part of these units (stop not included), and "/<k>" where it is factor k of a row-major
product: conv1.weight:0, norm.weight:0:64:96, in_proj_weight:0:0:768/1. It is the first use as outputs (dimension 0),
else the first use; uses as a whole dimension go first. Free axes carry "in:", "out:" (model inputs and outputs) or
"free:" in front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from symlab.symmetry.arrangement import Segments
from symlab.symmetry.axis_table import INPUT, OUTPUT, AxisTable
from symlab.symmetry.layout import Composite

Rows = Mapping[str, Sequence[Segments]]  # parameter -> segments of each dimension


@dataclass(frozen=True)
class Use:
    """One place of an axis: a dimension of a parameter, or a part or factor of one."""

    parameter: str
    dimension: int
    part: str  # "" for a whole dimension

    @property
    def place(self) -> tuple[str, int]:
        return self.parameter, self.dimension

    def __str__(self) -> str:
        return f"{self.parameter}:{self.dimension}{self.part}"


def uses_of_axes(axes: AxisTable, rows: Rows) -> dict[int, list[Use]]:
    """Every use of every leaf, in the order of the parameters."""
    uses: dict[int, list[Use]] = {}
    for name, row in rows.items():
        for dimension, segments in enumerate(row):
            start = 0
            for segment in segments:
                stop = start + math.prod(map(axes.size, segment))
                units = f":{start}:{stop}" if len(segments) > 1 else ""
                for k, leaf in enumerate(segment):
                    part = f"{units}/{k}" if len(segment) > 1 else units
                    uses.setdefault(leaf, []).append(Use(name, dimension, part))
                start = stop
    return uses


def label(axes: AxisTable, leaf: int, uses: Sequence[Use]) -> str:
    """The name of the leaf, after one of its uses."""
    use = min(uses, key=lambda use: (use.part != "", use.dimension != 0))
    if not axes.is_free((leaf,)):
        return str(use)
    reasons = axes.reasons(leaf)
    prefix = "in" if INPUT in reasons else "out" if OUTPUT in reasons else "free"
    return f"{prefix}:{use}"


def label_row(name: str, row: Sequence[Segments], labels: Mapping[int, str]) -> tuple[str | Composite, ...]:
    """One entry per dimension; a free axis that comes back, and a dimension of size 1, get a label of their own."""
    found: list[str | Composite] = []
    for dimension, segments in enumerate(row):
        own = f"free:{name}:{dimension}"
        if not segments:
            found.append(own)
        elif len(segments) == len(segments[0]) == 1:
            known = labels[segments[0][0]]
            free = known.startswith(("in:", "out:", "free:"))
            found.append(own if free and known in found else known)
        else:
            found.append(Composite(tuple(tuple(labels[leaf] for leaf in segment) for segment in segments)))
    return tuple(found)
