"""Pre-activation ResNet-101."""

from __future__ import annotations

import torch
from torch import nn

from symlab.models.preact_blocks import Bottleneck, preact_resnet
from symlab.models.residual_net import Form


def preact_resnet101(
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    *,
    width: int = 64,
    depth_factor: float = 1,
    shortcut: str = "conv",
    stem: str = "cifar",
    final_norm: bool = True,
    init: str = "kaiming",
) -> nn.Module:
    """Four stages of 3, 4, 23 and 3 `Bottleneck`s; inner widths width, 2, 4 and 8 x width, streams four times as wide
    (He et al., ECCV 2016). Images [C, H, W] of any size. `shortcut` where the stream changes its shape: conv, or
    avgpool_conv with the rescaled pooling of MacDonald et al. (NeurIPS 2023) added; `stem` cifar keeps the resolution,
    imagenet divides it by four; `final_norm` false leaves out the BN-ReLU before the mean over space. See
    `preact_blocks.preact_resnet` for the initial weights (`init`) and `Form` for what is raised.
    """
    form = Form(width, depth_factor, shortcut, stem, final_norm, init)
    return preact_resnet(Bottleneck, (3, 4, 23, 3), input_shape, output_size, generator, form)
