"""ResNet-18."""

from __future__ import annotations

import torch
from torch import nn

from symlab.models.residual_net import Form
from symlab.models.resnet_blocks import PlainBlock, resnet


def resnet18(
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    *,
    width: int = 64,
    depth_factor: float = 1,
    shortcut: str = "conv",
    stem: str = "cifar",
    init: str = "kaiming",
) -> nn.Module:
    """Four stages of two `PlainBlock`s with width, 2, 4 and 8 x width channels (He et al., CVPR 2016). Images [C, H, W]
    of any size. `shortcut` where the stream changes its shape: conv, or avgpool_conv with the rescaled pooling of
    MacDonald et al. (NeurIPS 2023) added; `stem` cifar keeps the resolution, imagenet divides it by four. See
    `resnet_blocks.resnet` for the initial weights (`init`) and `Form` for what is raised.
    """
    form = Form(width, depth_factor, shortcut, stem, False, init)
    return resnet(PlainBlock, (2, 2, 2, 2), input_shape, output_size, generator, form)
