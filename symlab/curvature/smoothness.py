"""How smooth a loss is around given weights: extreme eigenvalues of its Hessian, and how fast its gradient changes; and
how regular: its gradient against what is left of the loss.

Source: MacDonald et al., "On skip connections and normalisation layers in deep optimisation" (NeurIPS 2023), Theorem
4.5; for sharpness along training Cohen et al., "Gradient descent on neural networks typically occurs at the edge of
stability" (ICLR 2021).

Legend: N  rows;  P  trainable weights;  F(theta) [N, C]  outputs of all rows;  L(theta) = c(F(theta))  mean loss.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from symlab.curvature.lanczos import Extremes, UnsymmetricError, extreme_eigenvalues
from symlab.curvature.mean_loss import Loss, differentiable

DENSE_BELOW = 64
"""Weights up to which the Hessian is formed and its eigenvalues are exact."""


class LostInRoundingError(FloatingPointError):
    """A number smaller than the rounding errors of what it is computed from."""


@dataclass(frozen=True)
class Landscape:
    """L at the present weights of a model, in its present mode, with its derivatives.

    Batch norm in training mode takes the statistics of all rows. Buffers, `.grad` and the weights stay as they are.
    """

    model: nn.Module
    inputs: Tensor  # [N, ...]
    targets: Tensor
    loss: Loss

    def value(self) -> float:
        """L."""
        with torch.no_grad():
            return float(self._loss(self._weights(False)))

    def gradient(self) -> Tensor:
        """dL/dtheta [P], parameters in the order of the model."""
        weights = self._weights(True)
        return flat(torch.autograd.grad(self._loss(weights), list(weights.values()), materialize_grads=True))

    def output_gradient(self) -> Tensor:
        """dc/dF [N, C]."""
        with torch.no_grad():
            outputs = self._outputs(self._weights(False))
        outputs.requires_grad_()
        return torch.autograd.grad(differentiable(self.loss)(outputs, self.targets), outputs)[0]

    def hessian_product(self) -> Callable[[Tensor], Tensor]:
        """v [P] -> H v [P], at the weights of now: one graph of the gradient, a backward pass through it a product."""
        slope, parameters = self._tracked_gradient()

        def product(vector: Tensor) -> Tensor:
            if not slope.requires_grad:  # the loss is linear in the weights
                return torch.zeros_like(slope)
            return flat(torch.autograd.grad(slope, parameters, vector, retain_graph=True, materialize_grads=True))

        return product

    def hessian(self) -> Tensor:
        """H [P, P], all products at once."""
        slope, parameters = self._tracked_gradient()
        unit = torch.eye(len(slope), dtype=slope.dtype, device=slope.device)
        if not slope.requires_grad:
            return torch.zeros_like(unit)
        parts = torch.autograd.grad(slope, parameters, unit, is_grads_batched=True, materialize_grads=True)
        matrix = torch.cat([part.flatten(1) for part in parts], 1)
        return (matrix + matrix.mT) / 2

    def _tracked_gradient(self) -> tuple[Tensor, list[Tensor]]:
        """dL/dtheta [P] with its graph, and the weights at its leaves."""
        weights = self._weights(True)
        parameters = list(weights.values())
        parts = torch.autograd.grad(self._loss(weights), parameters, create_graph=True, materialize_grads=True)
        return flat(parts), parameters

    def extremes(self, *, generator: torch.Generator, steps: int = 100, tolerance: float = 1e-3) -> Extremes:
        """Smallest and largest eigenvalue of H: exact up to `DENSE_BELOW` weights, else by Lanczos.

        `tolerance` is relative to the larger of the two; at most `steps` products. Raises FloatingPointError for a
        Hessian that is not finite, LostInRoundingError for one below the rounding of its own products (a saturated
        softmax has such), and ValueError as `extreme_eigenvalues`.
        """
        weights = flat(self._weights(False).values())
        size = len(weights)
        if size <= DENSE_BELOW:
            matrix = self.hessian()
            if not bool(matrix.isfinite().all()):
                raise FloatingPointError("the Hessian is not finite")
            values = torch.linalg.eigvalsh(matrix)
            return Extremes(float(values[0]), float(values[-1]), 0.0, 0.0, size)
        kind, place = weights.dtype, weights.device
        try:
            return extreme_eigenvalues(
                self.hessian_product(),
                size,
                generator=generator,
                steps=steps,
                tolerance=tolerance,
                dtype=kind,
                device=place,
            )
        except UnsymmetricError as error:  # a Hessian is symmetric: what is seen is the error of its products
            raise LostInRoundingError(f"the Hessian is lost in rounding: {error}") from error

    def _weights(self, tracked: bool) -> dict[str, Tensor]:
        """The trainable weights, detached; `tracked`: as leaves of a new graph."""
        named = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}
        return {name: p.requires_grad_() for name, p in named.items()} if tracked else named

    def _outputs(self, weights: dict[str, Tensor]) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        outputs: Tensor = functional_call(self.model, {**weights, **buffers}, (self.inputs,))
        return outputs

    def _loss(self, weights: dict[str, Tensor]) -> Tensor:
        return differentiable(self.loss)(self._outputs(weights), self.targets)


@dataclass(frozen=True)
class Regularity:
    """|grad L|^2 = |DF^T grad c|^2 lies between lambda(DF) |grad c|^2 and lambda_max |grad c|^2, exactly.

    So with |grad c|^2 >= 2 mu (c - c*) for some mu the loss satisfies a Polyak-Lojasiewicz inequality
    |grad L|^2 >= 2 mu lambda(DF) (L - c*). Half mean squared error |F - Y|^2 / (2N): |grad c|^2 = 2 c / N, mu = 1 / N,
    c* = 0. Cross-entropy has no such mu over all outputs; row by row |grad c_n| >= (1 - exp(-c_n)) / N.
    """

    gradient_square: float  # |grad L|^2
    output_gradient_square: float  # |grad c|^2
    excess: float  # L - c*

    @property
    def output_ratio(self) -> float:
        """|grad L|^2 / |grad c|^2, in [lambda(DF), largest eigenvalue of DF DF^T]; nan where both are 0."""
        return _over(self.gradient_square, self.output_gradient_square)

    @property
    def pl_ratio(self) -> float:
        """|grad L|^2 / (L - c*); of half mean squared error at least 2 lambda(DF) / N."""
        return _over(self.gradient_square, self.excess)


def regularity(landscape: Landscape, least: float = 0.0) -> Regularity:
    """The three numbers at the present weights; `least` c*, the cost's infimum over all outputs: 0 of both losses."""
    slope, cost_slope = landscape.gradient(), landscape.output_gradient()
    return Regularity(float(slope.square().sum()), float(cost_slope.square().sum()), landscape.value() - least)


def gradient_lipschitz(before: Tensor, after: Tensor, moved: Tensor) -> float:
    """|g_{t+1} - g_t| / |theta_{t+1} - theta_t|: a lower bound of the Lipschitz constant of the gradient between.

    `before`, `after` gradients and `moved` the step, each [P]; nan where nothing moved.
    """
    return _over(float((after - before).norm()), float(moved.norm()))


def flat(parts: Iterable[Tensor]) -> Tensor:
    """One vector [P] of all tensors in their order."""
    return torch.cat([part.reshape(-1) for part in parts])


def _over(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan
