"""Small nets and their losses as functions of one vector, for the tests of mirrors."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from symlab.constraint.mirror_check import Function


def mlp(activation: nn.Module, inputs: int = 3, hidden: int = 4, outputs: int = 2, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, hidden), activation, nn.Linear(hidden, outputs)).double()


def batch(inputs: int = 3, outputs: int = 2, rows: int = 7, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator, dtype=torch.float64)
    return x, torch.randn(rows, outputs, generator=generator, dtype=torch.float64)


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def flat(point: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in point.values()])


def as_point(theta: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    chunks = theta.split([torch.Size(shape).numel() for shape in shapes.values()])
    return {name: chunk.reshape(shape) for (name, shape), chunk in zip(shapes.items(), chunks, strict=True)}


def of_vector(function: Function, shapes: Mapping[str, tuple[int, ...]]) -> Callable[[Tensor], Tensor]:
    return lambda theta: function(as_point(theta, shapes))
