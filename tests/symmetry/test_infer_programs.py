"""Random forward passes: whatever is written, the symmetry that infer_symmetry finds is one of the network.

infer_symmetry verifies each axis itself; here all axes move at once and the gradients are compared.
"""

import textwrap
import warnings

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from symlab.symmetry.handlers import table
from symlab.symmetry.infer import infer_symmetry
from tests.symmetry.networks import gradients_move_with_weights

# h: the hidden state [batch, 4]; v, w: two vectors [4]; a, m, q: matrices [4, 4], [3, 4], [8, 4]; s: a scalar
STEPS = {
    "tanh": lambda h, p: torch.tanh(h),
    "gelu": lambda h, p: F.gelu(h),
    "sine": lambda h, p: torch.sin(h),
    "bias": lambda h, p: h + p["v"],
    "gain": lambda h, p: h * p["w"],
    "scalar gain": lambda h, p: h * p["s"] / 1.5,
    "scalar shift": lambda h, p: p["s"] - h,
    "number": lambda h, p: h + 0.3,
    "mean removed": lambda h, p: h - h.mean(-1, keepdim=True),
    "row scale": lambda h, p: h / (1 + h.square().sum(-1, keepdim=True)),
    "gate": lambda h, p: h * torch.sigmoid(h @ p["a"]),
    "mix": lambda h, p: torch.tanh(h @ p["a"].T),
    "skip": lambda h, p: h + torch.tanh(F.linear(h, p["m"])) @ p["m"],
    "narrow skip": lambda h, p: h + torch.relu(torch.einsum("...i,oi->...o", h, p["m"])) @ p["m"],
    "gram": lambda h, p: torch.tanh(h.T @ h / 3).mm(h.T).T,
    "attention over units": lambda h, p: torch.softmax(h[:, :, None] * h[:, None, :], -1).matmul(h[:, :, None])[..., 0],
    "outer": lambda h, p: (h[:, :, None] * p["v"]).sum(-1),
    "outer diagonal": lambda h, p: (h[:, :, None] * p["w"][None, None, :]).tanh().sum(1),
    "reshape": lambda h, p: h.reshape(-1, 1, 4, 1).squeeze(1).flatten(1),
    "cut": lambda h, p: h.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4),
    "reverse": lambda h, p: h.flip(1),
    "halves": lambda h, p: torch.cat(h.chunk(2, 1)[::-1], 1),
    "first unit": lambda h, p: h + h[:, :1],
    "stack": lambda h, p: torch.stack([h, torch.relu(h)], 1).amax(1),
    "batch times units": lambda h, p: h.flatten().tanh().view(-1, 4),
    "layer norm": lambda h, p: F.layer_norm(h, (4,), p["w"], p["v"]),
    "clamp": lambda h, p: h.clamp(-0.7, 0.7),
    "power": lambda h, p: h.clamp(-1.5, 1.5) ** 3 / 2,
    "ones": lambda h, p: h + torch.ones(4).to(h),
    "positions": lambda h, p: h + torch.arange(4).to(h),
    "shift with zeros": lambda h, p: F.pad(h, (1, 0))[:, :4],
    "pad and cut": lambda h, p: F.pad(h, (2, 1))[:, 2:-1],
    "add a padded part": lambda h, p: h + F.pad(h[:, :2].tanh(), (1, 1)),
    "one sided": lambda h, p: torch.cat([h[:, :1], torch.relu(h[:, 1:])], 1),
    "attention of heads": lambda h, p: attention(h.view(-1, 1, 2, 2), (h @ p["a"]).view(-1, 1, 2, 2)),
    "packed attention": lambda h, p: attention(*F.linear(h, p["q"]).view(-1, 1, 2, 2, 2).unbind(2)),
    "pairs": lambda h, p: torch.cat([h, h.view(-1, 2, 2).unbind(2)[0].repeat(1, 2)], 1)[:, ::2],
    "gated linear unit": lambda h, p: F.glu(torch.cat([h, h @ p["a"]], 1)),
    "gate from inside": lambda h, p: (lambda up, gate: up * gate.sigmoid())(*F.linear(h, p["q"]).chunk(2, 1)),
    "group norm": lambda h, p: F.group_norm(h, 2, p["w"]),
    "grouped convolution": lambda h, p: F.conv1d(h[..., None], p["a"][:, :2, None], groups=2)[..., 0],
    "recurrent": lambda h, p: torch.tanh(h @ p["a"] + h),
    "zeros inside": lambda h, p: with_zeros(h),
    "outer product": lambda h, p: (h[:, :, None] * h[:, None]).flatten(1)[:, ::4] + (h[:, :, None] * h[:, None]).sum(2),
    "last": lambda h, p: h * (1 + h[:, -1:]),
    "sums so far": lambda h, p: h.cumsum(1) / 2,
    "rolled": lambda h, p: h.roll(1, 1),
}


def attention(*tensors):
    """Two heads of two dimensions, over a sequence of one."""
    query, value = (tensor.transpose(1, 2) for tensor in tensors)
    return F.scaled_dot_product_attention(query, query, value).transpose(1, 2).flatten(1)


def with_zeros(h):
    h = h.clone()
    h[:, 1:3] = 0
    return h


class Program(nn.Module):
    def __init__(self, steps: list[str]):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        shapes = {"first": (4, 3), "v": (4,), "w": (4,), "a": (4, 4), "m": (3, 4), "s": (), "q": (8, 4), "last": (2, 4)}
        self.p = nn.ParameterDict({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, self.p["first"])
        for step in self.steps:
            hidden = STEPS[step](hidden, self.p)
        return F.linear(hidden, self.p["last"])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=6))
def test_every_symmetry_that_is_found_is_one_of_the_gradients(steps):
    model, inputs = Program(steps).double(), torch.randn(5, 3, generator=torch.Generator().manual_seed(6)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of free axes
        symmetry = infer_symmetry(model, inputs, orthogonal=True)
    if symmetry.groups:
        assert gradients_move_with_weights(model, inputs, symmetry)


def test_the_example_of_the_handler_table_runs(monkeypatch):
    monkeypatch.setattr(table, "_TABLE", {})
    lines = (table.__doc__ or "").split("\n")
    example = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))
    names: dict[str, object] = {}
    exec(example, names)
    assert {torch.ops.aten.frac: names["frac"]} == table._TABLE
