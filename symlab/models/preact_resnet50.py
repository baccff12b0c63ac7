"""Pre-activation ResNet-50 for small images."""

from __future__ import annotations

import torch
from torch import nn

from symlab.models.preact_blocks import Bottleneck, preact_resnet


def preact_resnet50(
    input_shape: tuple[int, ...], output_size: int, generator: torch.Generator, *, width: int = 64
) -> nn.Module:
    """Four stages of 3, 4, 6 and 3 `Bottleneck`s; inner widths width, 2, 4 and 8 x width, streams four times as wide
    (He et al., ECCV 2016; the stem for images of 32 x 32 and less, without pooling). Images [C, H, W] of any size; see
    `preact_blocks.preact_resnet` for the initial weights and what is raised.
    """
    return preact_resnet(Bottleneck, (3, 4, 6, 3), input_shape, output_size, generator, width)
