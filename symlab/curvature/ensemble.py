"""Many models at once: drawing them, training them, and how many fit.

Legend: S  models of one chunk;  P  number of weights.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from symlab.curvature.linear_layers import RowsLast
from symlab.curvature.problem import Problem, seeded

Build = Callable[[torch.Generator], nn.Module]
"""Builds a model whose random numbers all come from the generator."""


_MOST_BATCHES = 8
"""Of rows: with more, a traced function would be long and its operations too large to gain anything."""


def draw(build: Build, problem: Problem, seed: int, first: int, count: int) -> dict[str, Tensor]:
    """Parameters [S, *shape] of the models number first ... first + count - 1, built one after the other.

    Model i is drawn from a generator seeded with a mix of (seed, i), so it is the same whatever the chunk. Parameters
    have the precision and device of the problem.

    Raises:
        ValueError: a model has other parameters than the problem's, or frozen parameters or buffers of other values.
    """
    generator = torch.Generator()
    rows: dict[str, list[Tensor]] = {name: [] for name in problem.names}
    constants = _constants(problem.model, problem)
    with torch.random.fork_rng([]):
        for i in range(first, first + count):
            for source in (generator, torch.default_generator):  # the latter for models that draw from it
                source.manual_seed(mixed_seed(seed, i))
            model = build(generator)
            own = dict(model.named_parameters())
            _check(own, problem, i)
            if constants:
                _check_constants(_constants(model, problem), constants, i)
            for name, row in rows.items():
                row.append(own[name].detach())
    return {name: torch.stack(row).to(problem.inputs.device, problem.dtype) for name, row in rows.items()}


def mixed_seed(seed: int, i: int) -> int:
    """63 bits that depend on every bit of (seed, i): SplitMix64's finaliser (Steele et al., 2014), applied twice."""
    return _finalise(_finalise(seed) + 0x9E3779B97F4A7C15 * (i + 1)) >> 1


def _finalise(z: int) -> int:
    mask = (1 << 64) - 1
    z &= mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def over_models(
    problem: Problem, fn: Callable[..., Any], parameters: Mapping[str, Tensor], *others: Any, key: str | None = None
) -> Any:
    """fn(parameters of one model, ...) of every model: results with a leading dimension S.

    A single model is computed plainly: large convolutions are slower under vmap. With a `key`, which must name what
    `fn` computes of this problem, many models are traced and replayed; see `Replays`.
    """
    count = len(next(iter(parameters.values())))
    with seeded(problem):
        if count == 1:
            result = fn({name: x[0] for name, x in parameters.items()}, *(tree_map(lambda x: x[0], o) for o in others))
            return tree_map(lambda x: x.unsqueeze(0), result)
        parameters = {name: x.contiguous() for name, x in parameters.items()}  # forward mode refuses expanded ones
        mapped = vmap(fn, randomness=problem.randomness())
        with torch.no_grad(), RowsLast():
            if key is None or problem.training or problem.num_batches > _MOST_BATCHES:
                return mapped(parameters, *others)
            return problem.replays.call((key, count), mapped, parameters, *others)


def descend(problem: Problem, parameters: Mapping[str, Tensor], steps: int, lr: float) -> dict[str, Tensor]:
    """theta <- theta - lr grad L(theta), `steps` times, of every model: [S, *shape]. The arguments are not changed.

    Raises:
        ValueError: steps < 0 or lr that is not positive.
    """
    from symlab.curvature.gradients import gradients

    if not steps >= 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    if not lr > 0:
        raise ValueError(f"lr must be positive, got {lr}")
    moved = dict(parameters)
    for _ in range(steps):
        slope = gradients(problem, moved)
        moved = {name: x - lr * slope[name] for name, x in moved.items()}
    return moved


def _constants(model: nn.Module, problem: Problem) -> dict[str, Tensor]:
    """What of a model is the same for all: frozen parameters and buffers."""
    frozen = {name: p for name, p in model.named_parameters() if name not in problem.shapes}
    return {**frozen, **dict(model.named_buffers())}


def _check(own: Mapping[str, Tensor], problem: Problem, i: int) -> None:
    for name, shape in problem.shapes.items():
        if name not in own or own[name].shape != shape:
            found = list(own[name].shape) if name in own else "none"
            raise ValueError(f"model {i} must have the parameter {name} {list(shape)} of the template, found {found}")


def _check_constants(own: Mapping[str, Tensor], template: Mapping[str, Tensor], i: int) -> None:
    for name, value in template.items():
        if name in own and not torch.equal(own[name].to(value), value):
            raise ValueError(
                f"{name} is frozen (or a buffer) but differs between the template and model {i}: it must be the same "
                "for all models, or trainable"
            )
