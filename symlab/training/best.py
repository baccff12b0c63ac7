"""The best weights so far."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass
class Best:
    """The evaluation with the highest test accuracy, or for regression the lowest test loss.

    An evaluation that is not finite is never best, and of equal values the earliest stays. `value` and `step` travel in
    every checkpoint, so a resumed run must beat them; the weights wait in `unsaved_weights` until they are written.
    """

    metric: str  # "test_accuracy" (higher is better) or "test_loss" (lower is better)
    value: float | None = None
    step: int | None = None
    unsaved_weights: dict[str, Tensor] | None = None

    def offer(self, row: Mapping[str, Any], model: nn.Module) -> bool:
        """Take the model's weights when the metrics row beats the best; returns whether it did."""
        value = row[self.metric]
        sign = 1 if self.metric == "test_accuracy" else -1
        if not (math.isfinite(value) and math.isfinite(row["test_loss"])):
            return False
        if self.value is not None and not sign * value > sign * self.value:
            return False
        self.value, self.step = value, row["step"]
        self.unsaved_weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        return True
