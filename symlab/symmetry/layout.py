"""How the dimensions of a tensor are indexed by axes, and the tensor's parts: one axis per dimension each.

A dimension is indexed by one axis (a label), or by several (a `Composite`): a concatenation of segments, each a
row-major product of axes. The product over the dimensions of their segments cuts a tensor into *parts*; narrowed to
one segment per dimension and viewed with one dimension per axis, each part is a tensor with plain axes.

    in_proj [3 * 4 * 8, 32]   axes ([q x d | k x d | v x d], e)   parts [q, d, e], [k, d, e], [v, d, e]
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Composite:
    """One dimension indexed by several axes: segments laid end to end, each a row-major product of axes.

    A concatenation of channels is (("a",), ("b",)); a flattened image (("channel", "row", "column"),); the four gates
    of an LSTM with h units (("h",), ("h",), ("h",), ("h",)). The size is the sum over the segments of the product of
    the sizes of their axes.

    Raises:
        ValueError: there is no segment, one has no label, or one is a bare label instead of a tuple of labels.
    """

    segments: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        bare = [segment for segment in self.segments if not isinstance(segment, tuple)]
        if bare:
            raise ValueError(f"each segment is a tuple of labels, ({bare[0]!r},) for one: got {self.segments}")
        if not self.segments or not all(self.segments):
            raise ValueError(f"a composite needs segments of at least one label each, got {self.segments}")

    def __str__(self) -> str:
        return f"[{' | '.join(' x '.join(segment) for segment in self.segments)}]"


Axis = str | Composite


@dataclass(frozen=True)
class Part:
    """One segment per dimension of a tensor: itself a tensor [*shape] with one axis per dimension."""

    labels: tuple[str, ...]
    shape: tuple[int, ...]
    windows: tuple[tuple[int, int, int], ...]  # dimension of the tensor (from the end), start, length
    cut_shape: tuple[int, ...]  # narrowed, before products are viewed as several dimensions

    def cut(self, tensor: Tensor) -> Tensor:
        """[..., *shape] from the whole tensor [..., *tensor shape]; a view where the tensor's strides allow."""
        lead = tensor.shape[: tensor.ndim - len(self.cut_shape)]
        for window in self.windows:
            tensor = tensor.narrow(*window)
        return tensor.reshape(*lead, *self.shape)


@dataclass(frozen=True)
class TensorLayout:
    """The parts of one tensor, the segments of its last dimension varying fastest."""

    shape: tuple[int, ...]
    segments: tuple[int, ...]  # number per dimension
    parts: tuple[Part, ...]
    numbers: tuple[int, ...]  # of the parts, counted over all tensors
    plain: bool  # one part, which is the tensor as it stands

    def cut(self, tensor: Tensor) -> list[Tensor]:
        """Each part [..., *part.shape] of a tensor [..., *shape]."""
        return [tensor] if self.plain else [part.cut(tensor) for part in self.parts]

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """The inverse of `cut`: [S, *shape], from parts that may be of size 1 where they are to be broadcast."""
        if self.plain:
            return pieces[0].expand(-1, *self.shape)
        whole = [
            piece.expand(-1, *part.shape).reshape(-1, *part.cut_shape)
            for piece, part in zip(pieces, self.parts, strict=True)
        ]
        for d, count in reversed(list(enumerate(self.segments))):
            if count > 1:
                whole = [torch.cat(whole[i : i + count], dim=d + 1) for i in range(0, len(whole), count)]
        return whole[0]


def plain_if_single(axis: Axis) -> Axis:
    """A composite of one segment with one label is that label."""
    if isinstance(axis, Composite) and len(axis.segments) == 1 and len(axis.segments[0]) == 1:
        return axis.segments[0][0]
    return axis


def segments_of(axis: Axis) -> tuple[tuple[str, ...], ...]:
    """The segments of one dimension; a label is one segment."""
    return axis.segments if isinstance(axis, Composite) else ((axis,),)


def axis_sizes(
    axes: Mapping[str, tuple[Axis, ...]], shapes: Mapping[str, Sequence[int]], given: Mapping[str, int]
) -> dict[str, int]:
    """Label -> size, in the order of first occurrence; `given` holds at least those that no plain dimension fixes.

    Raises:
        ValueError: see `WeightSymmetry`.
    """
    if set(axes) != set(shapes):
        raise ValueError(f"axes and shapes must name the same tensors, differ in {sorted(set(axes) ^ set(shapes))}")
    known = dict(given)
    for label, n in given.items():
        if not n >= 1:
            raise ValueError(f"sizes[{label!r}] must be at least 1, got {n}")
    for name, row in axes.items():
        shape = tuple(shapes[name])
        if len(row) != len(shape):
            raise ValueError(f"{name} has {len(shape)} dimensions {list(shape)} but {len(row)} labels {row}")
        if 0 in shape:
            raise ValueError(f"{name} is empty: shape {list(shape)}; leave empty tensors out of the symmetry")
        for axis, n in zip(row, shape, strict=True):
            if isinstance(axis, str) and known.setdefault(axis, n) != n:
                raise ValueError(f"axis {axis!r} has size {known[axis]} elsewhere but {n} in {name} {list(shape)}")
    _check_composites(axes, shapes, known)
    used = (label for row in axes.values() for axis in row for segment in segments_of(axis) for label in segment)
    return {label: known[label] for label in dict.fromkeys(used)}


def _check_composites(
    axes: Mapping[str, tuple[Axis, ...]], shapes: Mapping[str, Sequence[int]], known: Mapping[str, int]
) -> None:
    for name, row in axes.items():
        for d, (axis, n) in enumerate(zip(row, shapes[name], strict=True)):
            unknown = [label for segment in segments_of(axis) for label in segment if label not in known]
            if unknown:
                raise ValueError(
                    f"{name}, dimension {d} {axis}: no dimension has the axis {unknown[0]!r} alone, so its size is not "
                    "known: give it in sizes"
                )
            lengths = [math.prod(known[label] for label in segment) for segment in segments_of(axis)]
            if sum(lengths) != n:
                raise ValueError(
                    f"{name}, dimension {d} {axis}: the segments have {' + '.join(map(str, lengths))} = {sum(lengths)} "
                    f"units, the tensor {list(shapes[name])} has {n}"
                )


def tensor_layouts(
    axes: Mapping[str, tuple[Axis, ...]], shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]
) -> dict[str, TensorLayout]:
    """The parts of each tensor, numbered in the order of `axes`."""
    layouts: dict[str, TensorLayout] = {}
    count = 0
    for name, row in axes.items():
        parts = tuple(_parts(row, shapes[name], sizes))
        layouts[name] = TensorLayout(
            shape=shapes[name],
            segments=tuple(len(segments_of(axis)) for axis in row),
            parts=parts,
            numbers=tuple(range(count, count + len(parts))),
            plain=all(isinstance(axis, str) for axis in row),
        )
        count += len(parts)
    return layouts


def _parts(row: tuple[Axis, ...], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Iterator[Part]:
    options = []  # per dimension: (segment, start, length)
    for axis in row:
        lengths = [math.prod(sizes[label] for label in segment) for segment in segments_of(axis)]
        starts = [0, *itertools.accumulate(lengths)]
        options.append(list(zip(segments_of(axis), starts, lengths, strict=False)))
    for chosen in itertools.product(*options):
        labels = tuple(label for segment, _, _ in chosen for label in segment)
        windows = tuple(
            (d - len(row), start, length) for d, (_, start, length) in enumerate(chosen) if length < shape[d]
        )
        yield Part(
            labels=labels,
            shape=tuple(sizes[label] for label in labels),
            windows=windows,
            cut_shape=tuple(length for _, _, length in chosen),
        )
