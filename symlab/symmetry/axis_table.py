"""Axes under construction: which dimensions index the same units, and under which group.

Every dimension of every tensor starts with an axis of its own, under the largest group. Handlers then *merge* axes
and *restrict* their groups, always downwards along

    orthogonal > signed permutation > permutation > trivial (free),

so the result does not depend on the order of the rules. A dimension of an activation is a tuple of axes, row-major:
one axis as a rule, several after a flatten, none for a dimension of size 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from symlab.symmetry.groups import Group

Dim = tuple[int, ...]  # axis ids whose sizes multiply to the dimension's size

_RANK = {Group.TRIVIAL: 0, Group.PERMUTATION: 1, Group.SIGNED_PERMUTATION: 2, Group.ORTHOGONAL: 3}


@dataclass(frozen=True)
class Reason:
    """Why an axis is free. `expected` reasons (inputs, outputs, kernel positions) give no warning."""

    text: str
    expected: bool = False
    role: str = ""  # what the axis is, if the reason says it: input, output, kernel, position


JOINED_FREE = Reason("joined with a free axis", expected=True)


@dataclass(frozen=True)
class Value:
    """The axes of one tensor in the trace: dims[i] are the axes of dimension i, source its name if it is state."""

    dims: tuple[Dim, ...]
    source: str | None = None
    of_input: bool = False  # depends on the model's inputs

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(axis for dim in self.dims for axis in dim)


class AxisTable:
    """Union-find over axes; each class carries its size, its group and the reasons that made it free."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._group: list[Group] = []
        self._reasons: list[dict[Reason, None]] = []
        self._limits: list[dict[tuple[Group, str], None]] = []  # (group, what lowered the axis to it)
        self._residual: list[bool] = []  # activations are added along the axis
        self.operator = ""  # whose handler is running
        self.statistics: dict[str, tuple[Dim, ...]] = {}  # buffer name -> axes it follows (running means)

    def new(self, size: int) -> int:
        """A new axis of `size` > 1 units under the largest group."""
        self._parent.append(len(self._parent))
        self._size.append(size)
        self._group.append(Group.ORTHOGONAL)
        self._reasons.append({})
        self._limits.append({})
        self._residual.append(False)
        return len(self._parent) - 1

    def new_dim(self, size: int) -> Dim:
        """The axes of a new dimension: none for size 1."""
        return () if size == 1 else (self.new(size),)

    def new_value(self, shape: Sequence[int], reason: Reason | None = None, source: str | None = None) -> Value:
        """A tensor with an axis of its own on every dimension; free for `reason` if one is given."""
        value = Value(tuple(self.new_dim(size) for size in shape), source)
        if reason is not None:
            self.pin(value.axes, reason)
        return value

    def find(self, axis: int) -> int:
        while self._parent[axis] != axis:
            self._parent[axis] = self._parent[self._parent[axis]]
            axis = self._parent[axis]
        return axis

    def size(self, axis: int) -> int:
        return self._size[self.find(axis)]

    def group(self, axis: int) -> Group:
        return self._group[self.find(axis)]

    def reasons(self, axis: int) -> tuple[Reason, ...]:
        return tuple(self._reasons[self.find(axis)])

    def limits(self, axis: int) -> tuple[str, ...]:
        """The operators that lowered the axis to its present group."""
        root = self.find(axis)
        return tuple(text for group, text in self._limits[root] if group is self._group[root])

    def is_residual(self, axis: int) -> bool:
        return self._residual[self.find(axis)]

    def mark_residual(self, axes: Iterable[int]) -> None:
        """Two activations that both depend on the inputs are added along these axes."""
        for axis in axes:
            self._residual[self.find(axis)] = True

    def is_free(self, axes: Iterable[int]) -> bool:
        return all(self.group(axis) is Group.TRIVIAL for axis in axes)

    def dim_size(self, dim: Dim) -> int:
        return math.prod(self.size(axis) for axis in dim)

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(self.dim_size(dim) for dim in value.dims)

    def restrict(self, axes: Iterable[int], group: Group) -> None:
        """Lower the group of each axis to at most `group` (which is not trivial: see pin)."""
        for axis in axes:
            root = self.find(axis)
            self._group[root] = min(self._group[root], group, key=_RANK.__getitem__)
            self._limits[root][group, self.operator] = None

    def pin(self, axes: Iterable[int], reason: Reason) -> None:
        """Make each axis free."""
        for axis in axes:
            root = self.find(axis)
            self._group[root] = Group.TRIVIAL
            self._reasons[root][reason] = None

    def merge(self, first: int, second: int) -> None:
        """The two axes index the same units: one class, under the smaller group."""
        a, b = sorted((self.find(first), self.find(second)))
        if self._size[a] != self._size[b]:
            raise ValueError(f"cannot merge axes of {self._size[a]} and {self._size[b]} units")
        if a != b:
            self._parent[b] = a
            self._group[a] = min(self._group[a], self._group[b], key=_RANK.__getitem__)
            self._reasons[a].update(self._reasons[b])
            self._limits[a].update(self._limits[b])
            self._residual[a] = self._residual[a] or self._residual[b]

    def unify(self, first: Dim, second: Dim) -> None:
        """The two dimensions index the same units.

        One axis against a flattened product of several axes cannot be kept: a parameter's dimension has one axis,
        so all become free.
        """
        if [self.size(axis) for axis in first] == [self.size(axis) for axis in second]:
            for a, b in zip(first, second, strict=True):
                self.merge(a, b)
        else:
            sizes = " x ".join(str(self.size(axis)) for axis in max(first, second, key=len))
            self.loosen(first, second, Reason(f"a dimension flattened from {sizes} meets an unflattened one"))

    def loosen(self, first: Iterable[int], second: Iterable[int], reason: Reason) -> None:
        """Make both sides free; no news (an expected reason) if one of them is free already."""
        first, second = tuple(first), tuple(second)
        known = [reasons for side in (first, second) if self.is_free(side) for reasons in map(self.reasons, side)]
        expected = dict.fromkeys(why for reasons in known for why in reasons if why.expected)
        for why in [JOINED_FREE, *expected] if known else [reason]:
            self.pin((*first, *second), why)
