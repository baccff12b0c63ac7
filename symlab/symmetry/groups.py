"""The groups that may act on an axis, and a random element of each.

Legend: n  size of the axis;  g [n, n]  orthogonal matrix of a group element.
"""

import enum

import torch
from torch import Tensor


class Group(enum.Enum):
    """How the units on an axis may be exchanged without changing the function of the network.

    | group | acts on R^n as | irreducible pieces |
    |---|---|---|
    | `PERMUTATION` | S_n, the n! permutation matrices | mean (trivial) and the rest (standard, n - 1) |
    | `SIGNED_PERMUTATION` | B_n, the 2^n n! signed permutation matrices | one piece of dimension n |
    | `ORTHOGONAL` | O(n) | one piece of dimension n |
    | `TRIVIAL` | identity only: a *free* axis | n copies of the trivial piece |

    On an axis that every tensor has at most once, `SIGNED_PERMUTATION` and `ORTHOGONAL` have the same commutant
    (Schur's lemma: both act irreducibly on R^n), hence the same structure of every averaged curvature. On an axis that
    indexes two dimensions of one tensor they differ: R^n (x) R^n falls into four pieces under B_n, three under O(n).
    """

    PERMUTATION = "permutation"
    SIGNED_PERMUTATION = "signed_permutation"
    ORTHOGONAL = "orthogonal"
    TRIVIAL = "trivial"


def random_matrix(group: Group, n: int, generator: torch.Generator) -> Tensor:
    """A uniformly random element g of `group` (Haar measure for O(n)) as a matrix [n, n], float64, on the CPU."""
    if group is Group.TRIVIAL:
        return torch.eye(n, dtype=torch.float64)
    if group is Group.ORTHOGONAL:
        gaussian = torch.randn(n, n, generator=generator, dtype=torch.float64)  # [n, n]
        q, r = torch.linalg.qr(gaussian)
        return q * r.diagonal().sign()  # [n, n]; the sign of R makes Q Haar distributed
    g = torch.eye(n, dtype=torch.float64)[torch.randperm(n, generator=generator)]  # [n, n]
    if group is Group.SIGNED_PERMUTATION:
        sign = torch.randint(0, 2, (n, 1), generator=generator, dtype=torch.float64) * 2 - 1  # [n, 1]
        g = g * sign
    return g
