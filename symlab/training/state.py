"""What training changes."""

from dataclasses import dataclass

import torch
from torch import nn

from symlab.training.execution import PLAIN, Execution
from symlab.training.weight_average import WeightAverage


@dataclass
class Training:
    """Everything that training changes, so everything that a checkpoint holds (beside the random state)."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    how: Execution = PLAIN  # of its updates and evaluations; its loss scale changes
    average: WeightAverage | None = None
    step: int = 0  # updates done
    evaluated: int = -1  # step of the last metrics row; -1: none yet
    loss_sum: float = 0.0  # batch losses since that row, in float64
    loss_count: int = 0
    seconds: float = 0.0  # spent in updates

    def __post_init__(self) -> None:
        # taken when built, before a checkpoint is loaded: loading writes scheduled rates into the groups
        self.base_rates = [float(group["lr"]) for group in self.optimizer.param_groups]

    @property
    def evaluated_model(self) -> nn.Module:
        """The model that metrics and the best weights are of: the running average of the weights where there is one."""
        return self.model if self.average is None else self.average.model
