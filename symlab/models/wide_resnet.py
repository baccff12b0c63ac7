"""Wide residual networks."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from symlab.models.preact_blocks import BasicBlock, preact_stem
from symlab.models.residual_net import (
    Form,
    ResidualNet,
    check_images,
    initialised,
    stacked_stages,
)
from symlab.models.sizes import checked_size


def wide_resnet(
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    *,
    depth: int = 28,
    widen_factor: int = 10,
    width: int = 16,
    dropout: float = 0.0,
    shortcut: str = "conv",
    stem: str = "cifar",
    init: str = "kaiming",
) -> nn.Module:
    """WRN-depth-widen_factor: three stages of n = (depth - 4) / 6 pre-activation `BasicBlock`s with 1, 2 and 4 x
    widen_factor x width channels behind a stem of width channels; dropout between the convolutions of a block
    (Zagoruyko and Komodakis, BMVC 2016). `shortcut` and `stem` are as for preact_resnet18, the initial weights as in
    `residual_net.initialised`.

    Raises ValueError or TypeError for a depth that is not 6 n + 4, a dropout outside [0, 1), sizes below 1, inputs
    that are no images, and an unknown shortcut or stem.
    """
    check_images(input_shape, output_size)
    checked_size("widen_factor", widen_factor)
    checked_size("depth", depth)
    if depth < 10 or depth % 6 != 4:
        raise ValueError(f"depth must be 6 n + 4 (10, 16, 22, 28, 34, 40, ...), got {depth}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}")
    form = Form(width, 1, shortcut, stem, True, init)

    def make() -> nn.Module:
        widths = [2**index * widen_factor * width for index in range(3)]
        make_block = partial(BasicBlock, shortcut=form.shortcut, dropout=dropout)
        first = preact_stem(input_shape[0], width, form.stem)
        stages, channels = stacked_stages(make_block, 1, [(depth - 4) // 6] * 3, widths, width)
        return ResidualNet(first, stages, channels, output_size, final_norm=True)

    return initialised(make, generator, init)
