"""The mathematics written out, slowly and obviously: loops over all group elements, kron, dense matrices.

Imports nothing from symlab. Everything is numpy in float64.
"""

import itertools

import numpy as np

# --- groups ---


def permutation_matrices(n):
    """All n! elements of S_n."""
    for order in itertools.permutations(range(n)):
        g = np.zeros((n, n))
        for i, j in enumerate(order):
            g[i, j] = 1.0
        yield g


def signed_permutation_matrices(n):
    """All 2^n n! elements of B_n."""
    for g in permutation_matrices(n):
        for signs in itertools.product((1.0, -1.0), repeat=n):
            yield np.diag(signs) @ g


def all_elements(sizes, groups):
    """Every element of the product group: dicts axis -> matrix. `groups`: axis -> "S" or "B"."""
    labels = list(groups)
    families = {"S": permutation_matrices, "B": signed_permutation_matrices}
    for matrices in itertools.product(*(list(families[groups[a]](sizes[a])) for a in labels)):
        yield dict(zip(labels, matrices, strict=True))


def representation(element, axes, shapes):
    """The matrix [P, P] by which a group element acts on all tensors, flattened row-major one after the other."""
    blocks = []
    for name, labels in axes.items():
        g = np.ones((1, 1))
        for label, n in zip(labels, shapes[name], strict=True):
            g = np.kron(g, element.get(label, np.eye(n)))
        blocks.append(g)
    P = sum(len(b) for b in blocks)
    R, start = np.zeros((P, P)), 0
    for b in blocks:
        R[start : start + len(b), start : start + len(b)] = b
        start += len(b)
    return R


def group_average(C, axes, shapes, groups):
    """(1 / |G|) sum over all g of g C g^T."""
    sizes = {a: n for name in axes for a, n in zip(axes[name], shapes[name], strict=True)}
    total, count = np.zeros_like(C), 0
    for element in all_elements(sizes, groups):
        R = representation(element, axes, shapes)
        total += R @ C @ R.T
        count += 1
    return total / count


def group_average_vector(v, axes, shapes, groups):
    """(1 / |G|) sum over all g of g v."""
    sizes = {a: n for name in axes for a, n in zip(axes[name], shapes[name], strict=True)}
    elements = list(all_elements(sizes, groups))
    return sum(representation(e, axes, shapes) @ v for e in elements) / len(elements)


# --- matrix functions ---


def symmetric_power(C, exponent):
    values, vectors = np.linalg.eigh(C)
    return vectors @ np.diag(values**exponent) @ vectors.T


# --- nets as axes ---


def mlp_axes(sizes, bias):
    """Axis labels and shapes of an MLP: W1 [h1, in], b1 [h1], W2 [h2, h1], ..."""
    labels = ["in", *(f"h{i}" for i in range(1, len(sizes) - 1)), "out"]
    axes, shapes = {}, {}
    for layer in range(1, len(sizes)):
        axes[f"W{layer}"] = (labels[layer], labels[layer - 1])
        shapes[f"W{layer}"] = (sizes[layer], sizes[layer - 1])
        if bias:
            axes[f"b{layer}"] = (labels[layer],)
            shapes[f"b{layer}"] = (sizes[layer],)
    return axes, shapes


def mlp_gradient(weights, biases, activation, derivative, X, Y):
    """Gradient of ||f(X) - Y||_F^2 / (2 n), by hand: lists of dW [out, in] and db [out] of each layer.

    X [n, d_in], Y [n, d_out]; weights W_l [d_l, d_{l-1}]; biases b_l [d_l] or None.
    """
    n = len(X)
    activations, pre = [X], []
    for layer, W in enumerate(weights):
        z = activations[-1] @ W.T + (0 if biases is None else biases[layer])
        pre.append(z)
        activations.append(z if layer == len(weights) - 1 else activation(z))
    delta = (activations[-1] - Y) / n
    dW, db = [], []
    for layer in reversed(range(len(weights))):
        dW.insert(0, delta.T @ activations[layer])
        db.insert(0, delta.sum(0))
        if layer:
            delta = (delta @ weights[layer]) * derivative(pre[layer - 1])
    return dW, db


# --- optimizers ---


def full_matrix_rms(theta, gradients, lr, beta, exponent=-0.5, eps=0.0):
    """theta <- theta - lr (C / (1 - beta^t) + eps largest I)^exponent g,  C <- beta C + (1 - beta) g g^T; all theta."""
    C, path = np.zeros((len(theta), len(theta))), []
    for t, g in enumerate(gradients, start=1):
        C = beta * C + (1 - beta) * np.outer(g, g)
        values, vectors = np.linalg.eigh(C / (1 - beta**t))
        values = np.maximum(values, 0)
        values = np.maximum(values + eps * values.max(), len(g) * np.finfo(float).eps * values.max())
        theta = theta - lr * vectors @ (values**exponent * (vectors.T @ g))
        path.append(theta)
    return path


def one_sided_shampoo(W, gradients, lr, beta, exponent=-0.5):
    """W [n, m] <- W - lr G (R / (1 - beta^t))^exponent,  R <- beta R + (1 - beta) G^T G / n  [m, m]."""
    n, m = W.shape
    R, path = np.zeros((m, m)), []
    for t, G in enumerate(gradients, start=1):
        R = beta * R + (1 - beta) * G.T @ G / n
        values, vectors = np.linalg.eigh(R / (1 - beta**t))
        values = np.maximum(values, m * np.finfo(float).eps * values.max())
        W = W - lr * G @ vectors @ np.diag(values**exponent) @ vectors.T
        path.append(W)
    return path


def scalar_rms(theta, gradients, lr, beta, momentum=0.0, weight_decay=0.0):
    """theta <- (1 - lr wd) theta - lr b / sqrt(v / (1 - beta^t)), b = mu b + g, v <- beta v + (1 - beta) mean(g^2)."""
    v, b, path = 0.0, np.zeros_like(theta), []
    for t, g in enumerate(gradients, start=1):
        v = beta * v + (1 - beta) * np.mean(g**2)
        b = momentum * b + g
        theta = (1 - lr * weight_decay) * theta - lr * b / np.sqrt(v / (1 - beta**t))
        path.append(theta)
    return path
