"""The one value that every data set is: train and test rows in memory, already standardised.

Shapes: N rows, C outputs or classes, input_shape the shape of one row (e.g. (100,) or (1, 8, 8)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""Training rows [B, *input_shape] of one batch, on any device, and a CPU generator -> rows of the same shape."""


@dataclass(frozen=True)
class Dataset:
    """Rows (x_i, y_i) of a training and a test split.

    `train_inputs`, `test_inputs`: floating, [N, *input_shape]. `train_targets`, `test_targets`: floating
    [N, C] for regression (`num_classes` None) or int64 class indices [N] in [0, num_classes).
    `references` maps the name of a reference model to its test loss in the data's natural loss: half mean
    squared error ||f(X) - Y||_F^2 / (2n) for regression, mean cross-entropy in nats for classification.
    `augmentation` (None: none) is for the batches of training alone; the rows here are plain.

    Raises ValueError when shapes disagree, a split is empty, an input or a target is not finite or a
    label is out of range, and TypeError for a wrong dtype.
    """

    name: str
    train_inputs: Tensor  # [N, *input_shape]
    train_targets: Tensor  # [N, C] or [N]
    test_inputs: Tensor  # [N', *input_shape]
    test_targets: Tensor  # [N', C] or [N']
    num_classes: int | None = None
    references: Mapping[str, float] = field(default_factory=dict)
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        if self.num_classes is not None and self.num_classes < 1:
            raise ValueError(f"data {self.name}: num_classes must be at least 1, got {self.num_classes}")
        for split, inputs, targets in self._splits():
            where = f"data {self.name}, {split} split"
            _check_inputs(where, inputs)
            _check_length(where, inputs, targets)
            if self.num_classes is None:
                _check_regression_targets(where, targets)
            else:
                _check_labels(where, targets, self.num_classes)
        _check_same(self.name, "inputs", self.train_inputs, self.test_inputs)
        _check_same(self.name, "targets", self.train_targets, self.test_targets)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input row."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def output_size(self) -> int:
        """Number of outputs that a model needs: the classes, or C."""
        return self.train_targets.shape[1] if self.num_classes is None else self.num_classes

    @property
    def num_train(self) -> int:
        """Number of training rows."""
        return len(self.train_inputs)

    @property
    def num_test(self) -> int:
        """Number of test rows."""
        return len(self.test_inputs)

    def head(self, rows: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the first `rows` training rows (fewer if there are fewer), plain."""
        return self.train_inputs[:rows], self.train_targets[:rows]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Dataset:
        """The same data on `device`, its floating tensors as `dtype`; class indices stay int64."""
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, got {dtype}")

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)

        return replace(
            self,
            train_inputs=move(self.train_inputs),
            train_targets=move(self.train_targets),
            test_inputs=move(self.test_inputs),
            test_targets=move(self.test_targets),
        )

    def _splits(self) -> tuple[tuple[str, Tensor, Tensor], tuple[str, Tensor, Tensor]]:
        return (
            ("train", self.train_inputs, self.train_targets),
            ("test", self.test_inputs, self.test_targets),
        )


def _check_inputs(where: str, inputs: Tensor) -> None:
    if not inputs.is_floating_point():
        raise TypeError(f"{where}: inputs must be floating point, got {inputs.dtype}")
    if inputs.ndim < 2:
        raise ValueError(f"{where}: inputs must have shape [N, *input_shape], got {list(inputs.shape)}")
    if inputs.numel() == 0:
        raise ValueError(f"{where}: needs at least 1 row and 1 input, got shape {list(inputs.shape)}")
    _check_finite(where, "inputs", inputs)


def _check_length(where: str, inputs: Tensor, targets: Tensor) -> None:
    rows = targets.shape[0] if targets.ndim else 0
    if rows != inputs.shape[0]:
        raise ValueError(f"{where}: {inputs.shape[0]} input rows but {rows} target rows")


def _check_regression_targets(where: str, targets: Tensor) -> None:
    if not targets.is_floating_point():
        raise TypeError(f"{where}: regression targets must be floating point, got {targets.dtype}")
    if targets.ndim != 2 or targets.shape[1] == 0:
        raise ValueError(f"{where}: regression targets must have shape [N, C], got {list(targets.shape)}")
    _check_finite(where, "targets", targets)


def _check_labels(where: str, targets: Tensor, num_classes: int) -> None:
    if targets.dtype != torch.int64:
        raise TypeError(f"{where}: class indices must be int64, got {targets.dtype}")
    if targets.ndim != 1:
        raise ValueError(f"{where}: class indices must have shape [N], got {list(targets.shape)}")
    outside = (targets < 0) | (targets >= num_classes)  # [N]
    if outside.any():
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"{where}: labels must lie in 0..{num_classes - 1} ({num_classes} classes), "
            f"got {int(targets[row])} in row {row} "
            f"({int(outside.sum())} of {targets.shape[0]} labels are out of range)"
        )


def _check_finite(where: str, what: str, tensor: Tensor) -> None:
    bad = ~torch.isfinite(tensor)
    if bad.any():
        row = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"{where}: {what} must be finite, got {int(bad.sum())} non-finite entries, the first in row {row}"
        )


def _check_same(name: str, what: str, train: Tensor, test: Tensor) -> None:
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"data {name}: train and test {what} differ in shape: one train row is {list(train.shape[1:])}, "
            f"one test row is {list(test.shape[1:])}"
        )
    if train.dtype != test.dtype:
        raise TypeError(f"data {name}: train {what} are {train.dtype}, test {what} are {test.dtype}")
