"""Small networks for the tests of infer_symmetry."""

import itertools
import warnings

import torch
from torch import Tensor, nn

from symlab.symmetry import Group, WeightSymmetry
from symlab.symmetry.infer import infer_symmetry

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "identity": nn.Identity, "gelu": nn.GELU, "silu": nn.SiLU}


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


def mlp(sizes, activations, bias=True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(fan_in, fan_out, bias=bias))
        if i < len(sizes) - 2:
            name = activations if isinstance(activations, str) else activations[i]
            layers.append(Sine() if name == "sin" else ACTIVATIONS[name]())
    return nn.Sequential(*layers)


class Forward(nn.Module):
    """A model with six units in two hidden layers whose forward pass is a function of the test."""

    def __init__(self, forward):
        super().__init__()
        self.function = forward
        self.w1 = nn.Parameter(torch.randn(6, 4))
        self.b1 = nn.Parameter(torch.randn(6))
        self.w2 = nn.Parameter(torch.randn(6, 6))
        self.w3 = nn.Parameter(torch.randn(3, 6))
        self.scalar = nn.Parameter(torch.tensor(0.7))
        self.one = nn.Parameter(torch.tensor([0.7]))
        self.register_buffer("shift", torch.randn(6))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def infer_forward(forward, inputs=None, **options) -> WeightSymmetry:
    inputs = torch.randn(5, 4) if inputs is None else inputs
    return infer_symmetry(Forward(forward), inputs, **options)


def group_of(symmetry: WeightSymmetry, name: str, dim: int) -> Group:
    return symmetry.groups.get(symmetry.axes[name][dim], Group.TRIVIAL)


def quiet(call, *args, **kwargs):
    """The result and the texts of the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*args, **kwargs)
    return result, [str(warning.message) for warning in caught]


def gradients_move_with_weights(model: nn.Module, inputs: Tensor, symmetry: WeightSymmetry) -> bool:
    """Whether grad L (g theta) = g grad L (theta) for an element g that moves all axes, in the model's mode."""
    model, inputs = model.double(), inputs.double()
    element = symmetry.random_element(torch.Generator().manual_seed(3))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def gradient(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        outputs = torch.func.functional_call(model, {**leaves, **buffers}, (inputs,))
        loss = (outputs * torch.linspace(1, 2, outputs.numel()).reshape(outputs.shape)).square().sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True))

    acted = symmetry.act(element, weights)
    moved, expected = gradient(acted), symmetry.act(element, gradient(weights))
    close = [torch.allclose(moved[name], expected[name], rtol=1e-8, atol=1e-8) for name in weights]
    return all(close) and any(not torch.equal(acted[name], weights[name]) for name in weights)


class Module(nn.Module):
    """Named submodules, and a forward pass that is a function of the test."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.function = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def kinds(symmetry: WeightSymmetry) -> list[tuple[str, int]]:
    """The groups that are not trivial with their sizes, sorted: P (permutations), B (signed), O (orthogonal)."""
    return sorted((group.name[0].replace("S", "B"), symmetry.sizes[label]) for label, group in symmetry.groups.items())
