"""Derivatives of a row's loss at labels of the model's own law, for Fisher and Gauss-Newton matrices.

Legend: B  rows;  C  outputs;  f [B, C]  outputs;  d [B, C]  derivative of each row's loss in its outputs;
H_r [C, C]  Fisher of row r's outputs, for both laws also the second derivative of its loss.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from symlab.curvature.label_law import CategoricalLaw, GaussianLaw, LabelLaw, law_of_loss, row_slopes
from symlab.curvature.mean_loss import Loss, check_loss, differentiable


@dataclass(frozen=True)
class LabelScores:
    """Scores d under the law of a loss: single draws, or C of them that make up the expectation exactly."""

    law: LabelLaw
    softmax: bool  # the law's probabilities are softmax(f), so that scores are softmax(f) - onehot(y)

    @classmethod
    def of(cls, loss: Loss, outputs: Tensor, targets: Tensor) -> "LabelScores":
        """For a loss that is a mean over rows and outputs [B, C] in float32 or better.

        Raises ValueError for a loss that is no mean over rows, or whose law of labels is not known; see `label_law`.
        """
        check_loss(loss, targets, outputs.shape[1])
        law = law_of_loss(differentiable(loss), targets[:1], outputs.shape[1], outputs.dtype)
        if isinstance(law, GaussianLaw):
            return cls(law, False)
        generator = torch.Generator().manual_seed(1)
        points = 2 * torch.randn(3, outputs.shape[1], generator=generator, dtype=torch.float64).to(outputs)
        return cls(law, torch.allclose(law.probabilities(points), points.softmax(-1), rtol=1e-4, atol=1e-6))

    def sampled(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """d at one label per row drawn from the law: E[d d^T] = H_r of each row. Drawn on the CPU in float32."""
        B, C = outputs.shape
        if isinstance(self.law, GaussianLaw):
            return self.law.sampled_score(outputs, torch.randn(B, C, generator=generator))
        uniform = torch.rand(B, generator=generator).to(outputs.device)  # [B]
        if not self.softmax:
            return self.law.sampled_score(outputs, uniform)
        p = outputs.softmax(-1)
        labels = (uniform.unsqueeze(-1) > p.cumsum(-1)[:, :-1]).sum(-1)  # [B]
        return p - functional.one_hot(labels, C)

    def exact(self, outputs: Tensor) -> Iterator[Tensor]:
        """C tensors d_c with sum over c of d_c d_c^T = H_r, for each row."""
        C = outputs.shape[1]
        if isinstance(self.law, GaussianLaw):
            for c in range(C):
                d = torch.zeros_like(outputs)
                d[:, c] = self.law.precision**0.5
                yield d
        else:
            p = self.law.probabilities(outputs)  # [B, C]
            for c in range(C):
                yield p[:, c : c + 1].sqrt() * self._score(self.law, outputs, p, c)

    def _score(self, law: CategoricalLaw, outputs: Tensor, p: Tensor, label: int) -> Tensor:
        labels = torch.full((len(outputs),), label, device=outputs.device)
        if self.softmax:
            return p - functional.one_hot(labels, outputs.shape[1])
        return row_slopes(law.loss, outputs, labels)
