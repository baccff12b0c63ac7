"""The loss as it is differentiated: checked to be a mean over rows, and free of a function that torch differentiates
wrongly.

Legend: B  rows;  C  outputs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, C], targets) -> 0-d tensor: the mean over rows of a function of one row's outputs and target."""

_SAMPLE_ROWS = 64
"""Rows on which the loss is checked to be a mean over rows."""


def differentiable(loss: Loss) -> Loss:
    """The same loss with torch's mse_loss, whose forward-over-reverse derivative crashes (torch 2.14), written out."""

    def written_out(outputs: Tensor, targets: Tensor) -> Tensor:
        with _WrittenOut():
            return loss(outputs, targets)

    return written_out


class _WrittenOut(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.mse_loss:
            return _mean_squared_error(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _mean_squared_error(input: Tensor, target: Tensor, *ignored: Any, reduction: str = "mean", **rest: Any) -> Tensor:
    if ignored or any(value is not None for value in rest.values()):
        raise ValueError("mse_loss with weights or deprecated arguments: write the loss as a mean over rows")
    squares = (input - target).square()
    return squares.mean() if reduction == "mean" else squares.sum() if reduction == "sum" else squares


@torch.no_grad()
def check_loss(loss: Loss, targets: Tensor, num_outputs: int) -> None:
    """Compares the loss of up to 64 rows, with random outputs, with the mean of their own losses.

    Raises:
        ValueError: they differ, or the loss is no 0-d tensor.
    """
    rows = torch.linspace(0, len(targets) - 1, min(len(targets), _SAMPLE_ROWS)).round().long()
    some = targets[rows.to(targets.device)]
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(len(rows), num_outputs, generator=generator, dtype=torch.float64).to(some.device)
    if some.is_floating_point():
        outputs = outputs.to(some.dtype)
    together = loss(outputs, some)
    if together.ndim != 0:
        raise ValueError(f"the loss must be a mean over rows (a 0-d tensor), got shape {list(together.shape)}")
    singles = torch.stack([loss(outputs[r : r + 1], some[r : r + 1]) for r in range(len(rows))])
    mean = singles.mean()
    if not torch.allclose(together, mean, rtol=1e-4, atol=1e-6):
        is_sum = torch.allclose(together, singles.sum(), rtol=1e-4)
        raise ValueError(
            f"the loss must be the mean over rows of a function of one row: of {len(rows)} rows it is "
            f"{float(together):.6g}, the mean of the rows' own losses {float(mean):.6g}"
            + (" (it is their sum: divide by the number of rows)" if is_sum else "")
        )
