"""Small nets and data for the tests of curvature."""

import torch
from torch import nn
from torch.func import functional_call

from symlab.models.mlp import mlp


def chain(sizes=(4, 3, 2), activation="tanh", bias=True):
    def build(generator):
        return mlp(
            (sizes[0],),
            sizes[-1],
            generator,
            hidden=sizes[1:-1],
            activation=activation,
            bias=bias,
            bias_std=0.3 if bias else 0.0,
        )

    return build


class Convolutional(nn.Module):
    """Conv, batch norm, tanh, mean over space, linear: not a net of linear layers alone."""

    def __init__(self, outputs=2, dropout=0.0):
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(3, outputs)

    def forward(self, x):
        return self.fc(self.drop(torch.tanh(self.norm(self.conv(x))).mean(-1)))


def convolutional(outputs=2, dropout=0.0):
    def build(generator):
        net = Convolutional(outputs, dropout)
        with torch.no_grad():
            for p in net.parameters():
                p.normal_(0, 0.7, generator=generator)
        return net

    return build


def made(build, seed=1):
    return build(torch.Generator().manual_seed(seed))


def data(n, shape, outputs, kind, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    if kind == "mse":
        return inputs, torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, outputs, (n,), generator=generator)


def as_function(problem):
    """(list of parameters, inputs) -> outputs, through the problem's own model in its mode."""

    def function(parameters, inputs):
        buffers = {name: b.clone() for name, b in problem.model.named_buffers()}
        return functional_call(
            problem.model, ({**dict(zip(problem.names, parameters, strict=True))}, buffers), (inputs,)
        )

    return function


def of_model(parameters, s):
    """The parameters of model s as leaves."""
    return [x[s].clone().requires_grad_() for x in parameters.values()]
