"""What a protocol is: parts that can be computed one after the other, tables, and numbers with their statements.

A protocol is a function `NAME(ground, *, keys...) -> Study` in a file of that name, with a conf/protocol/NAME.yaml. It
checks its keys (ValueError) before anything is computed. The job runs the parts, keeps their rows, and draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from symlab.data.dataset import Dataset
from symlab.rundir.bands import over_data
from symlab.training.factories import ModelFactory, OptimizerFactory, Schedule

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]
Tables = dict[str, list[Row]]
"""Table -> new rows. The first table is called metrics; every row holds its setting, its seed and what was measured."""

Number = dict[str, Any]
"""value, error, spread (None where there is none) and text, the statement that the number is about."""


@dataclass(frozen=True)
class Ground:
    """What all protocols stand on. `data`, `model`, `optimizer` and `schedule` are None where the config names none.

    A protocol asks for those that it works on while it is built; what is given and not asked for is refused.
    """

    seeds: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    data: Dataset | None = None
    model: ModelFactory | None = None
    optimizer: OptimizerFactory | None = None
    schedule: Schedule | None = None
    asked: set[str] = field(default_factory=set, compare=False)

    def need_data(self) -> Dataset:
        """Raises ValueError, saying what to add, without data."""
        self.asked.add("data")
        if self.data is None:
            raise ValueError("this protocol trains on data: name some, e.g. data=digits")
        return self.data

    def need_model(self) -> ModelFactory:
        """Raises ValueError, saying what to add, without a model."""
        self.asked.add("model")
        if self.model is None:
            raise ValueError("this protocol trains a model: name one, e.g. model=mlp")
        return self.model

    def need_optimizer(self) -> OptimizerFactory:
        """Raises ValueError, saying what to add, without an optimizer."""
        self.asked.add("optimizer")
        if self.optimizer is None:
            raise ValueError("this protocol needs an optimizer: name one, e.g. optimizer=sgd")
        return self.optimizer

    def need_schedule(self) -> Schedule:
        """Raises ValueError, saying what to add, without a schedule."""
        self.asked.add("schedule")
        if self.schedule is None:
            raise ValueError("this protocol needs a schedule: name one, e.g. schedule=cosine")
        return self.schedule

    def unused(self) -> list[str]:
        """Keys that the config names and that no one has asked for."""
        parts = {"data": self.data, "model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        return [key for key, part in parts.items() if part is not None and key not in self.asked]


class Watch(Protocol):
    """What a part that takes long may use while it runs."""

    def stopped(self) -> bool:
        """A signal came: return None soon, after `save` of what is worth keeping."""
        ...

    def saved(self) -> dict[str, Any] | None:
        """What `save` kept of this very part before the run was interrupted; None if it starts anew.

        torch's global random state is then put back to that of the `save`.
        """
        ...

    def due(self) -> bool:
        """Whether it is time for another `save`."""
        ...

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep tensors and plain values, from which the part goes on exactly."""
        ...

    def say(self, text: str) -> None:
        """A few words beside the progress bar."""
        ...


class Study(Protocol):
    """One experiment. `figures`: figure -> the table that it draws; `references`: what plots are given by name."""

    @property
    def title(self) -> str: ...

    @property
    def figures(self) -> Mapping[str, str]: ...

    @property
    def references(self) -> Mapping[str, float]: ...

    def parts(self) -> Sequence[str]:
        """Names of the parts, each once, the same whenever the config is the same."""
        ...

    def run(self, part: str, watch: Watch) -> Tables | None:
        """The rows of one part; None if it was stopped."""
        ...

    def number_names(self) -> Sequence[str]:
        """Keys of `numbers`, known before anything is computed."""
        ...

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """What the statements are judged by, from the rows of all parts."""
        ...


def over_seeds(text: str, values: Sequence[float | None]) -> Number:
    """Mean, standard error and standard deviation over seeds, with the statement `text`; None where a seed has none."""
    return {"text": text, **over_data(values, [None] * len(values))}


def single(text: str, value: float | None, error: float | None = None) -> Number:
    """A number that is not a mean over seeds."""
    return {"text": text, "value": value, "error": error, "spread": None}
