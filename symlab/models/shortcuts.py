"""What a residual block adds to its branch where the shape of the stream changes.

Shapes: B rows, C channels, H x W pixels, s the stride; H' = ceil(H / s).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

SHORTCUTS = ("conv", "avgpool_conv")
"""conv: a convolution 1x1; avgpool_conv: the same convolution + `RescaledPooling`, which has no weights."""


class RescaledPooling(nn.Module):
    """y_c = sum of x_c over a window / sqrt(number of pixels in the window), windows s x s side by side; then zeros
    for the channels there are more of, half before and half after, an odd one after (MacDonald et al., NeurIPS 2023,
    section 6: s AvgPool_s).

    [B, channels, H, W] -> [B, out_channels, H', W'], H' = ceil(H / s): where s does not divide H, the last windows
    hold the pixels that are left, as many places as a convolution 1x1 of stride s has. The rows of its
    matrix are orthonormal, but for those of the zero channels, which are 0: so all its singular values are 1, but for
    one 0 for each of these. At s = 1 it is the identity between zeros.

    Raises ValueError for fewer channels out than in, and for sizes below 1.
    """

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        if not 1 <= channels <= out_channels:
            raise ValueError(f"the pooling needs 1 <= channels <= out_channels, got {channels} and {out_channels}")
        if not stride >= 1:
            raise ValueError(f"stride must be at least 1, got {stride}")
        self.stride = stride
        self.before = (out_channels - channels) // 2
        self.after = out_channels - channels - self.before

    def forward(self, inputs: Tensor) -> Tensor:
        pooled = inputs
        if self.stride > 1:
            pooled = functional.avg_pool2d(inputs, self.stride, ceil_mode=True, divisor_override=self.stride)
            pooled = self._border(pooled, inputs.shape[2], inputs.shape[3])  # [B, channels, H', W']
        return functional.pad(pooled, (0, 0, 0, 0, self.before, self.after))  # [B, out_channels, H', W']

    def _border(self, pooled: Tensor, height: int, width: int) -> Tensor:
        """Sums over s divided by sqrt(pixels) where the last windows hold less than s x s pixels."""
        rows, columns = height % self.stride, width % self.stride
        if not rows and not columns:
            return pooled
        scales = [pooled.new_ones(size) for size in pooled.shape[2:]]
        for scale, rest in zip(scales, (rows, columns), strict=True):
            if rest:
                scale[-1] = math.sqrt(self.stride / rest)
        return pooled * torch.outer(*scales)

    def extra_repr(self) -> str:
        return f"stride={self.stride}, zeros before={self.before}, after={self.after}"


def check_shortcut(shortcut: str) -> None:
    if shortcut not in SHORTCUTS:
        raise ValueError(f"shortcut must be one of {', '.join(SHORTCUTS)}, got {shortcut!r}")


def changes_shape(channels: int, out_channels: int, stride: int) -> bool:
    return stride != 1 or channels != out_channels


def shortcut_pooling(channels: int, out_channels: int, stride: int, shortcut: str) -> RescaledPooling | None:
    """The pooling part of a block's shortcut; None where there is none: `conv`, or a stream that keeps its shape."""
    if shortcut == "conv" or not changes_shape(channels, out_channels, stride):
        return None
    return RescaledPooling(channels, out_channels, stride)
