"""Linear regression with a sparse truth, and its stochastic gradient descent in two parametrizations.

Legend: E  seeds (data sets);  K  settings (lr, decay) of one part;  N  rows;  d  weights;  B  rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TINY = 1e-30
FLUSH_EVERY = 50
"""Steps after which |u| and |v| below TINY become 0: subnormal numbers make the CPU a hundred times slower."""


@dataclass(frozen=True)
class SparseRegression:
    """y = X w* + noise for each seed: `inputs` [E, N, d], `targets` [E, N], `truth` [E, d]; `u`, `v` [E, d] (start).

    X ~ N(0, 1); the first `nonzero` of w* have random signs and sizes uniform in [0.5, 1.5], the others are 0.
    """

    inputs: Tensor
    targets: Tensor
    truth: Tensor
    u: Tensor
    v: Tensor
    seeds: tuple[int, ...]

    def exact(self) -> SparseRegression:
        """The same in float64 on the CPU."""
        parts = (self.inputs, self.targets, self.truth, self.u, self.v)
        x, targets, truth, u, v = (part.double().cpu() for part in parts)
        return SparseRegression(x, targets, truth, u, v, self.seeds)

    def losses(self, weights: Tensor) -> Tensor:
        """[E, K]: mean squared error over all rows of weights [E, K, d]."""
        residuals = torch.baddbmm(self.targets[:, None], weights, self.inputs.transpose(1, 2), beta=-1)  # [E, K, N]
        return residuals.square().mean(-1)

    def risks(self, weights: Tensor) -> Tensor:
        """[E, K]: ||w - w*||^2, the mean squared error on fresh rows beyond that of the noise."""
        return (weights - self.truth[:, None]).square().sum(-1)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows [E, B, d] and targets [E, B] of one update after the other, each epoch in a new random order per seed.

        Rows that do not fill a batch are left out of their epoch. The order depends on the seed and the size alone.
        """
        rows = self.inputs.shape[1]
        generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        while size == rows:
            yield self.inputs, self.targets
        while True:
            order = torch.stack([torch.randperm(rows, generator=g) for g in generators]).to(self.inputs.device)
            mixed = self.inputs.gather(1, order[..., None].expand_as(self.inputs))
            targets = self.targets.gather(1, order)
            for first in range(0, rows - size + 1, size):
                yield mixed[:, first : first + size], targets[:, first : first + size]


def sparse_regression(
    seeds: Sequence[int], like: Tensor, *, rows: int, columns: int, nonzero: int, noise: float, init: float
) -> SparseRegression:
    """Data and start of each seed, drawn in float64 from it; u, v ~ N(0, init^2). dtype and device are of `like`."""
    drawn = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        x = normal(rows, columns)
        sizes = 0.5 + torch.rand(columns, generator=generator, dtype=torch.float64)
        truth = sizes * normal(columns).sign() * (torch.arange(columns) < nonzero)
        targets = x @ truth + noise * normal(rows)
        drawn.append((x, targets, truth, init * normal(columns), init * normal(columns)))
    x, targets, truth, u, v = (torch.stack(parts).to(like) for parts in zip(*drawn, strict=True))
    return SparseRegression(x, targets, truth, u, v, tuple(seeds))


class Product:
    """w = u v: u <- u - lr (g v + a u), v <- v - lr (g u + a v), with g the gradient for w [E, K, d]."""

    name = "u * v"

    def __init__(self, problem: SparseRegression, lr: Tensor, decay: Tensor) -> None:
        settings = len(lr)
        self.u, self.v = (p[:, None].repeat(1, settings, 1) for p in (problem.u, problem.v))
        self.lr, self.keep = lr[:, None], (1 - lr * decay)[:, None]
        self.steps = 0

    @property
    def weights(self) -> Tensor:
        """[E, K, d]."""
        return self.u * self.v

    def step(self, gradient: Tensor) -> None:
        """One update of all."""
        moved = self.lr * gradient
        self.u, self.v = self.keep * self.u - moved * self.v, self.keep * self.v - moved * self.u
        self.steps += 1
        if self.steps % FLUSH_EVERY == 0:
            self.u, self.v = (torch.where(p.abs() < TINY, 0.0, p) for p in (self.u, self.v))

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {"u": self.u, "v": self.v, "steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same problem and settings."""
        self.u, self.v = (state[name].to(self.u.device) for name in ("u", "v"))
        self.steps = state["steps"]


class Plain:
    """w <- w - lr (g + a w), from the same start u v: the control."""

    name = "w"

    def __init__(self, problem: SparseRegression, lr: Tensor, decay: Tensor) -> None:
        self.weights = (problem.u * problem.v)[:, None].repeat(1, len(lr), 1)
        self.lr, self.keep = lr[:, None], (1 - lr * decay)[:, None]

    def step(self, gradient: Tensor) -> None:
        """One update of all."""
        self.weights = self.keep * self.weights - self.lr * gradient

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {"weights": self.weights}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same problem and settings."""
        self.weights = state["weights"].to(self.weights.device)


def gradients(weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """[E, K, d]: of the mean squared error over a batch, (2 / B) X^T (X w - y)."""
    residuals = torch.baddbmm(targets[:, None], weights, inputs.transpose(1, 2), beta=-1)  # [E, K, B]
    return torch.bmm(residuals, inputs) * (2 / inputs.shape[1])
