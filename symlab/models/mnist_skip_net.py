"""The three small nets of MacDonald et al., "On skip connections and normalisation layers in deep optimisation"
(NeurIPS 2023, Figure 2): without skips, with the usual ones, and with rescaled pooling added.

Shapes: B rows, H x W pixels behind the stem; for images of 28 x 28, H = W = 12.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from symlab.models.initialisation import uniform_layer, uninitialised
from symlab.models.residual_net import check_images
from symlab.models.shortcuts import RescaledPooling

VARIANTS = ("chain", "res", "res_avg")
LAYERS = {"code": 2, "text": 3}
"""Convolutions of block 1."""
STREAM, WIDE = 5, 20
"""Channels before and after block 2."""


class SkipBlock(nn.Module):
    """branch(x); with `skip`, skip(x) + branch(x)."""

    def __init__(self, branch: nn.Module, skip: nn.Module | None) -> None:
        super().__init__()
        self.branch = branch
        self.skip = skip

    def forward(self, inputs: Tensor) -> Tensor:
        branch = self.branch(inputs)
        return branch if self.skip is None else self.skip(inputs) + branch


class ActivatedBlock(nn.Module):
    """branch(x') with x' = ReLU(BN(x)); + shortcut(x') and + pool(x'), whichever there are."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None, pool: RescaledPooling | None) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(STREAM)
        self.branch = branch
        self.shortcut = shortcut
        self.pool = pool

    def forward(self, inputs: Tensor) -> Tensor:
        x = torch.relu(self.bn(inputs))  # [B, 5, H, W]
        y = self.branch(x)  # [B, 20, H / 3, W / 3]
        if self.shortcut is not None:
            y = self.shortcut(x) + y
        return y if self.pool is None else self.pool(x) + y


class MnistSkipNet(nn.Module):
    """head(block2(block1(stem(x))))."""

    def __init__(self, in_channels: int, positions: int, output_size: int, variant: str, convolutions: int) -> None:
        super().__init__()
        residual = variant != "chain"
        self.stem = nn.Sequential(nn.Conv2d(in_channels, STREAM, 5), nn.AvgPool2d(2))
        first = [
            layer for _ in range(convolutions) for layer in _normed(STREAM, nn.Conv2d(STREAM, STREAM, 5, padding=2))
        ]
        self.block1 = SkipBlock(nn.Sequential(*first), nn.Identity() if residual else None)
        second = [nn.Conv2d(STREAM, WIDE, 3, 2, padding=1), *_normed(WIDE, nn.Conv2d(WIDE, WIDE, 3))]
        shortcut = nn.Conv2d(STREAM, WIDE, 1, 3) if residual else None
        pool = RescaledPooling(STREAM, WIDE, 3) if variant == "res_avg" else None
        self.block2 = ActivatedBlock(nn.Sequential(*second), shortcut, pool)
        features = WIDE * positions
        self.head = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(features), nn.ReLU(), nn.Linear(features, output_size))

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.stem(inputs)  # [B, 5, H, W]
        return self.head(self.block2(self.block1(x)))  # [B, output_size]


def mnist_skip_net(
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    *,
    variant: str = "chain",
    layers: str = "code",
) -> nn.Module:
    """Stem: convolution 5x5 1 -> 5, mean over 2x2. Block 1: BN, ReLU, convolution 5x5 5 -> 5 with padding, twice. Block
    2: BN, ReLU, convolution 3x3 5 -> 20 of stride 2, BN, ReLU, convolution 3x3 20 -> 20 without padding. Head: BN over
    the 320 features, ReLU, linear (MacDonald et al., NeurIPS 2023, Figure 2).

    `variant` chain is just that. res adds x to block 1, and to block 2 a convolution 1x1 of stride 3 of the BN-ReLU'd
    input; res_avg adds to block 2 the `RescaledPooling` of that input as well, its 5 channels between 7 and 8 of zeros.
    `layers` code: the five convolutions of the authors' program, as above. text: the paper speaks of six and does not
    list them; here block 1 then has three, which changes no shape. (The program has six if the 1x1 is counted.)

    Stretch block1 -> logits for 32 images of 28 x 28: [32 x 10, 32 x 5 x 12 x 12] = [320, 23040].

    Initial weights and biases ~ U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), as torch's own; batch norms 1 and 0; those of
    the 1x1 convolution are drawn last, so the weights that two variants share are equal for generators of one state.

    Raises ValueError for an unknown variant or layers, inputs that are no images, and images of a size for which the
    branch and the skip of block 2 do not end with the same one.
    """
    check_images(input_shape, output_size)
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    if layers not in LAYERS:
        raise ValueError(f"layers must be one of {', '.join(LAYERS)}, got {layers!r}")
    positions = math.prod(_positions(size) for size in input_shape[1:])
    return _drawn(lambda: MnistSkipNet(input_shape[0], positions, output_size, variant, LAYERS[layers]), generator)


def _normed(channels: int, convolution: nn.Conv2d) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(), convolution]


def _positions(size: int) -> int:
    """Pixels behind block 2 along one side: ceil(h / 2) - 2 of the branch, ceil(h / 3) of the skip."""
    stream = (size - 4) // 2  # behind the stem
    if stream < 1 or -(-stream // 2) - 2 != -(-stream // 3):
        raise ValueError(
            f"input_shape must be [C, 28, 28] (other sides that fit: 22, 23, 26 to 33, 36, 37), got a side of {size}:"
            " choose data.size=28"
        )
    return -(-stream // 3)


def _drawn(make: Callable[[], MnistSkipNet], generator: torch.Generator) -> MnistSkipNet:
    model = uninitialised(make)
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer in sorted(layers, key=lambda layer: layer is model.block2.shortcut):
        uniform_layer(layer, generator)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.reset_parameters()  # draws nothing: weight 1, bias 0, running mean 0 and variance 1
    return model
