"""The isotypic blocks of a weight space: which pieces of which tensors share one matrix M_k.

Legend: k  block, named by the axes in state s (mean removed, or whole for B_n and O(n)) and the two-index states;
D_k  dimension of its irreducible piece;  m_k  number of copies;  N_k  coordinates per copy (product of axis sizes).
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from symlab.symmetry.groups import Group
from symlab.symmetry.layout import Part
from symlab.symmetry.two_index import TwoIndexPiece, two_index_pieces

_Irrep = tuple[str, str]  # axis and kind of piece


@dataclass(frozen=True)
class Pair:
    """Two dimensions of a batch of parts that one axis of n units indexes, in one of the pieces of R^n (x) R^n."""

    dims: tuple[int, int]
    size: int
    piece: TwoIndexPiece

    def extract(self, x: Tensor) -> Tensor:
        """[S, ..., n, ..., n, ...] -> the same with the coordinates' sizes in the two dimensions."""
        return self.piece.extract(x.movedim(self.dims, (-2, -1))).movedim((-2, -1), self.dims)

    def embed(self, x: Tensor) -> Tensor:
        """The adjoint of `extract`."""
        return self.piece.embed(x.movedim(self.dims, (-2, -1)), self.size).movedim((-2, -1), self.dims)


@dataclass(frozen=True)
class Piece:
    """The part of one tensor that lies in one block: rows `start:stop` of the block's [m_k, N_k] matrix.

    Dimensions are those of a batch of parts [S, *shape].
    """

    tensor: str
    part: int  # number of the part, counted over all tensors
    start: int
    stop: int
    mean_dims: tuple[int, ...]  # dimensions in state t: projected on 1/sqrt(n)
    centred_dims: tuple[int, ...]  # permutation dimensions in state s: mean removed
    pairs: tuple[Pair, ...]  # dimensions that share an axis
    order: tuple[int, ...]  # the samples, dimensions that count copies, those of the block's axes
    inverse: tuple[int, ...]  # undoes `order`
    ordered_shape: tuple[int, ...]  # sizes after the projection in that order, the samples as -1
    scale: float  # product over mean_dims of 1/sqrt(n)

    @cached_property
    def projections(self) -> tuple[tuple[int, bool], ...]:
        """The permutation dimensions that index nothing else, ascending, and whether their mean is removed."""
        return tuple(sorted([(d, False) for d in self.mean_dims] + [(d, True) for d in self.centred_dims]))

    def extract(self, projected: Tensor) -> Tensor:
        """The piece's rows [S, stop - start, N_k] of a batch of parts, summed and centred as `projections` says."""
        x = projected * self.scale if self.mean_dims else projected
        for pair in self.pairs:
            x = pair.extract(x)
        return x.permute(self.order).reshape(x.shape[0], self.stop - self.start, -1)

    def embed(self, rows: Tensor) -> Tensor:
        """The rows [S, stop - start, N_k] put back: [S, *shape], size 1 along `mean_dims` (to be broadcast)."""
        x = rows.reshape(self.ordered_shape).permute(self.inverse)
        for pair in self.pairs:
            x = pair.embed(x)
        return x * self.scale if self.mean_dims else x


@dataclass(frozen=True)
class Block:
    """One isotypic block: Sigma acts on it as M_k (x) identity of dimension `dimension`."""

    axes: tuple[str, ...]  # the axes in state s, in the order of the first tensor that has them all
    dimension: int  # D_k
    coordinates: int  # N_k
    copies: int  # m_k
    pieces: tuple[Piece, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Copies of each piece: they add up to m_k."""
        return [piece.stop - piece.start for piece in self.pieces]

    def __str__(self) -> str:
        tensors = ", ".join(dict.fromkeys(piece.tensor for piece in self.pieces))
        return f"{{{', '.join(self.axes)}}}: {self.copies} x {self.copies}, each {self.dimension}-fold ({tensors})"


def extract_all(pieces: Sequence[Piece], x: Tensor) -> Iterator[Tensor]:
    """The rows [S, stop - start, N_k] of each piece of one part, from a batch of it [S, *shape].

    A sum is taken once for all pieces whose projections begin alike.
    """
    known: dict[tuple[tuple[int, bool], ...], Tensor] = {(): x}
    for piece in pieces:
        for i, (d, _) in enumerate(piece.projections):
            begun = piece.projections[:i]
            kept, removed = (*begun, (d, False)), (*begun, (d, True))
            if kept not in known:
                whole = known[begun]
                known[kept] = whole.sum(d, keepdim=True)
                known[removed] = whole.sub(known[kept], alpha=1 / whole.shape[d])
        yield piece.extract(known[piece.projections])


def irreducible_dimension(group: Group, n: int) -> int:
    """Dimension of the piece in state s: n - 1 for S_n, n for B_n and O(n)."""
    return n - 1 if group is Group.PERMUTATION else n


@dataclass(frozen=True)
class _State:
    """One axis of a part in one irreducible piece. kind: None trivial, "" that of one index, else see two_index."""

    label: str
    kind: str | None
    dimension: int
    dims: tuple[int, ...]  # dimensions of a batch of parts that index the piece's coordinates
    pair: Pair | None = None

    @property
    def irrep(self) -> _Irrep:
        return (self.label, self.kind or "")


def build_blocks(
    parts: Sequence[tuple[str, Part]], sizes: Mapping[str, int], groups: Mapping[str, Group]
) -> tuple[Block, ...]:
    """All blocks, the one without axes (invariant vectors) first, of (tensor's name, part).

    `groups` holds the non-free axes only; none of them occurs more than twice in one part.
    """
    rank = {label: i for i, label in enumerate(sizes)}
    pieces: dict[frozenset[_Irrep], list[Piece]] = {}
    models: dict[frozenset[_Irrep], list[_State]] = {}  # the states that a block's first part has, in its order
    for number, (name, part) in enumerate(parts):
        for states in itertools.product(*_states(part, groups)):
            moving = {state.irrep: state for state in states if state.kind is not None}
            block = frozenset(moving)
            model = models.setdefault(block, sorted(moving.values(), key=lambda state: state.dims))
            rows = pieces.setdefault(block, [])
            block_dims = [d for state in model for d in moving[state.irrep].dims]
            rows.append(_piece(name, number, part, groups, states, block_dims, rows[-1].stop if rows else 0))
    ordered = sorted(pieces, key=lambda block: (len(block), sorted((rank[label], kind) for label, kind in block)))
    return tuple(
        Block(
            axes=tuple(f"{state.label}:{state.kind}" if state.kind else state.label for state in models[block]),
            dimension=math.prod(state.dimension for state in models[block]),
            coordinates=math.prod(sizes[state.label] ** len(state.dims) for state in models[block]),
            copies=pieces[block][-1].stop,
            pieces=tuple(pieces[block]),
        )
        for block in ordered
    )


def _states(part: Part, groups: Mapping[str, Group]) -> list[list[_State]]:
    """For each non-free axis of a part, the irreducible pieces that it can be in."""
    options = []
    for label in dict.fromkeys(a for a in part.labels if a in groups):
        group, dims = groups[label], tuple(d for d, a in enumerate(part.labels, start=1) if a == label)
        n = part.shape[dims[0] - 1]
        if len(dims) == 1:
            moving = [_State(label, "", irreducible_dimension(group, n), dims)]
            options.append([_State(label, None, 1, ()), *moving] if group is Group.PERMUTATION else moving)
        else:
            options.append(
                [
                    _State(
                        label, piece.kind, piece.dimension, dims[: piece.indices], Pair((dims[0], dims[1]), n, piece)
                    )
                    for piece in two_index_pieces(group, n)
                ]
            )
    return options


def _piece(
    name: str,
    number: int,
    part: Part,
    groups: Mapping[str, Group],
    states: Sequence[_State],
    block_dims: Sequence[int],
    start: int,
) -> Piece:
    pairs = tuple(state.pair for state in states if state.pair)
    paired = {d for pair in pairs for d in pair.dims}
    single = [d for d, a in enumerate(part.labels, start=1) if groups.get(a) is Group.PERMUTATION and d not in paired]
    mean_dims = tuple(d for d in single if d not in block_dims)
    reduced = {*mean_dims, *(paired - set(block_dims))}
    shape = [-1, *(1 if d in reduced else n for d, n in enumerate(part.shape, start=1))]
    copy_dims = [d for d in range(1, len(shape)) if d not in block_dims]
    order = (0, *copy_dims, *block_dims)
    return Piece(
        tensor=name,
        part=number,
        start=start,
        stop=start + math.prod(shape[d] for d in copy_dims),
        mean_dims=mean_dims,
        centred_dims=tuple(d for d in single if d in block_dims),
        pairs=pairs,
        order=order,
        inverse=tuple(sorted(range(len(order)), key=order.__getitem__)),
        ordered_shape=tuple(shape[d] for d in order),
        scale=math.prod(part.shape[d - 1] ** -0.5 for d in mean_dims),
    )
