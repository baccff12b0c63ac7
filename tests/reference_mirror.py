"""Mirrors and what the theorem says of them, from dense matrices and loops. Imports nothing from symlab."""

from collections.abc import Callable

import numpy
import torch
from torch import Tensor


def reflection(O: Tensor) -> Tensor:  # noqa: E741
    """I - 2 sum_c o_c o_c^T, column by column."""
    R = torch.eye(len(O), dtype=O.dtype)
    for c in range(O.shape[1]):
        R = R - 2 * torch.outer(O[:, c], O[:, c])
    return R


def swap_columns(positions_i: list[int], positions_j: list[int], P: int) -> Tensor:
    """O [P, k] of the exchange of the weights at `positions_i` with those at `positions_j`, one after the other."""
    O = torch.zeros(P, len(positions_i), dtype=torch.float64)  # noqa: E741
    for c, (i, j) in enumerate(zip(positions_i, positions_j, strict=True)):
        O[i, c], O[j, c] = 0.5**0.5, -(0.5**0.5)
    return O


def mlp_positions(inputs: int, hidden: int, outputs: int, unit: int) -> list[int]:
    """Where the weights of a hidden unit lie in (W1 [h, in], b1 [h], W2 [out, h], b2 [out]) laid end to end."""
    first = [unit * inputs + k for k in range(inputs)]
    bias = [hidden * inputs + unit]
    second = [hidden * inputs + hidden + row * hidden + unit for row in range(outputs)]
    return first + bias + second


def kron_rotation_columns(n: Tensor, a: int, b: int) -> Tensor:
    """O [a r + r b, a + b] for U [a, r] n and n^T W, W [r, b]: I_a (x) n and n (x) I_b."""
    upper = torch.kron(torch.eye(a, dtype=n.dtype), n[:, None])  # [a r, a]
    lower = torch.kron(n[:, None], torch.eye(b, dtype=n.dtype))  # [r b, b]
    return torch.block_diag(upper, lower)


def gradient(f: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """Central differences."""
    step, found = 1e-5, torch.zeros_like(theta)
    for i in range(len(theta)):
        e = torch.zeros_like(theta)
        e[i] = step
        found[i] = (f(theta + e) - f(theta - e)) / (2 * step)
    return found


def lowest_on_grid(f: Callable[[numpy.ndarray], numpy.ndarray], low: float, high: float, points: int) -> float:
    """The place of the smallest value of f on an even grid that holds zero."""
    grid = numpy.linspace(low, high, points)
    assert numpy.abs(grid).min() < 1e-12
    return float(grid[numpy.argmin(f(grid))])
