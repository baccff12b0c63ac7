"""Many small tensors cut as few larger ones: parts with the same pieces are laid behind one another as samples.

A deep net has many tensors of one shape (two vectors per normalization, a convolution per layer), and for small ones
the time of a step is that of the calls.

Legend: S  number of samples;  B  parts of one stack;  k  isotypic block;  G_k [S, m_k, N_k]  the pieces in it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from symlab.symmetry.blocks import Block, Piece, extract_all
from symlab.symmetry.layout import Part

MOST_ENTRIES = 2**14  # of one part: above it, copying costs more than the calls that a stack saves

_Place = tuple[int, int]  # number of the block, number of the piece in it


@dataclass(frozen=True)
class Stack:
    """Parts of one shape whose pieces are extracted and embedded alike."""

    parts: tuple[int, ...]  # [B] their numbers, counted over all tensors
    entries: int  # of each part
    pieces: tuple[Piece, ...]  # of the first part
    places: tuple[tuple[_Place, ...], ...]  # for each of `pieces`: [B] where it and its likes are
    singles: tuple["Stack", ...]  # the same parts one by one; empty if there is only one

    def batches(self, samples: int) -> tuple["Stack", ...]:
        """The stack, or its parts one by one where they are large."""
        return self.singles if self.singles and samples * self.entries > MOST_ENTRIES else (self,)

    def extract(self, parts: Sequence[Tensor], rows: dict[_Place, Tensor]) -> None:
        """Sets the rows [S, m, N_k] of every piece, by place; `parts` [S, *shape] are those of all tensors."""
        x = _laid_out([parts[i] for i in self.parts])  # [B S, *shape]
        for places, y in zip(self.places, extract_all(self.pieces, x), strict=True):
            if len(places) == 1:
                rows[places[0]] = y
            else:
                rows.update(zip(places, _taken_apart(y, len(places)), strict=True))

    def embed(self, rows: Sequence[Sequence[Tensor]]) -> Iterator[tuple[int, Tensor]]:
        """Each part's number and the sum of its pieces [S, *shape], size 1 where it is to be broadcast.

        `rows` [S, m, N_k]: of every piece of every block.
        """
        x = None
        for piece, places in zip(self.pieces, self.places, strict=True):
            y = piece.embed(_laid_out([rows[k][j] for k, j in places]))  # [B S, *shape]
            x = y if x is None else x + y
        if x is not None:
            yield from zip(self.parts, _taken_apart(x, len(self.parts)), strict=True)


def stacks_of(parts: Sequence[Part], blocks: Sequence[Block]) -> tuple[Stack, ...]:
    """All parts, each in one stack."""
    pieces: list[list[Piece]] = [[] for _ in parts]
    places: list[list[_Place]] = [[] for _ in parts]
    for k, block in enumerate(blocks):
        for j, piece in enumerate(block.pieces):
            pieces[piece.part].append(piece)
            places[piece.part].append((k, j))
    alike: dict[tuple[tuple[int, ...], tuple[Piece, ...]], list[int]] = {}
    for number, part in enumerate(parts):
        key = (part.shape, tuple(_without_place(piece) for piece in pieces[number]))
        alike.setdefault(key, []).append(number)
    stacks = []
    for numbers in alike.values():
        entries = math.prod(parts[numbers[0]].shape)
        each = tuple(Stack((i,), entries, tuple(pieces[i]), tuple((p,) for p in places[i]), ()) for i in numbers)
        if len(each) > 1:
            together = tuple(zip(*(places[i] for i in numbers), strict=True))
            stacks.append(Stack(tuple(numbers), entries, each[0].pieces, together, each))
        else:
            stacks += each
    return tuple(stacks)


def split_parts(stacks: Sequence[Stack], blocks: Sequence[Block], parts: Sequence[Tensor]) -> list[Tensor]:
    """G_k [S, m_k, N_k] for each block k, from the parts [S, *shape] of all tensors."""
    rows: dict[_Place, Tensor] = {}
    for stack in stacks:
        for batch in stack.batches(parts[stack.parts[0]].shape[0]):
            batch.extract(parts, rows)
    gathered = [[rows[k, j] for j in range(len(block.pieces))] for k, block in enumerate(blocks)]
    return [torch.cat(pieces, dim=1) if len(pieces) > 1 else pieces[0] for pieces in gathered]


def merge_parts(stacks: Sequence[Stack], blocks: Sequence[Block], rows: Sequence[Tensor]) -> dict[int, Tensor]:
    """The inverse of `split_parts`, by number of the part; size 1 where a part is to be broadcast."""
    pieces = [
        g.split(block.sizes, dim=1) if len(block.pieces) > 1 else (g,) for block, g in zip(blocks, rows, strict=True)
    ]
    batches = [batch for stack in stacks for batch in stack.batches(rows[0].shape[0])]
    return {number: x for batch in batches for number, x in batch.embed(pieces)}


def _laid_out(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]


def _taken_apart(x: Tensor, count: int) -> Sequence[Tensor]:
    return x.view(count, x.shape[0] // count, *x.shape[1:]).unbind() if count > 1 else (x,)


def _without_place(piece: Piece) -> Piece:
    return replace(piece, tensor="", part=0, start=0, stop=piece.stop - piece.start)
