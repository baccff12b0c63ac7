"""Normalised residual nets and their derivatives, row by row with loops; derivatives by complex steps, so without any
automatic differentiation. Imports nothing from symlab.

A net is (weights: list of float arrays in the order first, [down, up] per block; form: a dict with normalisation,
epsilon, skip, factors, activation).
"""

import numpy as np

STEP = 1e-30


def normalised(w, kind, epsilon):
    """wn, en or w itself, entry by entry; analytic, so that complex steps pass."""
    out = np.zeros_like(w)
    for i in range(w.shape[0]):
        row = sum(w[i, j] * w[i, j] for j in range(w.shape[1]))
        for j in range(w.shape[1]):
            square = {"weight": row, "entry": w[i, j] * w[i, j], "none": 1.0 - epsilon}[kind]
            out[i, j] = w[i, j] / np.sqrt(epsilon + square)
    return out


def activated(x, name):
    return {"tanh": np.tanh, "softplus": lambda v: np.log(1 + np.exp(v)), "sin": np.sin}[name](x)


def layer(index, weights, x, form):
    """f_l of one row x; index 0 is the first layer."""
    own = [normalised(w, form["normalisation"], form["epsilon"]) for w in weights]
    if index == 0:
        return own[0] @ x
    down, up = own
    branch = form["factors"][index - 1] * (up @ activated(down @ x, form["activation"]))
    if not form["skip"]:
        return branch
    kept = np.array([x[i] if i < len(x) else 0.0 for i in range(len(branch))])
    return kept + branch


def grouped(weights):
    return [weights[:1], *(weights[i : i + 2] for i in range(1, len(weights), 2))]


def outputs(weights, rows, form):
    """[N, C], stacked."""
    result = []
    for x in rows:
        for index, own in enumerate(grouped(weights)):
            x = layer(index, own, x, form)
        result.append(x)
    return np.array(result)


def complex_jacobian(function, vector):
    """d function / d vector [m, n], one complex step per entry."""
    columns = []
    for j in range(len(vector)):
        moved = vector.astype(complex)
        moved[j] += 1j * STEP
        columns.append(np.imag(function(moved)).reshape(-1) / STEP)
    return np.array(columns).T


def split(vector, shapes):
    parts, start = [], 0
    for shape in shapes:
        size = shape[0] * shape[1]
        parts.append(vector[start : start + size].reshape(shape))
        start += size
    return parts


def derivative(weights, rows, form):
    """DF [N C, P]."""
    shapes = [w.shape for w in weights]
    vector = np.concatenate([w.reshape(-1) for w in weights])
    return complex_jacobian(lambda v: outputs(split(v, shapes), rows, form), vector)


def layer_derivatives(weights, rows, form):
    """(Df_l [N d_l, p_l], Jf_l [N d_l, N d_{l-1}]) of each layer, over the stacked rows."""
    found, current, count = [], [np.asarray(x, dtype=float) for x in rows], len(rows)
    for index, own in enumerate(grouped(weights)):
        shapes = [w.shape for w in own]
        vector = np.concatenate([w.reshape(-1) for w in own])

        def of_weights(v, index=index, shapes=shapes, current=current):
            return np.array([layer(index, split(v, shapes), x, form) for x in current])

        def of_rows(v, index=index, own=own):
            return np.array([layer(index, own, x, form) for x in v.reshape(count, -1)])

        found.append((complex_jacobian(of_weights, vector), complex_jacobian(of_rows, np.concatenate(current))))
        current = [np.real(layer(index, own, x, form)) for x in current]
    return found


def lowest(matrix):
    """Smallest eigenvalue of A A^T."""
    return np.linalg.eigvalsh(matrix @ matrix.T)[0]


def bound_terms(weights, rows, form):
    """lambda(Df_l) prod_{k>l} lambda(Jf_k), for each l (equation 12)."""
    derivatives = layer_derivatives(weights, rows, form)
    terms = []
    for place in range(len(derivatives)):
        term = lowest(derivatives[place][0])
        for later in range(place + 1, len(derivatives)):
            term *= lowest(derivatives[later][1])
        terms.append(term)
    return terms


def half_squared_error(weights, rows, targets, form):
    difference = outputs(weights, rows, form) - targets
    return sum(entry * entry for entry in difference.reshape(-1)) / (2 * len(rows))


def gradient(weights, rows, targets, form):
    """[P], by complex steps."""
    shapes = [w.shape for w in weights]
    vector = np.concatenate([w.reshape(-1) for w in weights])

    def loss(v):
        return np.array([half_squared_error(split(v, shapes), rows, targets, form)])

    return complex_jacobian(loss, vector)[0]


def hessian_product(weights, rows, targets, form, direction, step=1e-5):
    """H v [P], by the central difference of the gradient along v."""
    shapes = [w.shape for w in weights]
    vector = np.concatenate([w.reshape(-1) for w in weights])
    after, before = (gradient(split(vector + sign * step * direction, shapes), rows, targets, form) for sign in (1, -1))
    return (after - before) / (2 * step)
