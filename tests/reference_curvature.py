"""Curvature written out: loops over rows and classes with plain autograd, and pen-and-paper matrices of linear models.

Imports nothing from symlab. Everything in float64; a model is a function (list of parameters, inputs) -> outputs.
"""

import torch


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def row_loss(kind, output, target):
    """kind mse: ||f - y||^2 / 2; nll: -log softmax(f)_y. One row."""
    if kind == "mse":
        return (output - target).square().sum() / 2
    return -torch.log_softmax(output, 0)[target]


def gradient(function, parameters, inputs, targets, kind):
    """(1/n) sum of the gradients of single rows [P]."""
    total = 0
    for x, y in zip(inputs, targets, strict=True):
        loss = row_loss(kind, function(parameters, x[None])[0], y)
        total = total + flat(torch.autograd.grad(loss, parameters))
    return total / len(inputs)


def hessian(function, parameters, inputs, targets, kind):
    """Backward through the backward pass, row by row of the data and of the matrix."""
    total = 0
    for x, y in zip(inputs, targets, strict=True):
        loss = row_loss(kind, function(parameters, x[None])[0], y)
        slope = flat(torch.autograd.grad(loss, parameters, create_graph=True))
        rows = [
            flat(
                g if g is not None else torch.zeros_like(p)
                for g, p in zip(
                    torch.autograd.grad(s, parameters, retain_graph=True, allow_unused=True), parameters, strict=True
                )
            )
            if s.requires_grad
            else torch.zeros_like(slope)
            for s in slope
        ]
        total = total + torch.stack(rows)
    return total / len(inputs)


def jacobian(function, parameters, x):
    """[C, P] of one row."""
    outputs = function(parameters, x[None])[0]
    return torch.stack([flat(torch.autograd.grad(f, parameters, retain_graph=True)) for f in outputs])


def fisher(function, parameters, inputs, kind):
    """(1/n) sum over rows of sum_y p(y | f) g_y g_y^T; Gaussian labels of unit variance for mse: J^T J."""
    total = 0
    for x in inputs:
        J = jacobian(function, parameters, x)
        if kind == "mse":
            total = total + J.T @ J
            continue
        p = torch.softmax(function(parameters, x[None])[0], 0).detach()
        for c in range(len(p)):
            loss = row_loss(kind, function(parameters, x[None])[0], c)
            g = flat(torch.autograd.grad(loss, parameters))
            total = total + p[c] * torch.outer(g, g)
    return total / len(inputs)


def ggn(function, parameters, inputs, kind):
    """(1/n) sum_r J^T H J with H written by hand: the identity, or diag(p) - p p^T."""
    total = 0
    for x in inputs:
        J = jacobian(function, parameters, x)
        H = torch.eye(len(J), dtype=J.dtype)
        if kind == "nll":
            p = torch.softmax(function(parameters, x[None])[0], 0).detach()
            H = torch.diag(p) - torch.outer(p, p)
        total = total + J.T @ H @ J
    return total / len(inputs)


def empirical_fisher(function, parameters, inputs, targets, kind):
    total = 0
    for x, y in zip(inputs, targets, strict=True):
        g = flat(torch.autograd.grad(row_loss(kind, function(parameters, x[None])[0], y), parameters))
        total = total + torch.outer(g, g)
    return total / len(inputs)


# --- pen and paper: f = W x, W [C, d] flattened row-major ---


def linear_least_squares(X, C):
    """Hessian = GGN = Fisher of ||X W^T - Y||_F^2 / (2 n): I_C (x) X^T X / n."""
    return torch.kron(torch.eye(C, dtype=X.dtype), X.T @ X / len(X))


def softmax_regression(X, W):
    """Hessian = GGN = Fisher of cross-entropy: (1/n) sum_r (diag(p_r) - p_r p_r^T) (x) x_r x_r^T."""
    total = 0
    for x in X:
        p = torch.exp(W @ x) / torch.exp(W @ x).sum()
        total = total + torch.kron(torch.diag(p) - torch.outer(p, p), torch.outer(x, x))
    return total / len(X)


def logistic_regression(X, w):
    """Of two logits that differ by w . x: (1/n) sum_r s_r (1 - s_r) x_r x_r^T [d, d], s = 1 / (1 + exp(-w . x))."""
    s = 1 / (1 + torch.exp(-X @ w))
    return (X * (s * (1 - s))[:, None]).T @ X / len(X)


def row_outer_products(X, D):
    """Empirical Fisher: (1/n) sum_r d_r d_r^T (x) x_r x_r^T, D [n, C] slopes of the rows' losses in the outputs."""
    total = 0
    for x, d in zip(X, D, strict=True):
        total = total + torch.kron(torch.outer(d, d), torch.outer(x, x))
    return total / len(X)
