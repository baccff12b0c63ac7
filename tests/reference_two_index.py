"""Tensors whose dimensions are indexed by several axes, or twice by one: representations, averages, counts.

A tensor is described by its dimensions, a dimension by its segments, a segment by the labels whose product it is:
W[h, h] is ((("h",),), (("h",),)). Imports nothing from symlab. Everything is numpy in float64.
"""

import itertools
import math

import numpy as np

from tests import reference


def shape_of(dimensions, sizes):
    return tuple(sum(math.prod(sizes[a] for a in segment) for segment in segments) for segments in dimensions)


def dimension_matrix(element, segments, sizes):
    """Block diagonal over the segments of the Kronecker product over each segment's axes."""
    total = sum(math.prod(sizes[a] for a in segment) for segment in segments)
    R, start = np.zeros((total, total)), 0
    for segment in segments:
        g = np.ones((1, 1))
        for label in segment:
            g = np.kron(g, element.get(label, np.eye(sizes[label])))
        R[start : start + len(g), start : start + len(g)] = g
        start += len(g)
    return R


def representation(element, tensors, sizes):
    """The matrix [P, P] by which a group element acts on all tensors, flattened row-major one after the other."""
    blocks = []
    for dimensions in tensors.values():
        g = np.ones((1, 1))
        for segments in dimensions:
            g = np.kron(g, dimension_matrix(element, segments, sizes))
        blocks.append(g)
    P = sum(len(b) for b in blocks)
    R, start = np.zeros((P, P)), 0
    for b in blocks:
        R[start : start + len(b), start : start + len(b)] = b
        start += len(b)
    return R


def all_representations(tensors, sizes, groups):
    """R(g) of every element of the product group. `groups`: label -> "S" or "B"."""
    for element in reference.all_elements(sizes, groups):
        yield representation(element, tensors, sizes)


def averages(C, v, representations):
    """(1 / |G|) sum over g of g C g^T, and of g v."""
    matrix, vector, count = np.zeros_like(C), np.zeros_like(v), 0
    for R in representations:
        matrix += R @ C @ R.T
        vector += R @ v
        count += 1
    return matrix / count, vector / count


def numbers(representations):
    """Independent numbers of an invariant symmetric matrix, and of an invariant vector, by characters.

    dim Sym^2(V)^G = (1 / |G|) sum over g of (chi(g)^2 + chi(g^2)) / 2,   dim V^G = (1 / |G|) sum over g of chi(g).
    """
    pairs, singles, count = 0.0, 0.0, 0
    for R in representations:
        chi, chi_of_square = np.trace(R), np.sum(R * R.T)
        pairs += (chi**2 + chi_of_square) / 2
        singles += chi
        count += 1
    return pairs / count, singles / count


def character_products(families):
    """(1 / |G|) sum over g of chi_i(g) chi_j(g), for lists of matrices: one list, over all g, per representation."""
    characters = np.array([[np.trace(R) for R in family] for family in families])
    return characters @ characters.T / characters.shape[1]


# --- O(n): the commutant as a null space ---


def haar(n, determinant, rng):
    """A random orthogonal matrix of the given determinant."""
    q, r = np.linalg.qr(rng.normal(size=(n, n)))
    q = q * np.sign(np.diag(r))
    q[:, 0] *= determinant * np.linalg.det(q)
    return q


def invariant_basis(tensors, sizes, labels, rng, power=2):
    """Orthonormal basis of all C [P, P] (power 2) or v [P] (power 1) with g C g^T = C, for O(n) on each of the labels.

    A few random elements of both determinants generate a dense subgroup, so what they leave alone is what the group
    leaves alone. The average over the group is the orthogonal projection on that space.
    """
    signs = itertools.islice(itertools.cycle(itertools.product((1, -1), repeat=len(labels))), 2 ** len(labels) + 2)
    system = []
    for chosen in signs:
        element = {a: haar(sizes[a], sign, rng) for a, sign in zip(labels, chosen, strict=True)}
        R = representation(element, tensors, sizes)
        full = np.kron(R, R) if power == 2 else R
        system.append(full - np.eye(len(full)))
    gram = sum(m.T @ m for m in system)
    values, vectors = np.linalg.eigh(gram)
    return vectors[:, values < 1e-9]
