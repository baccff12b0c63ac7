"""The isotypic blocks of a weight space: which pieces of which tensors share one matrix M_k.

Legend: k  block, named by the set of axes in state s (mean removed, or whole for B_n and O(n));
D_k  dimension of its irreducible piece;  m_k  number of copies;  N_k  coordinates per copy (product of axis sizes).
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from symlab.symmetry.groups import Group


@dataclass(frozen=True)
class Piece:
    """The part of one tensor that lies in one block: rows `start:stop` of the block's [m_k, N_k] matrix."""

    tensor: str
    start: int
    stop: int
    mean_dims: tuple[int, ...]  # dimensions in state t: projected on 1/sqrt(n)
    centred_dims: tuple[int, ...]  # permutation dimensions in state s: mean removed
    order: tuple[int, ...]  # dimensions of the tensor, first those that count copies, then the block's axes
    ordered_shape: tuple[int, ...]  # sizes after the projection, in that order
    scale: float  # product over mean_dims of 1/sqrt(n)

    def extract(self, tensor: Tensor) -> Tensor:
        """The piece's rows [S, stop - start, N_k] of a batch of tensors [S, *shape]."""
        x = tensor
        if self.mean_dims:
            x = x.sum([d + 1 for d in self.mean_dims], keepdim=True) * self.scale
        for d in self.centred_dims:
            x = x - x.mean(d + 1, keepdim=True)
        x = x.permute(0, *(d + 1 for d in self.order))
        return x.reshape(x.shape[0], self.stop - self.start, -1)

    def embed(self, rows: Tensor) -> Tensor:
        """The rows [S, stop - start, N_k] put back: [S, *shape], size 1 along `mean_dims` (to be broadcast)."""
        x = rows.reshape(rows.shape[0], *self.ordered_shape)
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        x = x.permute(0, *(i + 1 for i in inverse))
        return x * self.scale if self.mean_dims else x


@dataclass(frozen=True)
class Block:
    """One isotypic block: Sigma acts on it as M_k (x) identity of dimension `dimension`."""

    axes: tuple[str, ...]  # the axes in state s, in the order of the first tensor that has them all
    dimension: int  # D_k
    coordinates: int  # N_k
    copies: int  # m_k
    pieces: tuple[Piece, ...]

    def __str__(self) -> str:
        tensors = ", ".join(dict.fromkeys(piece.tensor for piece in self.pieces))
        return f"{{{', '.join(self.axes)}}}: {self.copies} x {self.copies}, each {self.dimension}-fold ({tensors})"


def irreducible_dimension(group: Group, n: int) -> int:
    """Dimension of the piece in state s: n - 1 for S_n, n for B_n and O(n)."""
    return n - 1 if group is Group.PERMUTATION else n


def build_blocks(
    axes: Mapping[str, tuple[str, ...]], sizes: Mapping[str, int], groups: Mapping[str, Group]
) -> tuple[Block, ...]:
    """All blocks, the one without axes (invariant vectors) first; `groups` holds the non-free axes only."""
    rank = {label: i for i, label in enumerate(sizes)}
    pieces: dict[tuple[str, ...], list[Piece]] = {}
    orders: dict[frozenset[str], tuple[str, ...]] = {}  # a block's axes in the order of its first tensor
    for name, labels in axes.items():
        permuted = [a for a in labels if groups.get(a) is Group.PERMUTATION]
        always = [a for a in labels if a in groups and a not in permuted]
        for count in range(len(permuted) + 1):
            for chosen in itertools.combinations(permuted, count):
                members = frozenset((*always, *chosen))
                block_axes = orders.setdefault(members, tuple(a for a in labels if a in members))
                rows = pieces.setdefault(block_axes, [])
                start = rows[-1].stop if rows else 0
                rows.append(_piece(name, labels, sizes, permuted, block_axes, start))
    ordered = sorted(pieces, key=lambda block_axes: (len(block_axes), sorted(rank[a] for a in block_axes)))
    return tuple(
        Block(
            axes=block_axes,
            dimension=math.prod(irreducible_dimension(groups[a], sizes[a]) for a in block_axes),
            coordinates=math.prod(sizes[a] for a in block_axes),
            copies=pieces[block_axes][-1].stop,
            pieces=tuple(pieces[block_axes]),
        )
        for block_axes in ordered
    )


def _piece(
    name: str,
    labels: tuple[str, ...],
    sizes: Mapping[str, int],
    permuted: list[str],
    block_axes: tuple[str, ...],
    start: int,
) -> Piece:
    mean_dims = tuple(d for d, a in enumerate(labels) if a in permuted and a not in block_axes)
    copy_dims = [d for d, a in enumerate(labels) if a not in block_axes]
    order = (*copy_dims, *(labels.index(a) for a in block_axes))
    shape = tuple(1 if d in mean_dims else sizes[a] for d, a in enumerate(labels))
    return Piece(
        tensor=name,
        start=start,
        stop=start + math.prod(shape[d] for d in copy_dims),
        mean_dims=mean_dims,
        centred_dims=tuple(d for d, a in enumerate(labels) if a in permuted and a in block_axes),
        order=order,
        ordered_shape=tuple(shape[d] for d in order),
        scale=math.prod(sizes[labels[d]] ** -0.5 for d in mean_dims),
    )
