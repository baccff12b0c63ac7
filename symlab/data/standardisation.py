"""Scaling of images, with statistics of the training rows alone.

Shapes: N rows, C channels, H x W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 4096  # rows converted to float64 at a time, so that the statistics need little memory


@dataclass(frozen=True)
class Scale:
    """(x - m_c) / s_c per channel c, in float32; `mean` and `std` [C] in float64."""

    mean: Tensor
    std: Tensor

    def apply(self, images: Tensor) -> Tensor:
        """`images` [N, C, H, W], uint8 or floating, scaled, as float32."""
        centred = images.to(torch.float32, copy=True).sub_(self.mean.to(torch.float32)[:, None, None])
        return centred.div_(self.std.to(torch.float32)[:, None, None]).contiguous()

    @property
    def black(self) -> Tensor:
        """What the value 0 becomes [C], float32."""
        return self.apply(torch.zeros(1, len(self.mean), 1, 1)).flatten()


def unit_scale(white: float, channels: int) -> Scale:
    """x / white: pixels in [0, 1]."""
    return Scale(torch.zeros(channels, dtype=torch.float64), torch.full((channels,), white, dtype=torch.float64))


def standard_scale(train: Tensor) -> Scale:
    """m_c, s_c: mean and standard deviation over training rows and pixels of `train` [N, C, H, W], in float64.

    Raises ValueError for a channel that is constant on the training rows.
    """
    mean, std = channel_statistics(train)  # [C], [C]
    if not (std > 0).all():
        channel = int((std <= 0).nonzero()[0])
        raise ValueError(
            f"channel {channel} of the {train.shape[0]} training images has the same value everywhere, "
            f"{float(mean[channel]):g}, so it cannot be standardised"
        )
    return Scale(mean, std)


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
