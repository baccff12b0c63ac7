"""A small encoder with a projection head, for self-supervised learning."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class ContrastiveNet(nn.Module):
    """images -> (features h [B, width], outputs z [B, outputs]) side by side, [B, width + outputs].

    Encoder h = relu(L2 relu(L1 x)), head z = L4 relu(L3 h); weights from N(0, 2 / fan in), biases zero.
    """

    def __init__(self, inputs: int, width: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))
        for module in (*self.encoder, *self.head):
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features), generator=generator)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        features = self.encoder(images.flatten(1))
        return torch.cat([features, self.head(features)], -1)
