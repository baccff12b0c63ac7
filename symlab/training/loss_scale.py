"""The loss scale of float16: small gradients are lifted above the format's smallest number before they are formed."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST, FLOOR = 2.0**24, 1.0
GROWTH_AFTER = 2000


@dataclass
class LossScale:
    """grad L = (1/s) grad (s L) with a power of two s (Micikevicius et al., Mixed Precision Training, 2018).

    s starts at 2^16 and doubles after 2000 updates in a row without overflow. Where the gradients of s L are not finite
    although L is, s is halved and the same batch is differentiated again: no batch and no update is left out, and
    optimizer, schedule and running statistics see each batch once. `repeats` counts these further passes.
    """

    value: float = 2.0**16
    good_updates: int = 0  # since the last change of the scale
    repeats: int = 0

    def lower(self) -> None:
        """Halve the scale for another pass.

        Raises FloatingPointError where it would fall below 1: then not the scale makes the gradients overflow.
        """
        if self.value / 2 < FLOOR:
            raise FloatingPointError(
                f"the gradients overflow in fp16 at every loss scale down to {self.value:g}; the update was not made;"
                " amp=bf16 has the range of float32"
            )
        self.value /= 2
        self.good_updates = 0
        self.repeats += 1

    def count(self) -> None:
        """One update was made with this scale."""
        self.good_updates += 1
        if self.good_updates == GROWTH_AFTER:
            self.value = min(2 * self.value, LARGEST)
            self.good_updates = 0

    @torch.no_grad()
    def divide_out(self, gradients: list[Tensor]) -> None:
        """g <- g / s, in place."""
        torch._foreach_mul_(gradients, 1 / self.value)

    def state(self) -> dict[str, float]:
        """Plain values for a checkpoint."""
        return {"value": self.value, "good_updates": self.good_updates, "repeats": self.repeats}

    def restore(self, state: Mapping[str, float]) -> None:
        """Write back what `state` returned."""
        self.value = float(state["value"])
        self.good_updates, self.repeats = int(state["good_updates"]), int(state["repeats"])
