"""Structured factors of nets with one hidden layer, and how nets agree on them: written out, slowly and obviously.

Imports nothing from symlab. Everything is numpy in float64.
"""

import numpy as np


def factors(dW1, dW2):
    """B11 [in, in], B12 [in, out] and B22 [out, out] of one net, one after the other: averages over hidden units.

    dW1 [h, in] and dW2 [out, h] are gradients; the net is odd and has no biases, so these are all its factors.
    """
    h = len(dW1)
    B11 = sum(np.outer(dW1[i], dW1[i]) for i in range(h)) / h
    B12 = sum(np.outer(dW1[i], dW2[:, i]) for i in range(h)) / h
    B22 = sum(np.outer(dW2[:, i], dW2[:, i]) for i in range(h)) / h
    return np.concatenate([B11.ravel(), B12.ravel(), B22.ravel()])


def running_average(values, beta):
    """sum_j beta^(t - j) x_j / sum_j beta^(t - j) over j = 0..t, x_j in `values`."""
    weights = np.array([beta ** (len(values) - 1 - j) for j in range(len(values))])  # 0 ** 0 is 1
    return sum(w * x for w, x in zip(weights, values, strict=True)) / weights.sum()


def pairwise(vectors):
    """Mean and standard deviation of Pearson's r over all pairs of vectors."""
    found = [np.corrcoef(vectors[i], vectors[j])[0, 1] for i in range(len(vectors)) for j in range(i + 1, len(vectors))]
    return np.mean(found), np.std(found, ddof=1)


def pairwise_error(vectors):
    """Jackknife: the mean over pairs without each vector in turn."""
    n = len(vectors)
    left = np.array([pairwise([v for j, v in enumerate(vectors) if j != i])[0] for i in range(n)])
    return np.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum())


def with_others(vectors, truth):
    """Pearson's r of each vector i with the mean of `truth` over all others."""
    found = []
    for i, vector in enumerate(vectors):
        others = np.mean([t for j, t in enumerate(truth) if j != i], axis=0)
        found.append(np.corrcoef(vector, others)[0, 1])
    return np.array(found)
