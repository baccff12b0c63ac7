"""Convolutions, norms, pooling, embeddings; and every elementwise handler against the function that it describes."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from symlab.symmetry import Group
from symlab.symmetry.handlers import table
from symlab.symmetry.handlers.elementwise import linear_function, odd_function
from symlab.symmetry.infer import infer_symmetry
from tests.symmetry.networks import gradients_move_with_weights, quiet

P, B = Group.PERMUTATION, Group.SIGNED_PERMUTATION
IMAGES = torch.randn(3, 2, 6, 6)


class PreActivationBlock(nn.Module):
    def __init__(self, stream: int, inner: int):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(stream), nn.Conv2d(stream, inner, 3, padding=1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(inner), nn.Conv2d(inner, stream, 3, padding="same", bias=False)

    def forward(self, x):
        return x + self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))


def residual_net() -> nn.Module:
    blocks = PreActivationBlock(4, 5), PreActivationBlock(4, 3)
    return nn.Sequential(nn.Conv2d(2, 4, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def sequential(*layers: nn.Module):
    return lambda: nn.Sequential(*layers)


def pooled(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)]


SIGNALS, ROWS = torch.randn(3, 6, 6), torch.randn(3, 6)
NETS = {
    "tanh convolutions": (
        sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(4, 5, 2), nn.Tanh(), *pooled(5)),
        IMAGES,
        {"0.weight:0": B, "3.weight:0": B},
    ),
    "batch norm": (
        sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), *pooled(4)),
        IMAGES,
        {"0.weight:0": P},
    ),
    "residual stream": (
        residual_net,
        IMAGES,
        {"0.weight:0": P, "1.conv1.weight:0": P, "2.conv1.weight:0": P},
    ),
    "pooling": (
        sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 5, 1), nn.AdaptiveMaxPool2d(1), *pooled(5)),
        IMAGES,
        {"0.weight:0": P, "2.weight:0": P},
    ),
    "transposed convolution": (
        sequential(nn.Conv1d(6, 4, 3), nn.Tanh(), nn.ConvTranspose1d(4, 5, 3), nn.Tanh(), nn.Conv1d(5, 1, 1)),
        SIGNALS,
        {"0.weight:0": B, "2.bias:0": B},
    ),
    "group norms": (
        sequential(nn.Conv1d(6, 4, 3), nn.GroupNorm(1, 4), nn.Conv1d(4, 6, 1), nn.GroupNorm(6, 6), nn.Conv1d(6, 1, 1)),
        SIGNALS,
        {"0.weight:0": P, "2.weight:0": P},
    ),
    "instance norm": (
        sequential(nn.Conv1d(6, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.Conv1d(4, 1, 1)),
        SIGNALS,
        {"0.weight:0": P},
    ),
    "layer norms": (
        sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 5), nn.RMSNorm(5), nn.Linear(5, 2)),
        ROWS,
        {"0.weight:0": P, "3.weight:0": P},
    ),
    "parametric relu": (
        sequential(nn.Linear(6, 4), nn.PReLU(4), nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 2)),
        ROWS,
        {"0.weight:0": P, "2.weight:0": P},
    ),
    "padding": (
        sequential(nn.ZeroPad2d(1), nn.Conv2d(2, 4, 3), nn.ZeroPad2d(1), nn.Tanh(), nn.Conv2d(4, 1, 3)),
        IMAGES,
        {"1.weight:0": B},
    ),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_layers_give_their_channels_one_axis(name, training):
    torch.manual_seed(0)
    build, inputs, groups = NETS[name]
    model = copy.deepcopy(build()).train(training)
    symmetry = infer_symmetry(model, inputs)
    assert symmetry.groups == groups
    if training:  # in eval mode the running statistics, which are no parameters, would have to move too
        assert gradients_move_with_weights(model, inputs, symmetry)


def test_the_residual_stream_of_a_convolutional_net_is_one_axis():
    axes = infer_symmetry(residual_net(), IMAGES).axes
    stream = axes["0.weight"][0]
    for name, dim in [("1.norm1.weight", 0), ("1.conv1.weight", 1), ("1.conv2.weight", 0), ("2.conv2.weight", 0)]:
        assert axes[name][dim] == stream
    assert axes["5.weight"][1] == stream
    assert all(label.startswith("free:") for label in axes["1.conv1.weight"][2:])


def test_running_statistics_move_with_their_channels():
    model = residual_net().eval()
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    assert set(infer_symmetry(model, IMAGES).groups.values()) == {P}


def test_an_embedding_table_has_free_rows():
    model = nn.Sequential(nn.Embedding(7, 5), nn.Tanh(), nn.Linear(5, 2))
    symmetry = infer_symmetry(model, torch.tensor([[0, 3, 6]]))
    assert symmetry.axes["0.weight"] == ("free:0.weight:0", "0.weight:1")
    assert symmetry.groups == {"0.weight:1": B}


def test_a_form_that_no_handler_knows_frees_its_channels():
    class Diagonal(nn.Module):
        def forward(self, x):
            return torch.einsum("bii->bi", x @ x.mT)

    model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.ReLU(), Diagonal(), nn.Linear(4, 1))
    symmetry, texts = quiet(infer_symmetry, model, torch.randn(3, 2, 6))
    assert symmetry.groups == {}
    assert len(texts) == 1
    assert "aten.einsum.default has no handler for this form" in texts[0]


def operators_of(handler) -> list[str]:
    names = [operator._qualified_op_name for operator, known in table._TABLE.items() if known is handler]
    return [name for name in names if not name.endswith("_") and not name.endswith(("to", "_copy", "type_as"))]


@pytest.mark.parametrize(("handler", "scale"), [(odd_function, -1.0), (linear_function, -1.0), (linear_function, 3.0)])
def test_functions_registered_as_odd_or_linear_are(handler, scale):
    table.lookup(torch.ops.aten.tanh.default)
    names = operators_of(handler)
    assert len(names) > 3
    x = torch.linspace(-0.93, 0.88, 40, dtype=torch.float64)
    for name in names:
        function = getattr(torch.ops.aten, name.partition("::")[2])
        torch.testing.assert_close(function(scale * x), scale * function(x), msg=name)
