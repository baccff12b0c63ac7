"""Pre-activation ResNet-18 for small images."""

from __future__ import annotations

import torch
from torch import nn

from symlab.models.preact_blocks import BasicBlock, preact_resnet


def preact_resnet18(
    input_shape: tuple[int, ...], output_size: int, generator: torch.Generator, *, width: int = 64
) -> nn.Module:
    """Four stages of two `BasicBlock`s with width, 2, 4 and 8 x width channels (He et al., ECCV 2016; the stem for
    images of 32 x 32 and less, without pooling). Images [C, H, W] of any size; see `preact_blocks.preact_resnet` for
    the initial weights and what is raised.
    """
    return preact_resnet(BasicBlock, (2, 2, 2, 2), input_shape, output_size, generator, width)
