"""Losses: (outputs [B, C], targets) -> 0-d tensor, the mean over the batch.

B rows, C outputs. Targets are [B, C] floating (regression) or [B] int64 class indices. Every loss is computed in
float32 or better, so a bfloat16 model is not measured with three digits.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from symlab.training.factories import Loss


def half_mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """||f(X) - Y||_F^2 / (2 B): half the squared error summed over outputs, averaged over rows.

    `outputs` [B, C]; `targets` [B, C] floating, or [B] int64 class indices, which become one-hot rows.

    Raises ValueError where outputs and targets do not have the same shape.
    """
    outputs = _at_least_float32(outputs)
    if not targets.is_floating_point():
        _check_labels(outputs, targets)
        targets = functional.one_hot(targets, outputs.shape[1])  # [B, C]
    if outputs.shape != targets.shape:
        raise ValueError(f"outputs and targets differ in shape: {list(outputs.shape)} and {list(targets.shape)}")
    return (outputs - targets.to(outputs.dtype)).square().sum() / (2 * outputs.shape[0])


def cross_entropy(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """-(1/B) sum_b sum_c q_bc log softmax(f(x_b))_c, in nats, q_bc = (1 - s) [c = y_b] + s / C (Szegedy et al., 2016).

    `outputs` [B, C], `targets` [B] int64 class indices, s = `label_smoothing`. Training may smooth; what a run reports
    of training and test rows is the loss without it (`reported`).

    Raises ValueError for floating targets, where the numbers of rows differ and unless 0 <= s < 1.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be at least 0 and below 1, got {label_smoothing}")
    if targets.is_floating_point():
        raise ValueError(
            f"cross_entropy needs int64 class indices, got {targets.dtype} targets; for regression use"
            " loss=half_mean_squared_error"
        )
    outputs = _at_least_float32(outputs)
    _check_labels(outputs, targets)
    return functional.cross_entropy(outputs, targets, label_smoothing=label_smoothing)


def auto(outputs: Tensor, targets: Tensor) -> Tensor:
    """The task's natural loss: `cross_entropy` for class indices, `half_mean_squared_error` for floating targets."""
    if targets.is_floating_point():
        return half_mean_squared_error(outputs, targets)
    return cross_entropy(outputs, targets)


@runtime_checkable
class Configured(Protocol):
    """A function some of whose keywords are in place, such as functools.partial."""

    @property
    def keywords(self) -> Mapping[str, Any]: ...


def reported(loss: Loss) -> Loss:
    """`loss` without label smoothing, which is a means of training and not what is to be known about a model."""
    if isinstance(loss, Configured) and "label_smoothing" in loss.keywords:
        return partial(loss, label_smoothing=0.0)
    return loss


def _at_least_float32(outputs: Tensor) -> Tensor:
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def _check_labels(outputs: Tensor, targets: Tensor) -> None:
    if outputs.ndim != 2 or targets.shape != outputs.shape[:1]:
        raise ValueError(
            f"class targets need outputs [B, C] and targets [B], got {list(outputs.shape)} and {list(targets.shape)}"
        )
