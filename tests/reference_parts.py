"""Numbers of independent factors from group characters, for tensors whose dimensions have parts and factors.

Written from the mathematics with loops over group elements; imports nothing from symlab.

A group element g acts on a weight space by a matrix of trace chi(g). The symmetric matrices that commute with a
finite group G form a space of dimension

    1/|G| sum over g of (chi(g)^2 + chi(g^2)) / 2

(Fulton and Harris, Representation Theory, section 2.1, for the symmetric square). On a tensor, chi is the product over
its dimensions; on a dimension, the sum over its segments; on a segment, the product over its axes.
"""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np


def elements(group: str, n: int):
    """All matrices of S_n ("P") or of the signed permutations B_n ("B")."""
    for order in itertools.permutations(range(n)):
        signs = itertools.product((1, -1), repeat=n) if group == "B" else [(1,) * n]
        for sign in signs:
            matrix = np.zeros((n, n), dtype=int)
            for row, column in enumerate(order):
                matrix[row, column] = sign[row]
            yield matrix


def characters(group: str, n: int) -> Counter:
    """(trace of g, trace of g^2) -> for how many elements."""
    return Counter((int(np.trace(g)), int(np.trace(g @ g))) for g in elements(group, n))


def trace_on(tensor, traces) -> int:
    """Trace on one tensor: `tensor` is a list of dimensions, each a list of segments, each a list of axes or sizes."""
    total = 1
    for segments in tensor:
        dimension = 0
        for segment in segments:
            piece = 1
            for axis in segment:
                piece *= axis if isinstance(axis, int) else traces[axis]
            dimension += piece
        total *= dimension
    return total


def number_of_factors(tensors, groups) -> int:
    """Dimension of the symmetric commutant. groups: axis -> ("P" or "B", size)."""
    names = list(groups)
    tables = [list(characters(*groups[name]).items()) for name in names]
    total, order = Fraction(0), 0
    for choice in itertools.product(*tables):
        count = int(np.prod([times for _, times in choice], dtype=object))
        first = {name: pair[0] for name, (pair, _) in zip(names, choice, strict=True)}
        second = {name: pair[1] for name, (pair, _) in zip(names, choice, strict=True)}
        chi = sum(trace_on(tensor, first) for tensor in tensors)
        chi_of_square = sum(trace_on(tensor, second) for tensor in tensors)
        total += count * Fraction(chi * chi + chi_of_square, 2)
        order += count
    factors = total / order
    assert factors.denominator == 1
    return int(factors)
