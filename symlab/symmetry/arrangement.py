"""The dimensions of the parameters as concatenations of products of leaves, which is what a Composite says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from symlab.symmetry.axis_table import AxisTable, Dim, Reason, Value

Segments = tuple[Dim, ...]  # leaves of each segment; a dimension that is free as a whole is one axis without structure

INNER = Reason("the axis lies around a concatenation inside of it")
MOST_SEGMENTS = 512  # of a concatenation that is repeated for every unit of a free axis around it
MOST_USES = 2  # of one axis in one tensor


def arrange(axes: AxisTable, parameters: Mapping[str, Value]) -> dict[str, tuple[Segments, ...]]:
    """The segments of every dimension; axes become free where no Composite, or no known algebra, describes them."""
    for value in parameters.values():
        for dim in value.dims:
            _free_outer(axes, dim)
    for name, value in parameters.items():
        _free_repeated(axes, name, [_expand(axes, dim) for dim in value.dims])
    return {name: tuple(_segments(axes, dim) for dim in value.dims) for name, value in parameters.items()}


def _segments(axes: AxisTable, dim: Dim) -> Segments:
    if axes.is_free(dim):
        return (tuple(map(axes.find, dim)),) if dim else ()
    return _expand(axes, dim)


def _expand(axes: AxisTable, dim: Dim) -> Segments:
    """(a | b) x c = a x c | b x c, and for a free axis a of two units a x (b | c) = b | c | b | c."""
    factors = axes.factors(dim)
    place = _first_concatenation(axes, factors)
    if place is None:
        return (factors,) if factors else (tuple(map(axes.find, dim)),)
    parts = [part for axis in axes.parts(factors[place]) for part in _expand(axes, (axis, *factors[place + 1 :]))]
    return tuple(parts) * axes.dim_size(factors[:place])


def _first_concatenation(axes: AxisTable, factors: Dim) -> int | None:
    """Where the first concatenation is that is not free as a whole (such a one is an axis like any other)."""
    joined = (place for place, axis in enumerate(factors) if axes.parts(axis) != (axis,) and not axes.is_free((axis,)))
    return next(joined, None)


def _free_outer(axes: AxisTable, dim: Dim) -> None:
    """a x (b | c) with units of a that move is neither a concatenation nor a product of axes: a becomes free."""
    if axes.is_free(dim):
        return
    factors = axes.factors(dim)
    place = _first_concatenation(axes, factors)
    if place is None:
        return
    copies = axes.dim_size(factors[:place])
    if copies > 1:
        axes.pin([axis for axis in factors[:place] if not axes.is_free((axis,))], INNER)
    count = copies * len(axes.parts(factors[place]))
    if copies > 1 and count > MOST_SEGMENTS:
        axes.pin(factors[place:], Reason(f"a dimension would have {count} segments"))
        return
    for axis in axes.parts(factors[place]):
        _free_outer(axes, (axis, *factors[place + 1 :]))


def _free_repeated(axes: AxisTable, name: str, row: Sequence[Segments]) -> None:
    """An axis that indexes one part of a tensor more than twice has no known algebra."""
    for leaf, count in _uses(row).items():
        if count > MOST_USES and not axes.is_free((leaf,)):
            axes.pin([leaf], Reason(f"one axis indexes {count} dimensions of {name}"))


def repeated(row: Sequence[Segments]) -> set[int]:
    """The leaves that index one part of a tensor twice."""
    return {leaf for leaf, count in _uses(row).items() if count > 1}


def _uses(row: Sequence[Segments]) -> Counter[int]:
    """How often each leaf indexes one part of the tensor, for the part that has it most often."""
    counts: Counter[int] = Counter()
    for segments in row:
        most: Counter[int] = Counter()
        for segment in segments:
            most |= Counter(segment)
        counts += most
    return counts
