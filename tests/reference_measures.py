"""Measures of a constraint from their definitions, with loops. Imports nothing from symlab."""

import numpy


def correlation(rows: numpy.ndarray) -> numpy.ndarray:
    n = len(rows)
    matrix = numpy.zeros((n, n))
    for i in range(n):
        for j in range(n):
            a, b = numpy.sqrt(sum(rows[i] ** 2)), numpy.sqrt(sum(rows[j] ** 2))
            if a > 0 and b > 0:
                matrix[i, j] = sum(rows[i] * rows[j]) / (a * b)
    return matrix


def groups(rows: numpy.ndarray, threshold: float) -> int:
    """Connected components by flooding; rows of zeros are no group."""
    matrix, left = correlation(rows), {i for i, row in enumerate(rows) if row.any()}
    found = 0
    while left:
        front, found = [left.pop()], found + 1
        while front:
            i = front.pop()
            near = {j for j in left if matrix[i, j] >= threshold}
            left -= near
            front.extend(near)
    return found


def participation(features: numpy.ndarray) -> float:
    eigenvalues = numpy.linalg.eigvalsh(numpy.cov(features.T, bias=True))
    return eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
