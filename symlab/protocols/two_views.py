"""Two augmented views of images, and the loss that tells which belong together.

Legend: S  nets or seeds;  B  images of a batch;  F  outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Views:
    """Random cuts: a shift by up to `shift` pixels, brightness times 1 +- `contrast`, and noise N(0, `noise`^2)."""

    shift: int
    contrast: float
    noise: float

    def draw(self, shape: tuple[int, int, int, int], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """What two views of B images need, on the CPU: places [2 B, 2], brightness [2 B], noise [2 B, C, H, W]."""
        rows = 2 * shape[0]
        places = torch.randint(2 * self.shift + 1, (rows, 2), generator=generator)
        brightness = 1 + self.contrast * (2 * torch.rand(rows, generator=generator) - 1)
        return places, brightness, self.noise * torch.randn(rows, *shape[1:], generator=generator)

    def apply(self, images: Tensor, places: Tensor, brightness: Tensor, noise: Tensor) -> Tensor:
        """[N, C, H, W]: each image padded by `shift` zeros, cut at its place, times its brightness, plus its noise."""
        height, width = images.shape[-2:]
        padded = functional.pad(images, (self.shift,) * 4)  # [N, C, H + 2 shift, W + 2 shift]
        down = places[:, :1] + torch.arange(height, device=images.device)  # [N, H]
        right = places[:, 1:] + torch.arange(width, device=images.device)  # [N, W]
        number = torch.arange(len(images), device=images.device)[:, None, None]
        cut = padded.movedim(1, -1)[number, down[:, :, None], right[:, None, :]].movedim(-1, 1)  # [N, C, H, W]
        return cut * brightness[:, None, None, None] + noise


def info_nce(outputs: Tensor, temperature: float) -> Tensor:
    """[S]: mean_i -log(exp(c_{i j(i)} / t) / sum_{k != i} exp(c_{ik} / t)), c cosines, j(i) the other view of i.

    outputs [S, 2 B, F]: all first views, then all second. Source: Chen et al., SimCLR (ICML 2020), equation 1. log(2 B
    - 1) where all outputs have one direction.
    """
    rows = functional.normalize(outputs, dim=-1)
    cosines = rows @ rows.mT / temperature  # [S, 2 B, 2 B]
    both = outputs.shape[1]
    own = torch.eye(both, dtype=torch.bool, device=outputs.device)
    others = cosines.masked_fill(own, -torch.inf).logsumexp(-1)  # [S, 2 B]
    right = (rows * rows.roll(both // 2, 1)).sum(-1) / temperature  # [S, 2 B]
    return (others - right).mean(-1)
