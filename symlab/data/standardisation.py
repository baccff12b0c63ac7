"""Standardisation of images with statistics of the training rows alone.

Shapes: N rows, C channels, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def standardise(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """(x - m_c) / s_c per channel c, with m_c and s_c mean and standard deviation over the training rows
    and pixels.

    `train` [N, C, H, W] and `test` [N', C, H, W] may be uint8 or floating; both come back as float32,
    statistics are computed in float64. Raises ValueError for a channel that is constant on the training
    rows.
    """
    values = train.to(torch.float64)
    mean = values.mean(dim=(0, 2, 3), keepdim=True)  # [1, C, 1, 1]
    std = values.std(dim=(0, 2, 3), keepdim=True, correction=0)  # [1, C, 1, 1]
    if not (std > 0).all():
        channel = int((std.flatten() <= 0).nonzero()[0])
        raise ValueError(
            f"channel {channel} of the {train.shape[0]} training images has the same value everywhere, "
            f"{float(mean.flatten()[channel]):g}, so it cannot be standardised"
        )

    def scaled(images: Tensor) -> Tensor:
        return ((images.to(torch.float32) - mean.to(torch.float32)) / std.to(torch.float32)).contiguous()

    return scaled(train), scaled(test)
