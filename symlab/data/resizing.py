"""Images of another size, or with their grey channel repeated, for nets that want it so.

Shapes: N rows, C channels, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from symlab.data.ranges import whole_number


def resized(images: Tensor, size: int | None, channels: int | None) -> Tensor:
    """Images [N, channels, size, size] from [N, C, H, W]: bilinear interpolation (with antialiasing where it shrinks),
    in float32 and not rounded, then the one grey channel repeated. None leaves a property as it is.

    Raises ValueError or TypeError for values below 1, and for `channels` other than C unless C is 1.
    """
    if size is not None and whole_number("size", size, least=1) != images.shape[2]:
        images = functional.interpolate(images.to(torch.float32), (size, size), mode="bilinear", antialias=True)
    if channels is not None and whole_number("channels", channels, least=1) != images.shape[1]:
        if images.shape[1] != 1:
            raise ValueError(f"channels must be {images.shape[1]} for images of {images.shape[1]} channels")
        images = images.repeat(1, channels, 1, 1)
    return images
