"""The law of the labels that a loss stands for: the loss of one row is -log p(y | f) up to a constant.

Which law it is, is read off the loss itself, and checked: integer targets whose exp(-loss) add up to 1 over the C
classes are drawn from these C numbers (for cross-entropy: the softmax); a loss whose second derivatives in the outputs
are k I everywhere is that of Gaussian labels N(f, I / k) (half the squared error: k = 1).

Legend: B  rows;  C  outputs;  f [B, C]  outputs;  d [C]  derivative of a row's loss in its outputs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from symlab.curvature.forward_mode import jvp
from symlab.curvature.mean_loss import Loss
from symlab.curvature.problem import Problem


@dataclass(frozen=True)
class CategoricalLaw:
    """y in 0 ... C - 1 with p_c = exp(-loss(f, c))."""

    loss: Loss

    def probabilities(self, outputs: Tensor) -> Tensor:
        """p [B, C]."""
        return torch.stack([-losses for losses in self._losses(outputs)], dim=-1).softmax(-1)

    def second_moment(self, outputs: Tensor) -> Tensor:
        """E_y[d d^T] of each row [B, C, C]."""
        p = self.probabilities(outputs)
        total = torch.zeros_like(outputs).unsqueeze(-1) * outputs.unsqueeze(-2)  # [B, C, C]
        for c in range(outputs.shape[1]):
            score = grad(lambda f, c=c: _row_losses(self.loss, f, c).sum())(outputs)  # [B, C]
            total = total + p[:, c, None, None] * score.unsqueeze(-1) * score.unsqueeze(-2)
        return total

    def noise(self, rows: int, outputs: int, generator: torch.Generator) -> Tensor:
        """Uniform numbers [rows] for `sampled_score`, on the CPU in float64."""
        return torch.rand(rows, generator=generator, dtype=torch.float64)

    def sampled_score(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """d [B, C] at one label per row drawn from the law."""
        cumulated = self.probabilities(outputs.double()).cumsum(-1)
        labels = (noise.unsqueeze(-1) > cumulated[:, :-1]).sum(-1)  # [B]
        return row_slopes(self.loss, outputs, labels)

    def _losses(self, outputs: Tensor) -> list[Tensor]:
        return [_row_losses(self.loss, outputs, c) for c in range(outputs.shape[1])]


@dataclass(frozen=True)
class GaussianLaw:
    """y ~ N(f, I / precision)."""

    precision: float

    def second_moment(self, outputs: Tensor) -> Tensor:
        """E_y[d d^T] = precision I of each row [B, C, C]."""
        B, C = outputs.shape
        return (self.precision * torch.eye(C, dtype=outputs.dtype, device=outputs.device)).expand(B, C, C)

    def noise(self, rows: int, outputs: int, generator: torch.Generator) -> Tensor:
        """Normal numbers [rows, outputs] for `sampled_score`, on the CPU in float64."""
        return torch.randn(rows, outputs, generator=generator, dtype=torch.float64)

    def sampled_score(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """d = precision (f - y) [B, C] at one label per row drawn from the law."""
        return self.precision**0.5 * noise.to(outputs)


LabelLaw = CategoricalLaw | GaussianLaw


def label_law(problem: Problem) -> LabelLaw:
    """The law that the problem's loss stands for.

    Raises:
        ValueError: the loss is neither a normalised log-likelihood of class indices nor a multiple of half the squared
            error (up to terms that do not depend on the outputs).
    """
    return law_of_loss(problem.loss, problem.targets[:1], problem.num_outputs, problem.dtype)


def law_of_loss(loss: Loss, targets: Tensor, num_outputs: int, dtype: torch.dtype) -> LabelLaw:
    """The law that a loss of `num_outputs` outputs in `dtype` stands for, read off at one target [1, ...].

    Raises:
        ValueError: as `label_law`.
    """
    C = num_outputs
    generator = torch.Generator().manual_seed(0)
    points = 2 * torch.randn(3, 1, C, generator=generator, dtype=torch.float64)  # [3, 1, C]
    points = points.to(targets.device, dtype)
    if not targets.is_floating_point():
        totals = [sum(_row_losses(loss, f, c).neg().exp().sum() for c in range(C)) for f in points]
        if all(abs(float(total) - 1) < 1e-4 for total in totals):
            return CategoricalLaw(loss)
    curvatures = torch.stack([row_curvatures(loss, f, targets)[0] for f in points])  # [3, C, C]
    precision = float(curvatures[0].diagonal().mean())
    ideal = precision * torch.eye(C, dtype=points.dtype, device=points.device)
    if precision > 0 and bool((curvatures - ideal).abs().max() <= 1e-4 * precision):
        return GaussianLaw(precision)
    raise ValueError(
        "the Fisher needs the law of the labels, and this loss does not say it: for class indices exp(-loss) must add "
        "up to 1 over the classes (cross_entropy), otherwise the loss must be a multiple of half the squared error "
        "(half_mean_squared_error); take the quantity ggn or empirical_fisher with this loss"
    )


def row_slopes(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """d [B, C]: the derivative of each row's loss in its outputs."""
    return len(outputs) * grad(loss)(outputs, targets)


def row_curvatures(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """[B, C, C]: the second derivatives of each row's loss in its outputs."""
    columns = []
    for c in range(outputs.shape[1]):
        direction = torch.zeros_like(outputs)
        direction[:, c] = 1
        columns.append(jvp(lambda f: row_slopes(loss, f, targets), (outputs,), (direction,))[1])
    return torch.stack(columns, dim=-1)


def _row_losses(loss: Loss, outputs: Tensor, label: int) -> Tensor:
    """The loss [B] of each row for one class."""
    target = torch.full((1,), label, device=outputs.device)
    return vmap(lambda f: loss(f.unsqueeze(0), target))(outputs)
