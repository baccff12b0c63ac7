"""The learning rate of every update: base rate x warm-up x schedule, without any state."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from symlab.rundir import BadInput
from symlab.training.factories import Schedule


@dataclass(frozen=True)
class Rates:
    """f(t) = (t + 1) / (w + 1) for t < w, else schedule(t - w, T - w); w = `warmup_steps`, T = `total_steps`.

    The factor depends on the number of the update alone, so the first update after a resume uses the rate that the
    uninterrupted run used.

    Raises BadInput where warm-up leaves no update for the schedule.
    """

    schedule: Schedule
    warmup_steps: int
    total_steps: int

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps < self.total_steps:
            raise BadInput(
                f"warmup_steps must be in 0..{self.total_steps - 1} (the run has {self.total_steps} updates),"
                f" got {self.warmup_steps}"
            )

    def factor(self, step: int) -> float:
        """The factor of the base rate for update number `step`, 0 <= step < total_steps.

        Raises BadInput where the schedule gives a negative number or none.
        """
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        value = self.schedule(step - self.warmup_steps, self.total_steps - self.warmup_steps)
        if not 0 <= value < math.inf:
            raise BadInput(f"the schedule must give a finite factor >= 0, got {value} at update {step}")
        return value

    def check(self) -> None:
        """Raises BadInput for a schedule that is bad at the start, behind the warm-up or at the end."""
        for step in (0, self.warmup_steps, self.total_steps - 1):
            self.factor(step)

    def set(self, optimizer: torch.optim.Optimizer, base_rates: Sequence[float], step: int) -> float:
        """Write the rates of update number `step` into the optimizer's groups; returns the first group's."""
        factor = self.factor(step)
        for group, base in zip(optimizer.param_groups, base_rates, strict=True):
            group["lr"] = base * factor
        return float(optimizer.param_groups[0]["lr"])
