"""The residual blocks of the first paper and the nets made of them (He et al., "Deep residual learning for image
recognition", CVPR 2016): batch norm and ReLU come after each convolution, and a ReLU stands on the stream itself.

Shapes: B rows, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from symlab.models.residual_net import Form, convolution, doubling_net
from symlab.models.shortcuts import changes_shape, shortcut_pooling


class PlainBlock(nn.Module):
    """y = a(skip + bn2(conv2(a(bn1(conv1(x)))))), a = ReLU; two convolutions 3x3.

    The skip is x, or where the stride or the number of channels changes batch norm of a convolution 1x1 of x, to which
    the pooling of x is added for `shortcut` avgpool_conv; see `RescaledPooling`.
    """

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, *, shortcut: str = "conv") -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(channels, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width, 3), nn.BatchNorm2d(width)
        self.shortcut = normed_convolution(channels, width, stride)
        self.pool = shortcut_pooling(channels, width, stride, shortcut)

    def forward(self, inputs: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(inputs)))
        branch = self.bn2(self.conv2(x))  # [B, width, H / stride, W / stride]
        skipped = inputs if self.shortcut is None else self.shortcut(inputs)
        return torch.relu(skipped + branch if self.pool is None else skipped + self.pool(inputs) + branch)


class PlainBottleneck(nn.Module):
    """y = a(skip + bn3(conv3(a(bn2(conv2(a(bn1(conv1(x))))))))); convolutions 1x1, 3x3, 1x1, the stride at the 3x3, as
    in torchvision (the paper has it at the first 1x1; the numbers of weights agree).

    The skip is as in `PlainBlock`; the block ends with 4 x `width` channels.
    """

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, *, shortcut: str = "conv") -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = convolution(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.shortcut = normed_convolution(channels, 4 * width, stride)
        self.pool = shortcut_pooling(channels, 4 * width, stride, shortcut)

    def forward(self, inputs: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(inputs)))
        x = torch.relu(self.bn2(self.conv2(x)))
        branch = self.bn3(self.conv3(x))  # [B, 4 width, H / stride, W / stride]
        skipped = inputs if self.shortcut is None else self.shortcut(inputs)
        return torch.relu(skipped + branch if self.pool is None else skipped + self.pool(inputs) + branch)


def normed_convolution(channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """Batch norm of a convolution 1x1, where a block changes the shape of the stream; None: the identity."""
    if not changes_shape(channels, out_channels, stride):
        return None
    return nn.Sequential(convolution(channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))


def resnet_stem(in_channels: int, width: int, stem: str) -> nn.Sequential:
    """cifar: BN-ReLU of a convolution 3x3 of stride 1. imagenet: of 7x7 with stride 2, then the maximum over 3x3 of
    stride 2."""
    kernel, stride = (3, 1) if stem == "cifar" else (7, 2)
    layers = [convolution(in_channels, width, kernel, stride), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.MaxPool2d(3, 2, padding=1)] if stem == "imagenet" else []))


def resnet(
    block: type[PlainBlock] | type[PlainBottleneck],
    depths: Sequence[int],
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    form: Form,
) -> nn.Module:
    """Stages of `block` behind `resnet_stem`; `residual_net.doubling_net` has initial weights and what is raised."""
    return doubling_net(block, resnet_stem, depths, input_shape, output_size, generator, form)
