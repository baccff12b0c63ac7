"""Small problems for SymO: a symmetry, parameters of its shapes, gradients, and the weights step by step."""

import numpy as np
import torch
from torch import nn

from symlab.optim import SymO
from symlab.symmetry import Group, WeightSymmetry
from tests import reference

F64 = torch.float64


def two_layer(bias=False, group=Group.SIGNED_PERMUTATION):
    axes, shapes = reference.mlp_axes((4, 3, 2), bias)
    return WeightSymmetry(axes, shapes, {"h1": group})


def make(symmetry, seed=0, dtype=F64, **options):
    """Parameters of the symmetry's shapes and a SymO on them."""
    g = torch.Generator().manual_seed(seed)
    shapes = symmetry.shapes.items()
    params = {n: nn.Parameter(torch.randn(s, generator=g, dtype=F64).to(dtype)) for n, s in shapes}
    return params, SymO(params.items(), symmetry, **{"lr": 0.1, **options})


def gradients(params, steps, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [{n: torch.randn(p.shape, generator=g, dtype=F64) for n, p in params.items()} for _ in range(steps)]


def run(params, optimizer, grads):
    """The flattened weights after each step."""
    path = []
    for step in grads:
        for name, p in params.items():
            p.grad = None if step.get(name) is None else step[name].to(p)
        optimizer.step()
        path.append(torch.cat([p.detach().flatten() for p in params.values()]).clone())
    return path


def flat(named):
    return np.concatenate([x.numpy().ravel() for x in named.values()])
