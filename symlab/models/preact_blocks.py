"""Pre-activation residual blocks and the nets made of them (He et al., "Identity mappings in deep residual networks",
ECCV 2016): batch norm and ReLU come before each convolution, so nothing but sums happens on the residual stream.

Shapes: B rows, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from symlab.models.residual_net import Form, convolution, doubling_net
from symlab.models.shortcuts import RescaledPooling, changes_shape, shortcut_pooling


class BasicBlock(nn.Module):
    """y = skip + conv2(a(bn2(conv1(x')))), x' = a(bn1(x)), a = ReLU; two convolutions 3x3.

    The skip is x, or where the stride or the number of channels changes a convolution 1x1 of x', to which the pooling
    of x' is added for `shortcut` avgpool_conv; see `RescaledPooling`. In training, `dropout` is the share of the inputs
    of conv2 set to zero.
    """

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, *, shortcut: str = "conv", dropout: float = 0.0) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = convolution(channels, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = convolution(width, width, 3)
        self.shortcut = shortcut_convolution(channels, width, stride)
        self.pool = shortcut_pooling(channels, width, stride, shortcut)

    def forward(self, inputs: Tensor) -> Tensor:
        x = torch.relu(self.bn1(inputs))  # [B, channels, H, W]
        skipped = skip(inputs, x, self.shortcut, self.pool)
        x = self.dropout(torch.relu(self.bn2(self.conv1(x))))
        return skipped + self.conv2(x)  # [B, width, H / stride, W / stride]


class Bottleneck(nn.Module):
    """y = skip + conv3(a(bn3(conv2(a(bn2(conv1(x'))))))), x' = a(bn1(x)); convolutions 1x1, 3x3 (stride), 1x1.

    The skip is as in `BasicBlock`; the block ends with 4 x `width` channels.
    """

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, *, shortcut: str = "conv") -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = convolution(channels, width, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, 4 * width, 1)
        self.shortcut = shortcut_convolution(channels, 4 * width, stride)
        self.pool = shortcut_pooling(channels, 4 * width, stride, shortcut)

    def forward(self, inputs: Tensor) -> Tensor:
        x = torch.relu(self.bn1(inputs))  # [B, channels, H, W]
        skipped = skip(inputs, x, self.shortcut, self.pool)
        x = self.conv1(x)
        x = self.conv2(torch.relu(self.bn2(x)))
        return skipped + self.conv3(torch.relu(self.bn3(x)))  # [B, 4 width, H / stride, W / stride]


def skip(inputs: Tensor, activated: Tensor, shortcut: nn.Module | None, pool: RescaledPooling | None) -> Tensor:
    """The stream itself; or shortcut(x') + pool(x') of the activated stream x', whichever of the two there are."""
    if shortcut is None:
        return inputs
    skipped = shortcut(activated)
    return skipped if pool is None else skipped + pool(activated)


def shortcut_convolution(channels: int, out_channels: int, stride: int) -> nn.Conv2d | None:
    """The convolution 1x1 of a block that changes the shape of the stream; None: the identity."""
    return convolution(channels, out_channels, 1, stride) if changes_shape(channels, out_channels, stride) else None


def preact_stem(in_channels: int, width: int, stem: str) -> nn.Module:
    """cifar: a convolution 3x3 of stride 1. imagenet: 7x7 of stride 2, then the maximum over 3x3 of stride 2. Neither
    has a batch norm or ReLU: the first block begins with them (as in TensorFlow's official v2 nets)."""
    if stem == "cifar":
        return convolution(in_channels, width, 3)
    return nn.Sequential(convolution(in_channels, width, 7, 2), nn.MaxPool2d(3, 2, padding=1))


def preact_resnet(
    block: type[BasicBlock] | type[Bottleneck],
    depths: Sequence[int],
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    form: Form,
) -> nn.Module:
    """Stages of `block` behind `preact_stem`; `residual_net.doubling_net` has initial weights and what is raised."""
    return doubling_net(block, preact_stem, depths, input_shape, output_size, generator, form)
