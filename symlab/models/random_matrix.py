"""One square random matrix, with or without the identity added: the smallest net with a skip connection.

Shapes: B rows, n = product of input_shape = output_size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class RandomMatrix(nn.Module):
    """y = A x, or with `skip` y = x + A x, inputs flattened to [B, n] first; A [n, n] is the weight of `linear`."""

    def __init__(self, size: int, skip: bool) -> None:
        super().__init__()
        with torch.device("meta"):
            linear = nn.Linear(size, size, bias=False)
        self.linear = linear.to_empty(device="cpu").to(torch.float32)
        self.skip = skip

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.flatten(1)  # [B, n]
        y = self.linear(x)
        return x + y if self.skip else y


def random_matrix(
    input_shape: tuple[int, ...], output_size: int, generator: torch.Generator, *, skip: bool = False
) -> nn.Module:
    """A `RandomMatrix`, A_ij ~ U(-1 / sqrt n, 1 / sqrt n) independent, of variance 1 / (3 n) (MacDonald et al.,
    NeurIPS 2023, Figure 1). The same generator gives the same A with and without the skip.

    Raises ValueError where the number of inputs is not that of outputs.
    """
    size = math.prod(input_shape)
    if size != output_size:
        raise ValueError(f"a square matrix needs as many inputs as outputs, the data have {size} and {output_size}")
    model = RandomMatrix(size, skip)
    bound = size**-0.5
    nn.init.uniform_(model.linear.weight, -bound, bound, generator=generator)
    return model
