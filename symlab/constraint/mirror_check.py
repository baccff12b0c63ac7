"""Whether a loss has a mirror symmetry, tried in numbers.

error = max over draws |l(R theta) - l(theta)| / |l(theta)|,   theta random, in float64
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from symlab.constraint.mirror import Mirror, Shapes

Function = Callable[[Mapping[str, Tensor]], Tensor]
"""Parameters (name -> tensor) -> the loss, or outputs of any shape."""


def random_point(shapes: Shapes, generator: torch.Generator) -> dict[str, Tensor]:
    """theta ~ N(0, 1 / fan in), biases and other vectors N(0, 1): float64, on the CPU. No entry is zero or equal."""
    return {
        name: torch.randn(tuple(shape), generator=generator, dtype=torch.float64) / math.sqrt(math.prod(shape[1:]) or 1)
        for name, shape in shapes.items()
    }


def mirror_error(function: Function, mirror: Mirror, shapes: Shapes, *, draws: int = 3, seed: int = 0) -> float:
    """max over draws of ||f(R theta) - f(theta)|| / ||f(theta)||, at `random_point`s of all tensors `shapes`.

    About 1e-15 for a symmetry, of order 1 else; infinite where an output is not finite; absolute if f(theta) = 0.

    Raises ValueError for less than one draw, and for `shapes` without a tensor of the mirror.
    """
    if not draws >= 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    generator = torch.Generator().manual_seed(seed)
    worst = 0.0
    for _ in range(draws):
        point = random_point(shapes, generator)
        with torch.no_grad():
            before, after = function(point).double(), function(mirror.reflect(point)).double()
        error = (torch.linalg.vector_norm(after - before) / (torch.linalg.vector_norm(before).item() or 1.0)).item()
        worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst


def check_mirror(
    function: Function, mirror: Mirror, shapes: Shapes, *, rtol: float = 1e-9, draws: int = 3, seed: int = 0
) -> float:
    """`mirror_error`, which must be at most `rtol`.

    Raises ValueError, naming the mirror and the error, if it is larger, and unless rtol is positive.
    """
    if not rtol > 0:
        raise ValueError(f"rtol must be positive, got {rtol}")
    error = mirror_error(function, mirror, shapes, draws=draws, seed=seed)
    if not error <= rtol:
        raise ValueError(
            f"the loss does not have the mirror symmetry {mirror.name}: it changes by {error:.2g} of itself at random "
            f"parameters, more than rtol = {rtol:g}"
        )
    return error


def function_of_parameters(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor
) -> Function:
    """theta -> loss(f(theta, inputs), targets) of a copy of the model in float64, on the CPU.

    theta holds some or all of the parameters by their names; the rest, and the buffers, are the model's own at every
    call. Batch norm must be in training mode: in eval mode its running statistics would have to be reflected too. A
    model with dropout must be in eval mode.
    """
    exact = copy.deepcopy(model).double().cpu()
    x = inputs.detach().cpu()
    x = x.double() if x.is_floating_point() else x
    y = targets.detach().cpu()
    y = y.double() if y.is_floating_point() else y
    state = {name: tensor.detach().clone() for name, tensor in [*exact.named_parameters(), *exact.named_buffers()]}

    def function(point: Mapping[str, Tensor]) -> Tensor:
        copies = {name: tensor.clone() for name, tensor in state.items()}
        return loss(functional_call(exact, {**copies, **point}, (x,)), y)

    return function
