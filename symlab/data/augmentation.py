"""The usual augmentation of small images, for a whole batch at once on its device.

B rows, C channels, H x W pixels, P pixels of padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CropAndFlip:
    """y[b, c, u, v] = p[b, c, u + i_b, v' + j_b], v' = W - 1 - v where row b is flipped, else v; p: x in a frame of P
    pixels of `fill[c]`.

    Offsets i_b, j_b are uniform on 0..2P and flips have probability 1/2, all independent: the distribution of
    torchvision's RandomCrop((H, W), padding=P) and RandomHorizontalFlip() before the standardisation, with `fill` [C]
    what a black pixel is after it. Raises ValueError for `padding` below 0.
    """

    fill: Tensor
    padding: int = 4

    def __post_init__(self) -> None:
        if not self.padding >= 0:
            raise ValueError(f"padding must be at least 0, got {self.padding}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """`images` [B, C, H, W] cropped and flipped; draws 3 B numbers on the CPU, so any device gives the same."""
        offsets = torch.randint(0, 2 * self.padding + 1, (2, len(images)), generator=generator)  # [2, B]
        flips = torch.randint(0, 2, (len(images),), generator=generator).bool()  # [B]
        return self.moved(images, offsets.to(images.device), flips.to(images.device))

    def moved(self, images: Tensor, offsets: Tensor, flips: Tensor) -> Tensor:
        """`images` [B, C, H, W] with given `offsets` (i, j) [2, B] and `flips` [B], on their device."""
        rows, channels, height, width = images.shape
        padded = self._padded(images)  # [B, C, H + 2P, W + 2P]
        columns = torch.arange(width, device=images.device).expand(rows, width)  # [B, W]
        columns = torch.where(flips[:, None], width - 1 - columns, columns) + offsets[1, :, None]
        lines = torch.arange(height, device=images.device) + offsets[0, :, None]  # [B, H]
        places = lines[:, :, None] * padded.shape[3] + columns[:, None, :]  # [B, H, W], in a flattened padded image
        places = places.reshape(rows, 1, height * width).expand(rows, channels, height * width)
        return padded.flatten(2).gather(2, places).view(rows, channels, height, width)

    def _padded(self, images: Tensor) -> Tensor:
        rows, channels, height, width = images.shape
        frame = self.padding
        padded = images.new_empty(rows, channels, height + 2 * frame, width + 2 * frame)
        padded[:] = self.fill.to(images)[:, None, None]
        padded[:, :, frame : frame + height, frame : frame + width] = images
        return padded
