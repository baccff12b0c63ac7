"""What a job is given: callables for the model, the optimizer, the schedule, the loss and the figure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from symlab.data.streamed import AnyDataset

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

DataFactory = Callable[[], AnyDataset]
Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, C], targets) -> 0-d tensor, the mean over the batch."""

Stop = Callable[[], bool]
"""Asked between steps and between evaluation batches; True ends the run after a checkpoint."""


class ModelFactory(Protocol):
    """Builds a model on the CPU in float32, every random number drawn from `generator`."""

    def __call__(self, input_shape: tuple[int, ...], output_size: int, generator: torch.Generator) -> nn.Module: ...


class OptimizerFactory(Protocol):
    """Builds an optimizer for `model`; `inputs` are a few rows of training data on the model's device."""

    def __call__(self, model: nn.Module, inputs: Tensor) -> torch.optim.Optimizer: ...


class ConstraintFactory(Protocol):
    """Changes the weights of `model` into functions of others, in place, and returns it; before any optimizer.

    `inputs` are a few rows of training data; every random number is drawn from `generator`.
    """

    def __call__(self, model: nn.Module, inputs: Tensor, generator: torch.Generator) -> nn.Module: ...


@runtime_checkable
class UsesBatch(Protocol):
    """An optimizer that needs the batch beside its gradients: for curvature, or to evaluate the loss elsewhere."""

    def observe(self, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
        """Take in the batch of the step that follows. Leaves every `.grad` alone."""
        ...


class Schedule(Protocol):
    """The factor of the base rate for update number `step` of `total_steps`."""

    def __call__(self, step: int, total_steps: int) -> float: ...


class PlotFunction(Protocol):
    """Draws the metrics table of one or many runs."""

    def __call__(self, table: pandas.DataFrame, references: Mapping[str, float], *, title: str) -> Figure: ...


def name_of(factory: Callable[..., Any]) -> str:
    """The name of the function behind a factory, as it stands in figures: `functools.partial` is looked through."""
    function = factory.func if isinstance(factory, functools.partial) else factory
    return getattr(function, "__name__", type(function).__name__)
