"""Standardisation of images with statistics of the training rows alone.

Shapes: N rows, C channels, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 4096  # rows converted to float64 at a time, so that the statistics need little memory


def standardise(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """(x - m_c) / s_c per channel c; m_c, s_c: mean and standard deviation over training rows and pixels.

    `train` [N, C, H, W] and `test` [N', C, H, W] may be uint8 or floating; both come back as float32,
    statistics are computed in float64. Raises ValueError for a channel that is constant on the training rows.
    """
    mean, std = channel_statistics(train)  # [C], [C]
    if not (std > 0).all():
        channel = int((std <= 0).nonzero()[0])
        raise ValueError(
            f"channel {channel} of the {train.shape[0]} training images has the same value everywhere, "
            f"{float(mean[channel]):g}, so it cannot be standardised"
        )

    def scaled(images: Tensor) -> Tensor:
        centred = images.to(torch.float32, copy=True).sub_(mean.to(torch.float32)[:, None, None])
        return centred.div_(std.to(torch.float32)[:, None, None]).contiguous()

    return scaled(train), scaled(test)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [C] and standard deviation [C] (divisor N H W) of `images` [N, C, H, W], in float64."""
    count = images.shape[0] * images.shape[2] * images.shape[3]
    total = torch.zeros(images.shape[1], dtype=torch.float64)
    for chunk in images.split(CHUNK):
        total += chunk.to(torch.float64).sum(dim=(0, 2, 3))
    mean = total / count
    squares = torch.zeros_like(total)
    for chunk in images.split(CHUNK):
        squares += (chunk.to(torch.float64) - mean[:, None, None]).square().sum(dim=(0, 2, 3))
    return mean, (squares / count).sqrt()
