"""Reshapes that cut one axis into several, undecided until it is seen what becomes of the result.

If the result [k, e] is taken apart along k (query, key and value of one projection), the axis is a concatenation of k
axes of size e, each with a group of its own; if it meets any other operation, it is the product of an axis k and an
axis e. Both at once have the common refinement that AxisTable gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from symlab.symmetry.axis_table import AxisTable, Dim, NoCommonRefinement, Value
from symlab.symmetry.radix import multiples


@dataclass
class Cut:
    """A reshape of `axis` to the sizes of `members`; layers[i] are members[1:] at index i of members[0]."""

    axis: int
    members: Dim
    layers: list[dict[int, Dim]] = field(default_factory=list)


class WaitingCuts:
    """The cuts of one table's axes that are still undecided."""

    def __init__(self, axes: AxisTable) -> None:
        self._axes = axes
        self._cuts: dict[int, Cut] = {}  # member -> its cut

    def __contains__(self, axis: int) -> bool:
        return axis in self._cuts

    def whole(self, dim: Dim) -> Dim:
        """The axis that was cut into exactly these members, else the dimension as it is."""
        cut = self._cuts.get(dim[0]) if dim else None
        return (cut.axis,) if cut is not None and cut.members == dim else dim

    def add(self, axis: int, sizes: Sequence[int]) -> Mapping[int, Dim]:
        """Cut the axis: it, and the members that it belongs with if it comes from a cut itself -> their new members."""
        outer = self._cuts.get(axis)
        old = (axis,) if outer is None else outer.members
        fresh = {a: tuple(map(self._axes.new, sizes if a == axis else [self._axes.size(a)])) for a in old}
        cut = Cut(axis if outer is None else outer.axis, tuple(new for a in old for new in fresh[a]))
        self._cuts.update(dict.fromkeys(cut.members, cut))
        return fresh

    def settle(self, values: Iterable[Value]) -> None:
        """These tensors are used as they are: each axis that was cut is the product of its members."""
        for value in values:
            for axis in value.axes:
                cut = self._cuts.get(axis)
                if cut is not None:
                    for member in cut.members:
                        del self._cuts[member]
                    self._axes.unify((cut.axis,), cut.members)

    def layer(self, dim: Dim, index: int) -> Mapping[int, Dim] | None:
        """If `dim` is the first member of a cut: the other members, at one index of it."""
        cut = self._cuts.get(dim[0]) if len(dim) == 1 else None
        if cut is None or cut.members[0] != dim[0]:
            return None
        try:
            self._open(cut)
        except NoCommonRefinement:
            return None
        return cut.layers[index]

    def _open(self, cut: Cut) -> None:
        if cut.layers:
            return
        axes, inner = self._axes, cut.members[1:]
        sizes = [axes.size(member) for member in inner]
        for part in axes.cut((cut.axis,), multiples(axes.size(cut.members[0]), axes.dim_size(inner))):
            fresh = axes.split(part, sizes)
            cut.layers.append({member: (new,) for member, new in zip(inner, fresh, strict=True)})
