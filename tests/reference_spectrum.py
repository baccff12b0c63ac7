"""Slow, obvious Jacobians and convolutions, from the mathematics. Imports nothing from symlab."""

import numpy as np
import torch


def jacobian(function, x):
    """dy_i / dx_j [m, n], one output after the other by autograd."""
    x = x.detach().clone().requires_grad_()
    y = function(x).flatten()
    rows = [torch.autograd.grad(y[i], x, retain_graph=True)[0].flatten() for i in range(len(y))]
    return torch.stack(rows)


def circular_convolution(kernel, height, width, stride):
    """Dense matrix [O H/r W/r, I H W] of y[o, a, b] = sum_{i, u, v} K[o, i, u, v] x[i, a r + u, b r + v], indices
    modulo the image."""
    outputs, inputs, h, w = kernel.shape
    matrix = np.zeros((outputs, height // stride, width // stride, inputs, height, width))
    for o in range(outputs):
        for a in range(height // stride):
            for b in range(width // stride):
                for i in range(inputs):
                    for u in range(h):
                        for v in range(w):
                            at = (a * stride + u) % height, (b * stride + v) % width
                            matrix[o, a, b, i, at[0], at[1]] += kernel[o, i, u, v]
    return matrix.reshape(outputs * height * width // stride**2, -1)
