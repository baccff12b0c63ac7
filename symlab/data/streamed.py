"""A data set whose images lie on disk and are read as they are needed.

N rows, C channels, H x W pixels, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from symlab.data.dataset import Dataset


class BadImageError(ValueError):
    """An image file cannot be read: one message that names the path."""


@dataclass(frozen=True)
class StreamedSplit:
    """`labels` int64 [N] and `load(index, seed)` -> uint8 [C, H, W].

    `load` is the same for the same (index, seed); what is random in it is drawn from `seed`, and with None nothing is
    (the view of evaluation). It can be pickled, and leaves all random generators alone. It raises BadImageError.
    """

    labels: Tensor
    load: Callable[[int, int | None], Tensor]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class StreamedDataset:
    """Rows (x_i, y_i) of a training and a test split, standardised as (x / 255 - mean_c) / std_c once they are on the
    device.

    `input_shape` (C, H, W), `num_classes` labels 0, 1, ...; `workers` is the number of processes that load training
    images (0: none beside the main one). `device` and `dtype` are those of the batches; `to` changes them.

    Raises ValueError for a split without rows, a label out of range, and statistics that do not fit the channels.
    """

    name: str
    train: StreamedSplit
    test: StreamedSplit
    num_classes: int
    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    workers: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    references: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for split, rows in (("train", self.train), ("test", self.test)):
            where = f"data {self.name}, {split} split"
            if not len(rows):
                raise ValueError(f"{where}: needs at least 1 row, got 0")
            if not (rows.labels.min() >= 0 and rows.labels.max() < self.num_classes):
                found = f"{int(rows.labels.min())}..{int(rows.labels.max())}"
                raise ValueError(f"{where}: labels must lie in 0..{self.num_classes - 1}, got {found}")
        if not len(self.mean) == len(self.std) == self.input_shape[0]:
            raise ValueError(f"data {self.name}: mean and std must have {self.input_shape[0]} entries, one per channel")

    @property
    def num_train(self) -> int:
        """Number of training rows."""
        return len(self.train)

    @property
    def num_test(self) -> int:
        """Number of test rows."""
        return len(self.test)

    @property
    def output_size(self) -> int:
        """Number of outputs that a model needs: the classes."""
        return self.num_classes

    def to(self, device: torch.device | str, dtype: torch.dtype) -> StreamedDataset:
        """The same data, its batches on `device` as `dtype`."""
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, got {dtype}")
        return replace(self, device=torch.device(device), dtype=dtype)

    def finish(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """(x / 255 - mean_c) / std_c for uint8 `images` [B, C, H, W], computed on their device in float32 at least."""
        exact = torch.promote_types(dtype, torch.float32)
        mean = torch.tensor(self.mean, dtype=exact, device=images.device)[:, None, None]
        std = torch.tensor(self.std, dtype=exact, device=images.device)[:, None, None]
        return images.to(exact).div_(255).sub_(mean).div_(std).to(dtype)

    def head(self, rows: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the first `rows` training rows (fewer if there are fewer), as evaluation sees them."""
        count = min(rows, self.num_train)
        images = torch.stack([self.train.load(index, None) for index in range(count)])  # [B, C, H, W]
        return self.finish(images.to(self.device), self.dtype), self.train.labels[:count].to(self.device)


AnyDataset = Dataset | StreamedDataset
