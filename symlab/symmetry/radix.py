"""Row-major products of sizes, such as [6, 4] and [2, 12]: where they agree, and a product finer than both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence


def blocks(first: Sequence[int], second: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """The smallest runs of both with equal products, in order: [6, 4, 3] and [2, 12, 3] -> [6, 4] ~ [2, 12], [3] ~ [3].

    All sizes are > 1 and the products of the whole are equal.
    """
    i = j = 0
    while i < len(first):
        start, other = i, j
        have, need = first[i], second[j]
        i, j = i + 1, j + 1
        while have != need:
            if have < need:
                have, i = have * first[i], i + 1
            else:
                need, j = need * second[j], j + 1
        yield slice(start, i), slice(other, j)


def common_product(first: Sequence[int], second: Sequence[int]) -> tuple[list[list[int]], list[list[int]]] | None:
    """Each size of both written as a product such that all pieces of the first are those of the second, in order.

    [6, 4] and [2, 12] -> [[2, 3], [4]] and [[2], [3, 4]]; None if there is none, as for [6, 4] and [4, 6].
    """
    ends = [list(itertools.accumulate(sizes, int.__mul__)) for sizes in (first, second)]
    boundaries = sorted({*ends[0], *ends[1]})
    if any(larger % smaller for smaller, larger in itertools.pairwise(boundaries)):
        return None
    steps = dict(zip(boundaries, [boundaries[0], *(b // a for a, b in itertools.pairwise(boundaries))], strict=True))
    pieces = []
    for own in ends:
        starts = [1, *own[:-1]]
        pieces.append([[steps[b] for b in boundaries if a < b <= end] for a, end in zip(starts, own, strict=True)])
    return pieces[0], pieces[1]


def multiples(outer: int, inner: int) -> list[int]:
    """The boundaries inside of outer x inner units, laid out as `outer` segments."""
    return [i * inner for i in range(1, outer)]
