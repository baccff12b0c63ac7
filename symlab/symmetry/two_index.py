"""The algebra of an axis that indexes two dimensions of one tensor: R^n (x) R^n cut into irreducible pieces, exactly.

A recurrent matrix W[h, h] moves as g W g^T: both dimensions under the same g. The copies, each with the map that takes
the piece's coordinates to a matrix [n, n] (v a vector of mean zero, d_ij = 1 on the diagonal):

| group | irreducible piece | dimension | copies, as matrices |
|---|---|---|---|
| S_n | trivial | 1 | d_ij / sqrt(n);  (1 - d_ij) / sqrt(n (n - 1)) |
| S_n | standard | n - 1 | d_ij v_i;  (1 - d_ij)(v_i + v_j) / sqrt(2 (n - 2));  (v_i - v_j) / sqrt(2 n) |
| S_n | symmetric | n (n - 3) / 2 | symmetric, no diagonal, rows of sum zero |
| S_n | antisymmetric | (n - 1)(n - 2) / 2 | antisymmetric, rows of sum zero |
| B_n | trivial | 1 | d_ij / sqrt(n) |
| B_n | diagonal | n - 1 | d_ij v_i |
| B_n | symmetric, antisymmetric | n (n - 1) / 2 each | no diagonal |
| O(n) | trivial | 1 | d_ij / sqrt(n) |
| O(n) | symmetric | n (n + 1) / 2 - 1 | symmetric, trace zero |
| O(n) | antisymmetric | n (n - 1) / 2 | antisymmetric |

Copies of dimension 0 (n = 1, 2, 3) are left out; those that remain are irreducible and pairwise inequivalent for every
n. Standard pieces of S_n are those of a vector b[h], so they couple with it. Signs act on b[h] under B_n and not on the
diagonal of W, so "diagonal" is a piece of its own. Source: the decomposition of the square of the defining
representation, e.g. Fulton and Harris, Representation Theory (1991), exercise 4.19 for S_n.

All maps are isometric; `extract` is the adjoint of `embed`, and its inverse on the piece.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from symlab.symmetry.groups import Group


@dataclass(frozen=True)
class TwoIndexPiece:
    """One irreducible copy inside R^n (x) R^n; its coordinates have 0, 1 or 2 indices: [1, 1], [n, 1] or [n, n].

    `kind` names the irreducible piece beside the label: None for the trivial one, "" for the standard one, which is
    that of a single index.
    """

    kind: str | None
    dimension: int
    indices: int
    extract: Callable[[Tensor], Tensor]  # [..., n, n] -> its coordinates
    embed: Callable[[Tensor, int], Tensor]  # its coordinates, n -> [..., n, n]


def two_index_pieces(group: Group, n: int) -> tuple[TwoIndexPiece, ...]:
    """The copies that fill R^n (x) R^n under a non-trivial group: their dimensions add up to n^2."""
    half = n * (n - 1) // 2
    trace = TwoIndexPiece(None, 1, 0, _trace, _put_trace)
    diagonal = (1, _centred_diagonal, _put_diagonal)
    if group is Group.PERMUTATION:
        pieces = [
            trace,
            TwoIndexPiece(None, min(1, n - 1), 0, _off_diagonal_sum, _put_off_diagonal),
            TwoIndexPiece("", n - 1, *diagonal),
            TwoIndexPiece("", n - 1 if n > 2 else 0, 1, _symmetric_sums, _put_symmetric_sums),
            TwoIndexPiece("", n - 1, 1, _antisymmetric_sums, _put_antisymmetric_sums),
            TwoIndexPiece("symmetric", max(0, half - n), 2, _hollow_symmetric_centred, _put_matrix),
            TwoIndexPiece("antisymmetric", half - n + 1, 2, _antisymmetric_centred, _put_matrix),
        ]
    elif group is Group.SIGNED_PERMUTATION:
        pieces = [
            trace,
            TwoIndexPiece("diagonal", n - 1, *diagonal),
            TwoIndexPiece("symmetric", half, 2, _hollow_symmetric, _put_matrix),
            TwoIndexPiece("antisymmetric", half, 2, _antisymmetric, _put_matrix),
        ]
    else:
        pieces = [
            trace,
            TwoIndexPiece("symmetric", half + n - 1, 2, _traceless_symmetric, _put_matrix),
            TwoIndexPiece("antisymmetric", half, 2, _antisymmetric, _put_matrix),
        ]
    return tuple(piece for piece in pieces if piece.dimension > 0)


def _diagonal(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)  # [..., n, 1]


def _clear_diagonal(x: Tensor) -> Tensor:
    """x with its diagonal set to zero, in place: for new tensors only."""
    x.diagonal(dim1=-2, dim2=-1).zero_()
    return x


def _centred(v: Tensor) -> Tensor:
    return v - v.mean(-2, keepdim=True)  # [..., n, 1]


def _row_sums(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)  # [..., n, 1]


def _column_sums(x: Tensor) -> Tensor:
    return x.sum(-2, keepdim=True).mT  # [..., n, 1]


# --- trivial ---


def _trace(x: Tensor) -> Tensor:
    return _diagonal(x).sum(-2, keepdim=True) / math.sqrt(x.shape[-1])


def _put_trace(s: Tensor, n: int) -> Tensor:
    return _put_diagonal((s / math.sqrt(n)).expand(*s.shape[:-2], n, 1), n)


def _off_diagonal_sum(x: Tensor) -> Tensor:
    n = x.shape[-1]
    return (x.sum((-2, -1), keepdim=True) - _diagonal(x).sum(-2, keepdim=True)) / math.sqrt(n * (n - 1))


def _put_off_diagonal(s: Tensor, n: int) -> Tensor:
    return _clear_diagonal((s / math.sqrt(n * (n - 1))).repeat(*[1] * (s.ndim - 2), n, n))


# --- standard (S_n) and diagonal (B_n) ---


def _centred_diagonal(x: Tensor) -> Tensor:
    return _centred(_diagonal(x))


def _put_diagonal(v: Tensor, n: int) -> Tensor:
    return v.squeeze(-1).diag_embed()


def _symmetric_sums(x: Tensor) -> Tensor:
    n = x.shape[-1]
    return _centred(_row_sums(x) + _column_sums(x) - 2 * _diagonal(x)) / math.sqrt(2 * (n - 2))


def _put_symmetric_sums(v: Tensor, n: int) -> Tensor:
    v = v / math.sqrt(2 * (n - 2))
    return _clear_diagonal(v + v.mT)


def _antisymmetric_sums(x: Tensor) -> Tensor:
    return (_row_sums(x) - _column_sums(x)) / math.sqrt(2 * x.shape[-1])


def _put_antisymmetric_sums(v: Tensor, n: int) -> Tensor:
    v = v / math.sqrt(2 * n)
    return v - v.mT


# --- pieces whose coordinates are the matrix itself ---


def _antisymmetric(x: Tensor) -> Tensor:
    return (x - x.mT).div_(2)


def _hollow_symmetric(x: Tensor) -> Tensor:
    return _clear_diagonal((x + x.mT).div_(2))


def _traceless_symmetric(x: Tensor) -> Tensor:
    y = (x + x.mT).div_(2)
    diagonal = y.diagonal(dim1=-2, dim2=-1)  # a view: [..., n]
    diagonal.sub_(diagonal.mean(-1, keepdim=True))
    return y


def _antisymmetric_centred(x: Tensor) -> Tensor:
    y = _antisymmetric(x)
    v = y.mean(-1, keepdim=True)  # [..., n, 1]
    return y.sub_(v).add_(v.mT)


def _hollow_symmetric_centred(x: Tensor) -> Tensor:
    n = x.shape[-1]
    y = _hollow_symmetric(x)
    sums = _row_sums(y)  # [..., n, 1]
    mean = sums.mean(-2, keepdim=True) / (n - 1)  # [..., 1, 1]: of the entries off the diagonal
    v = _centred(sums) / (n - 2) + mean / 2  # [..., n, 1]
    return _clear_diagonal(y.sub_(v).sub_(v.mT))


def _put_matrix(x: Tensor, n: int) -> Tensor:
    return x
