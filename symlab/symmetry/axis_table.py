"""Axes under construction: which dimensions index the same units, and under which group.

Every dimension of every tensor starts with an axis of its own, under the largest group. Handlers then *merge* axes,
*restrict* their groups along

    orthogonal > signed permutation > permutation > trivial (free),

and *refine* them: an axis becomes a concatenation of axes (sizes add up, S_(a+b) > S_a x S_b) or a row-major product
of axes (sizes multiply, S_(ab) > S_a x S_b). Every step goes downwards, so the result does not depend on the order
of the rules. Two structures of the same units get their common refinement; where there is none, all becomes free.

A dimension of an activation is a tuple of axes, a row-major product: none for a dimension of size 1. An axis without
structure is a *leaf*; groups and reasons belong to leaves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from symlab.symmetry.groups import Group
from symlab.symmetry.radix import blocks, common_product

Dim = tuple[int, ...]  # axis ids whose sizes multiply to the dimension's size

_RANK = {Group.TRIVIAL: 0, Group.PERMUTATION: 1, Group.SIGNED_PERMUTATION: 2, Group.ORTHOGONAL: 3}


@dataclass(frozen=True)
class Reason:
    """Why an axis is free. `expected` reasons (inputs, outputs, kernel positions) give no warning."""

    text: str
    expected: bool = False
    role: str = ""  # what the axis is, if the reason says it: input, output, kernel, position


INPUT = Reason("model input", expected=True, role="input")
OUTPUT = Reason("model output", expected=True, role="output")
ONE_UNIT = Reason("one unit", expected=True)
SINGLE_UNITS = Reason("single units side by side", expected=True)


@dataclass(frozen=True)
class Value:
    """The axes of one tensor in the trace: dims[i] are the axes of dimension i, source its name if it is state."""

    dims: tuple[Dim, ...]
    source: str | None = None
    of_input: bool = False  # depends on the model's inputs
    zero: bool = False  # filled with zeros, for good

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(axis for dim in self.dims for axis in dim)


@dataclass(frozen=True)
class Concatenation:
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Product:
    axes: tuple[int, ...]


class NoCommonRefinement(Exception):
    """Two structures of the same units fit no common one."""


class AxisTable:
    """Union-find over axes; each class carries its size and either a structure, or a group and the reasons for it."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._structure: list[Concatenation | Product | None] = []
        self._group: list[Group] = []
        self._reasons: list[dict[Reason, None]] = []
        self._limits: list[dict[tuple[Group, str], None]] = []  # (group, what lowered the axis to it)
        self._residual: list[bool] = []  # activations are added along the axis
        self.operator = ""  # whose handler is running
        self.statistics: dict[str, tuple[Dim, ...]] = {}  # buffer name -> axes it follows (running means)

    # Axes and what is known of them ----------------------------------------------------------------------------------

    def new(self, size: int) -> int:
        """A new axis of `size` units under the largest group (a single unit is free)."""
        self._parent.append(len(self._parent))
        self._size.append(size)
        self._structure.append(None)
        self._group.append(Group.ORTHOGONAL if size > 1 else Group.TRIVIAL)
        self._reasons.append({} if size > 1 else {ONE_UNIT: None})
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

    def leaves(self, axes: Iterable[int]) -> Iterator[int]:
        """The axes without structure that the given ones consist of."""
        for axis in axes:
            root = self.find(axis)
            structure = self._structure[root]
            if structure is None:
                yield root
            else:
                yield from self.leaves(structure.axes)

    def factors(self, dim: Iterable[int]) -> Dim:
        """The dimension as a product of leaves and concatenations, none of size 1."""
        found: list[int] = []
        for axis in dim:
            root = self.find(axis)
            structure = self._structure[root]
            if isinstance(structure, Product):
                found.extend(self.factors(structure.axes))
            elif self._size[root] > 1:
                found.append(root)
        return tuple(found)

    def parts(self, axis: int) -> Dim:
        """The axes that a concatenation joins, none of them a concatenation; the axis itself if it is none."""
        root = self.find(axis)
        factors = self.factors((root,))
        if len(factors) == 1:
            root = factors[0]
        structure = self._structure[root]
        if not isinstance(structure, Concatenation):
            return (root,)
        return tuple(part for axis in structure.axes for part in self.parts(axis))

    def size(self, axis: int) -> int:
        return self._size[self.find(axis)]

    def dim_size(self, dim: Dim) -> int:
        return math.prod(self.size(axis) for axis in dim)

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(self.dim_size(dim) for dim in value.dims)

    def group(self, axis: int) -> Group:
        """The smallest group of the axis's leaves."""
        return min((self._group[leaf] for leaf in self.leaves((axis,))), key=_RANK.__getitem__)

    def reasons(self, axis: int) -> tuple[Reason, ...]:
        return tuple(dict.fromkeys(why for leaf in self.leaves((axis,)) for why in self._reasons[leaf]))

    def limits(self, leaf: int) -> tuple[str, ...]:
        """The operators that lowered a leaf to its present group."""
        return tuple(text for group, text in self._limits[leaf] if group is self._group[leaf])

    def is_residual(self, axis: int) -> bool:
        return any(self._residual[leaf] for leaf in self.leaves((axis,)))

    def is_free(self, axes: Iterable[int]) -> bool:
        return all(self._group[leaf] is Group.TRIVIAL for leaf in self.leaves(axes))

    # Restrictions ----------------------------------------------------------------------------------------------------

    def mark_residual(self, axes: Iterable[int]) -> None:
        """Two activations that both depend on the inputs are added along these axes."""
        for leaf in self.leaves(axes):
            self._residual[leaf] = True

    def restrict(self, axes: Iterable[int], group: Group) -> None:
        """Lower the group of each axis to at most `group` (which is not trivial: see pin)."""
        for leaf in self.leaves(axes):
            self._group[leaf] = min(self._group[leaf], group, key=_RANK.__getitem__)
            self._limits[leaf][group, self.operator] = None

    def pin(self, axes: Iterable[int], reason: Reason) -> None:
        """Make each axis free."""
        for leaf in self.leaves(axes):
            self._group[leaf] = Group.TRIVIAL
            self._reasons[leaf][reason] = None

    def loosen(self, first: Iterable[int], second: Iterable[int], reason: Reason) -> None:
        """Make both sides free; if one of them is free already, for the reasons for which that one is."""
        sides = tuple(first), tuple(second)
        free = [side for side in sides if self.is_free(side)]
        known = [why for side in free for axis in side for why in self.reasons(axis)]
        for side in sides:
            if side not in free:
                for why in known or [reason]:
                    self.pin(side, why)

    def free_part(self, dim: Dim, size: int) -> Dim:
        """A new dimension that is free for the reasons for which `dim` is (which has no axis if it is one unit)."""
        fresh = self.new_dim(size)
        for reason in [why for axis in dim for why in self.reasons(axis)] or [SINGLE_UNITS]:
            self.pin(fresh, reason)
        return fresh

    def _inherit(self, root: int, leaves: Iterable[int]) -> None:
        for leaf in leaves:
            self._group[leaf] = min(self._group[leaf], self._group[root], key=_RANK.__getitem__)
            self._reasons[leaf].update(self._reasons[root])
            self._limits[leaf].update(self._limits[root])
            self._residual[leaf] = self._residual[leaf] or self._residual[root]

    # Structures ------------------------------------------------------------------------------------------------------

    def unify(self, first: Dim, second: Dim) -> None:
        """The two dimensions index the same units: both get the common refinement, or become free if there is none."""
        misfit = Reason(f"{self.operator} joins axes whose parts do not fit")
        sizes = [[self.size(axis) for axis in self.factors(dim)] for dim in (first, second)]
        if sizes[0] != sizes[1] and (self.is_free(first) or self.is_free(second)):
            self.loosen(first, second, misfit)
            return
        try:
            self._match(first, second)
        except NoCommonRefinement:
            self.loosen(first, second, misfit)

    def merge(self, first: int, second: int) -> None:
        """The two axes index the same units: one class."""
        a, b = sorted((self.find(first), self.find(second)))
        if self._size[a] != self._size[b]:
            raise ValueError(f"cannot merge axes of {self._size[a]} and {self._size[b]} units")
        if a == b:
            return
        if self._structure[a] is not None and self._structure[b] is not None:
            self._match_structures(a, b)
        elif self._structure[b] is not None:
            a, b = b, a
        if self._structure[b] is None:
            self._inherit(b, self.leaves((a,)))
        self._parent[self.find(b)] = self.find(a)

    def join(self, dims: Iterable[Dim]) -> Dim:
        """The concatenation of these dimensions (of size 1 as well)."""
        return (self._concatenation([self._axis_of(dim) for dim in dims]),)

    def cut(self, dim: Dim, boundaries: Sequence[int]) -> list[Dim]:
        """The parts of a dimension between these boundaries inside of it, in order. Raises NoCommonRefinement."""
        return [self.factors((axis,)) for axis in self._segments(dim, sorted(set(boundaries)))]

    def split(self, dim: Dim, sizes: Sequence[int]) -> Dim:
        """The dimension as a product of new axes of these sizes. Raises NoCommonRefinement."""
        fresh = tuple(self.new(size) for size in sizes)
        self._match(dim, fresh)
        return fresh

    def _axis_of(self, dim: Dim) -> int:
        factors = self.factors(dim)
        if len(factors) == 1:
            return factors[0]
        axis = self.new(self.dim_size(factors))
        if factors:
            self._structure[axis] = Product(factors)
        return axis

    def _concatenation(self, axes: Sequence[int]) -> int:
        if len(axes) == 1:
            return axes[0]
        joined = self.new(sum(self.size(axis) for axis in axes))
        self._structure[joined] = Concatenation(tuple(part for axis in axes for part in self.parts(axis)))
        return joined

    def _refine(self, root: int, structure: Concatenation | Product) -> None:
        self._structure[root] = structure
        self._inherit(root, self.leaves(structure.axes))

    def _match(self, first: Dim, second: Dim) -> None:
        f, g = self.factors(first), self.factors(second)
        sizes = [[self.size(axis) for axis in side] for side in (f, g)]
        for own, other in blocks(*sizes):
            a, b = f[own], g[other]
            if len(a) == len(b) == 1:
                self.merge(a[0], b[0])
            elif len(a) == 1:
                self._match_product(a[0], b)
            elif len(b) == 1:
                self._match_product(b[0], a)
            else:
                self._match_products(a, b)

    def _match_product(self, axis: int, factors: Dim) -> None:
        root = self.find(axis)
        structure = self._structure[root]
        if structure is None:
            self._refine(root, Product(factors))
        elif isinstance(structure, Product):
            self._match(structure.axes, factors)
        else:
            parts = self.parts(root)
            inner = self.dim_size(factors[1:])
            heads = self._segments(factors[:1], self._multiples_of(inner, self._boundaries(parts)))
            for part, head in zip(parts, heads, strict=True):
                self._match((part,), (head, *factors[1:]))
            self._structure[root] = Product(factors)

    def _match_products(self, first: Dim, second: Dim) -> None:
        pieces = common_product([self.size(axis) for axis in first], [self.size(axis) for axis in second])
        if pieces is None:
            raise NoCommonRefinement
        split = [
            [part for axis, sizes in zip(side, own, strict=True) for part in self.split((axis,), sizes)]
            for side, own in zip((first, second), pieces, strict=True)
        ]
        for a, b in zip(*split, strict=True):
            self.merge(a, b)

    def _match_structures(self, a: int, b: int) -> None:
        if isinstance(self._structure[a], Product) or isinstance(self._structure[b], Product):
            self._match(self.factors((a,)), self.factors((b,)))
            return
        boundaries = sorted({*self._boundaries(self.parts(a)), *self._boundaries(self.parts(b))})
        for p, q in zip(self._segments((a,), boundaries), self._segments((b,), boundaries), strict=True):
            self._match((p,), (q,))

    def _boundaries(self, parts: Sequence[int]) -> list[int]:
        return list(itertools.accumulate(self.size(part) for part in parts))[:-1]

    def _multiples_of(self, inner: int, boundaries: Sequence[int]) -> list[int]:
        if any(boundary % inner for boundary in boundaries):
            raise NoCommonRefinement
        return [boundary // inner for boundary in boundaries]

    def _segments(self, dim: Dim, boundaries: Sequence[int]) -> list[int]:
        """One axis for each part between the boundaries."""
        factors = self.factors(dim)
        if not boundaries:
            return [self._axis_of(factors)]
        if len(factors) > 1:
            heads = self._segments(factors[:1], self._multiples_of(self.dim_size(factors[1:]), boundaries))
            return [self._axis_of((head, *factors[1:])) for head in heads]
        root = factors[0]
        ends = [*boundaries, self._size[root]]
        if self._structure[root] is None:
            fresh = [self.new(end - start) for start, end in zip([0, *boundaries], ends, strict=True)]
            self._refine(root, Concatenation(tuple(fresh)))
            return fresh
        finer: list[int] = []
        start = 0
        for part in self.parts(root):
            end = start + self.size(part)
            inside = [boundary - start for boundary in boundaries if start < boundary < end]
            finer.extend(self._segments((part,), inside) if inside else [part])
            start = end
        self._structure[root] = Concatenation(tuple(finer))
        positions = list(itertools.accumulate(self.size(part) for part in finer))
        last = [positions.index(end) + 1 for end in ends]
        return [self._concatenation(finer[i:j]) for i, j in zip([0, *last], last, strict=False)]
