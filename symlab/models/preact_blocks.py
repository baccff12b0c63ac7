"""Pre-activation residual blocks and the net made of them (He et al., "Identity mappings in deep residual networks",
ECCV 2016): batch norm and ReLU come before each convolution, so nothing but sums happens on the residual stream.

Shapes: B rows, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from symlab.models.initialisation import kaiming

STRIDES = (1, 2, 2, 2)
"""Of the first block of each stage: the first stage keeps the resolution, each further one halves it."""


class BasicBlock(nn.Module):
    """y = shortcut + conv2(a(bn2(conv1(x')))), x' = a(bn1(x)), a = ReLU; two convolutions 3x3.

    The shortcut is x, or a convolution 1x1 of x' where the stride or the number of channels changes.
    """

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = convolution(channels, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3)
        self.shortcut = shortcut_convolution(channels, width, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        x = torch.relu(self.bn1(inputs))  # [B, channels, H, W]
        skipped = inputs if self.shortcut is None else self.shortcut(x)
        x = self.conv1(x)
        return skipped + self.conv2(torch.relu(self.bn2(x)))  # [B, width, H / stride, W / stride]


class Bottleneck(nn.Module):
    """y = shortcut + conv3(a(bn3(conv2(a(bn2(conv1(x'))))))), x' = a(bn1(x)); convolutions 1x1, 3x3 (stride), 1x1.

    The shortcut is as in `BasicBlock`; the block ends with 4 x `width` channels.
    """

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = convolution(channels, width, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, 4 * width, 1)
        self.shortcut = shortcut_convolution(channels, 4 * width, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        x = torch.relu(self.bn1(inputs))  # [B, channels, H, W]
        skipped = inputs if self.shortcut is None else self.shortcut(x)
        x = self.conv1(x)
        x = self.conv2(torch.relu(self.bn2(x)))
        return skipped + self.conv3(torch.relu(self.bn3(x)))  # [B, 4 width, H / stride, W / stride]


class PreActResNet(nn.Module):
    """Linear(mean over space(a(bn(stages(stem(x)))))): a stem 3x3 of stride 1, four stages of blocks, a final BN-ReLU.

    Stage i (from 0) has `depths[i]` blocks of width 2^i x `width`; see `STRIDES`.
    """

    def __init__(
        self,
        block: Callable[[int, int, int], nn.Module],
        expansion: int,
        depths: Sequence[int],
        width: int,
        in_channels: int,
        output_size: int,
    ) -> None:
        super().__init__()
        self.stem = convolution(in_channels, width, 3)
        stages: list[nn.Module] = []
        channels = width
        for index, (depth, stride) in enumerate(zip(depths, STRIDES, strict=True)):
            blocks = []
            for position in range(depth):
                blocks.append(block(channels, 2**index * width, stride if position == 0 else 1))
                channels = expansion * 2**index * width
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, output_size)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.stem(inputs)  # [B, width, H, W]
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.relu(self.bn(x)).mean((2, 3)))  # [B, output_size]


def convolution(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution kernel x kernel without bias (a batch norm follows) that keeps the size at stride 1."""
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)


def shortcut_convolution(channels: int, out_channels: int, stride: int) -> nn.Conv2d | None:
    """The convolution 1x1 of a block that changes the shape of the stream; None: the identity."""
    return None if stride == 1 and channels == out_channels else convolution(channels, out_channels, 1, stride)


def preact_resnet(
    block: type[BasicBlock] | type[Bottleneck],
    depths: Sequence[int],
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    width: int,
) -> PreActResNet:
    """A `PreActResNet` in float32 on the CPU; W ~ N(0, 2 / fan_in) for every convolution and the linear layer (He et
    al., ICCV 2015), drawn from `generator` in the order of the modules; biases 0, batch norms 1 and 0.

    Raises ValueError or TypeError for inputs that are no images, and for sizes below 1.
    """
    if len(input_shape) != 3:
        raise ValueError(
            f"a residual net takes images, input_shape [C, H, W], got {list(input_shape)}: choose data of images,"
            " e.g. data=digits"
        )
    for key, value in (("width", width), ("output_size", output_size), ("input_shape", min(input_shape))):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{key} must be a whole number, got {value!r}")
        if value < 1:
            raise ValueError(f"{key} must be at least 1, got {value}")
    with torch.device("meta"):  # torch's own initialisation would draw from the global generator
        model = PreActResNet(block, block.expansion, depths, width, input_shape[0], output_size)
    model.to_empty(device="cpu").to(torch.float32)
    _initialise(model, generator)
    return model


@torch.no_grad()
def _initialise(model: nn.Module, generator: torch.Generator) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            kaiming(module.weight.flatten(1), generator)  # a view [out, fan_in]
        elif isinstance(module, nn.Linear):
            kaiming(module.weight, generator)
            module.bias.zero_()
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()  # draws nothing: weight 1, bias 0, running mean 0 and variance 1
