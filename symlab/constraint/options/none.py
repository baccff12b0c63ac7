"""The model as it is."""

import torch
from torch import Tensor, nn


def none(model: nn.Module, inputs: Tensor, generator: torch.Generator) -> nn.Module:
    """theta = theta: the control in a sweep over constraints. `inputs` and `generator` are not used."""
    return model
