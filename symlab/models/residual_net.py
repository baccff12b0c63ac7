"""The frame that all residual nets share: a stem, stages of blocks, the mean over space and a linear layer.

Shapes: B rows, C channels, H x W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from symlab.models.initialisation import LAYER_INITIALISATIONS, uninitialised
from symlab.models.shortcuts import check_shortcut
from symlab.models.sizes import checked_size

STEMS = ("cifar", "imagenet")
"""cifar: a convolution 3x3, which keeps the resolution; imagenet: 7x7 of stride 2 and a maximum over 3x3 of stride 2,
which divide it by four."""

MakeBlock = Callable[[int, int, int], nn.Module]
"""(channels of the stream before, inner width, stride) -> a block."""


class BlockType(Protocol):
    """A class of blocks; a block ends with `expansion` x its inner width channels."""

    expansion: int

    def __call__(self, channels: int, width: int, stride: int, *, shortcut: str) -> nn.Module: ...


@dataclass(frozen=True)
class Form:
    """What may be chosen for a residual net: channels of the first stage, a factor of the numbers of blocks, the
    shortcut where the stream changes its shape, the stem, whether a BN-ReLU stands at the end of the stream, and the
    rule of the initial weights (see `initialised`).

    Raises ValueError or TypeError for a width below 1, a depth_factor that is not positive and finite, and an unknown
    shortcut, stem or init.
    """

    width: int
    depth_factor: float
    shortcut: str
    stem: str
    final_norm: bool
    init: str

    def __post_init__(self) -> None:
        checked_size("width", self.width)
        if isinstance(self.depth_factor, bool) or not isinstance(self.depth_factor, (int, float)):
            raise TypeError(f"depth_factor must be a number, got {self.depth_factor!r}")
        if not 0 < self.depth_factor < math.inf:
            raise ValueError(f"depth_factor must be positive and finite, got {self.depth_factor}")
        check_shortcut(self.shortcut)
        if self.stem not in STEMS:
            raise ValueError(f"stem must be one of {', '.join(STEMS)}, got {self.stem!r}")
        if self.init not in LAYER_INITIALISATIONS:
            raise ValueError(f"init must be one of {', '.join(LAYER_INITIALISATIONS)}, got {self.init!r}")

    def depths(self, depths: Sequence[int]) -> tuple[int, ...]:
        """Blocks of each stage: depth x `depth_factor`, rounded up."""
        return tuple(math.ceil(round(depth * self.depth_factor, 9)) or 1 for depth in depths)


class ResidualNet(nn.Module):
    """Linear(mean over space(a(bn(stages(stem(x)))))), a = ReLU; without the final BN-ReLU if `final_norm` is false.

    `stages` are called layer1, layer2, ... and end with a stream of `channels`.
    """

    def __init__(
        self, stem: nn.Module, stages: Sequence[nn.Module], channels: int, output_size: int, *, final_norm: bool
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = [f"layer{index}" for index in range(1, len(stages) + 1)]
        for name, stage in zip(self.stages, stages, strict=True):
            self.add_module(name, stage)
        self.bn = nn.BatchNorm2d(channels) if final_norm else None
        self.fc = nn.Linear(channels, output_size)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.stem(inputs)  # [B, width, H, W], or H / 4, W / 4
        for name in self.stages:
            x = getattr(self, name)(x)
        if self.bn is not None:
            x = torch.relu(self.bn(x))
        return self.fc(x.mean((2, 3)))  # [B, output_size]


def convolution(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution kernel x kernel without bias (a batch norm follows) that keeps the size at stride 1."""
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)


def stacked_stages(
    make_block: MakeBlock, expansion: int, depths: Sequence[int], widths: Sequence[int], channels: int
) -> tuple[list[nn.Module], int]:
    """Stage i has `depths[i]` blocks of inner width `widths[i]` and ends with `expansion` times as many channels; the
    first keeps the resolution, each further one halves it. Returns the stages and the channels at the end.
    """
    stages: list[nn.Module] = []
    for index, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        blocks = []
        for position in range(depth):
            stride = 2 if index > 0 and position == 0 else 1
            blocks.append(make_block(channels, width, stride))
            channels = expansion * width
        stages.append(nn.Sequential(*blocks))
    return stages, channels


def check_images(input_shape: tuple[int, ...], output_size: int) -> None:
    """Raises ValueError for inputs that are no images and for sizes below 1, TypeError for sizes that are not whole."""
    if len(input_shape) != 3:
        raise ValueError(
            f"a residual net takes images, input_shape [C, H, W], got {list(input_shape)}: choose data of images,"
            " e.g. data=digits"
        )
    checked_size("output_size", output_size)
    checked_size("input_shape", min(input_shape))


def doubling_net(
    block: BlockType,
    make_stem: Callable[[int, int, str], nn.Module],
    depths: Sequence[int],
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    form: Form,
) -> nn.Module:
    """Stages of `block` behind `make_stem`(colours, width, stem): stage i (from 0) has `depths[i]` x depth_factor
    blocks, rounded up, of width 2^i x width; the first keeps the resolution, each further one halves it. See
    `initialised` for the initial weights, which do not depend on the shortcut.

    Raises ValueError or TypeError for inputs that are no images and an output_size below 1.
    """
    check_images(input_shape, output_size)
    blocks = form.depths(depths)

    def make() -> nn.Module:
        first = make_stem(input_shape[0], form.width, form.stem)
        widths = [2**index * form.width for index in range(len(blocks))]
        make_block = partial(block, shortcut=form.shortcut)
        stages, channels = stacked_stages(make_block, block.expansion, blocks, widths, form.width)
        return ResidualNet(first, stages, channels, output_size, final_norm=form.final_norm)

    return initialised(make, generator, form.init)


def initialised(make: Callable[[], nn.Module], generator: torch.Generator, init: str) -> nn.Module:
    """The net of `make`, float32, on the CPU, every convolution and linear layer drawn from `generator` in the order of
    the modules; batch norms 1 and 0.

    `init` kaiming: W ~ N(0, 2 / fan_in), biases 0 (He et al., ICCV 2015). uniform: weights and biases ~
    U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), torch's own rule, a sixth of that variance.
    """
    model = uninitialised(make)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            LAYER_INITIALISATIONS[init](module, generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()  # draws nothing: weight 1, bias 0, running mean 0 and variance 1
    return model
