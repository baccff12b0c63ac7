"""Which rule of an optimizer covers which tensor of a model."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn


class Coverage(NamedTuple):
    """Which rule covers a tensor, and how many weights of it."""

    tensor: str
    rule: str
    weights: int


@runtime_checkable
class ReportsCoverage(Protocol):
    """An optimizer with more than one rule: it says which one each of its tensors has."""

    def coverage(self) -> list[Coverage]:
        """One row per tensor of the optimizer, by the tensor's name in the model."""
        ...


def coverage_table(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Coverage]:
    """One row (tensor, rule, weights) per parameter of the model, in its order; a tied one once, by its first name.

    The rule is what the optimizer reports of the tensor, or else the name of the optimizer's class; "frozen" for a
    parameter that asks for no gradient, and for one that the optimizer was not given "empty, left alone" if it has no
    entries, else "not in the optimizer".
    """
    reported = optimizer.coverage() if isinstance(optimizer, ReportsCoverage) else []
    rules = {row.tensor: row.rule for row in reported}
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    table = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            rule = "frozen"
        elif id(parameter) not in given:
            rule = "not in the optimizer" if parameter.numel() else "empty, left alone"
        else:
            rule = rules.get(name, type(optimizer).__name__)
        table.append(Coverage(name, rule, parameter.numel()))
    return table
