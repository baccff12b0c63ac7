"""The many ways to write an operation: axes and groups against what is known by hand; free axes and their warnings."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from symlab.symmetry import Group
from symlab.symmetry.infer import infer_symmetry
from tests.symmetry.networks import group_of, infer_forward, mlp, quiet

P, B = Group.PERMUTATION, Group.SIGNED_PERMUTATION

# Functional forms ----------------------------------------------------------------------------------------------------


def tanh_net(product):
    return lambda m, x: product(m, torch.tanh(product(m, x, m.w1) + m.b1), m.w3)


TWO_LAYERS = {
    "F.linear": lambda m, x: F.linear(torch.tanh(F.linear(x, m.w1, m.b1)), m.w3),
    "matmul": tanh_net(lambda m, x, w: x @ w.T),
    "mm": tanh_net(lambda m, x, w: torch.mm(x, w.t())),
    "addmm": lambda m, x: torch.tanh(torch.addmm(m.b1, x, m.w1.t())) @ m.w3.mT,
    "bmm": lambda m, x: torch.bmm(torch.tanh(x @ m.w1.T + m.b1)[None], m.w3.T[None])[0],
    "einsum": tanh_net(lambda m, x, w: torch.einsum("bi,oi->bo", x, w)),
    "einsum with an ellipsis": tanh_net(lambda m, x, w: torch.einsum("...i,oi->...o", x, w)),
    "transposed product": lambda m, x: (m.w3 @ torch.tanh(m.w1 @ x.T + m.b1[:, None])).T,
    "matrix times vector": lambda m, x: torch.stack([m.w3.mv(torch.tanh(m.w1.mv(row) + m.b1)) for row in x]),
    "dropout": lambda m, x: F.linear(F.dropout(torch.tanh(F.linear(x, m.w1, m.b1)), 0.3), m.w3),
    "three dimensions": lambda m, x: F.linear(torch.tanh(F.linear(x.view(5, 1, 4).expand(5, 2, 4), m.w1, m.b1)), m.w3),
    "flatten in front": lambda m, x: F.linear(torch.tanh(F.linear(x.view(5, 2, 2).flatten(1), m.w1, m.b1)), m.w3),
    "reshape by units of size one": lambda m, x: F.linear(
        F.linear(x, m.w1, m.b1).unsqueeze(1).tanh().unsqueeze(-1).reshape(5, 6), m.w3
    ),
    "flatten to one dimension and back": lambda m, x: F.linear(
        F.linear(x, m.w1, m.b1).flatten().tanh().view(5, 6), m.w3
    ),
    "scaled": lambda m, x: F.linear(F.linear(x * 2, m.w1, m.b1).mul(m.scalar).tanh() / 3, m.w3) * m.one,
    "added zero": lambda m, x: F.linear((F.linear(x, m.w1, m.b1) + torch.zeros(5, 6).to(x)).tanh() + 0, m.w3),
    "added noise at the output": lambda m, x: F.linear(torch.tanh(F.linear(x, m.w1, m.b1)), m.w3) + torch.randn(3),
    "whole slices": lambda m, x: F.linear(torch.tanh(F.linear(x, m.w1, m.b1))[:, :], m.w3[..., :]),
    "dictionary out": lambda m, x: {"y": (F.linear(torch.tanh(F.linear(x, m.w1, m.b1)), m.w3), None)},
    "odd power": lambda m, x: F.linear(F.linear(x, m.w1, m.b1) ** 3, m.w3),
    "symmetric clamp": lambda m, x: F.linear(F.hardtanh(F.linear(x, m.w1, m.b1)).clamp(-0.5, 0.5), m.w3),
    "mean of two passes": lambda m, x: F.linear(torch.stack([torch.tanh(F.linear(x, m.w1, m.b1))] * 2).mean(0), m.w3),
    "autocast": lambda m, x: autocast(lambda: F.linear(torch.tanh(F.linear(x, m.w1, m.b1)), m.w3)),
    "own dtype": lambda m, x: F.linear(torch.tanh(F.linear(x.float(), m.w1.float(), m.b1.float())), m.w3.float()),
}


def autocast(function):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return function()


@pytest.mark.parametrize("form", TWO_LAYERS)
def test_every_way_to_write_a_tanh_net_gives_the_same_axes(form):
    symmetry = infer_forward(TWO_LAYERS[form])
    assert symmetry.axes["w1"] == ("w1:0", "in:w1:1")
    assert symmetry.axes["b1"] == ("w1:0",)
    assert symmetry.axes["w3"] == ("out:w3:0", "w1:0")
    assert symmetry.groups["w1:0"] is B


PERMUTATIONS = {
    "a number added": lambda m, x: F.linear(torch.tanh(F.linear(x, m.w1, m.b1) + 0.1), m.w3),
    "a number subtracted from": lambda m, x: F.linear(torch.tanh(1 - F.linear(x, m.w1, m.b1)), m.w3),
    "a scalar parameter added": lambda m, x: F.linear(torch.tanh(F.linear(x, m.w1, m.b1) + m.scalar), m.w3),
    "one shift for all units": lambda m, x: F.linear(torch.tanh(F.linear(x, m.w1, m.b1) + m.one), m.w3),
    "ones added": lambda m, x: F.linear(F.linear(x, m.w1, m.b1) + torch.ones_like(x[:, :1]), m.w3),
    "gate": lambda m, x: F.linear(F.linear(x, m.w1, m.b1) * F.linear(x, m.w1).sigmoid(), m.w3),
    "units times units": lambda m, x: F.linear(F.linear(x, m.w1, m.b1) * m.b1, m.w3),
    "units by units": lambda m, x: F.linear(F.linear(x, m.w1, m.b1) / (1 + m.b1**2), m.w3),
    "square": lambda m, x: F.linear(F.linear(x, m.w1, m.b1) ** 2, m.w3),
    "absolute value": lambda m, x: F.linear(F.linear(x, m.w1, m.b1).abs(), m.w3),
    "softmax": lambda m, x: F.linear(F.linear(x, m.w1, m.b1).softmax(1), m.w3),
    "mean removed": lambda m, x: (lambda h: F.linear(h - h.mean(1, keepdim=True), m.w3))(F.linear(x, m.w1, m.b1)),
    "largest unit": lambda m, x: (lambda h: F.linear(h / (1 + h.amax(1, True) ** 2), m.w3))(F.linear(x, m.w1, m.b1)),
    "layer norm": lambda m, x: F.linear(F.layer_norm(F.linear(x, m.w1, m.b1), (6,)), m.w3),
    "in place": lambda m, x: F.linear(F.relu_(F.linear(x, m.w1, m.b1)), m.w3),
    "uneven clamp": lambda m, x: F.linear(F.linear(x, m.w1, m.b1).clamp(-1, 2), m.w3),
    "where": lambda m, x: (lambda h: F.linear(torch.where(h > 0, h, h * 0.1), m.w3))(F.linear(x, m.w1, m.b1)),
    "sum of units": lambda m, x: F.linear(x, m.w1, m.b1).tanh().sum(1) + 0 * m.w3.sum(),
}


@pytest.mark.parametrize("form", PERMUTATIONS)
def test_what_breaks_the_sign_leaves_permutations(form):
    symmetry = infer_forward(PERMUTATIONS[form], orthogonal=True)
    assert group_of(symmetry, "w1", 0) is P
    assert symmetry.axes["b1"] == (symmetry.axes["w1"][0],)


def test_residual_sums_share_one_axis():
    def residual(m, x):
        stream = F.linear(x, m.w1)
        for _ in range(2):
            stream = stream + torch.relu(stream @ m.w3.T) @ m.w3
        return stream @ m.w2[:, :2]

    symmetry, _ = quiet(infer_forward, residual)
    stream = symmetry.axes["w1"][0]
    assert symmetry.axes["w3"] == ("w3:0", stream)
    assert symmetry.axes["w2"][0] == stream
    assert symmetry.groups[stream] is B  # no nonlinearity acts on the stream itself
    assert symmetry.groups["w3:0"] is P


def test_residual_blocks_of_modules_share_the_stream():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 5), nn.Linear(5, 6)

        def forward(self, x):
            return x + self.outer(torch.relu(self.inner(x)))

    symmetry = infer_symmetry(nn.Sequential(nn.Linear(4, 6), Block(), Block(), nn.Linear(6, 2)), torch.randn(5, 4))
    stream = "0.weight:0"
    assert symmetry.groups == {stream: B, "1.inner.weight:0": P, "2.inner.weight:0": P}
    assert symmetry.axes["2.inner.weight"] == ("2.inner.weight:0", stream)
    assert symmetry.axes["2.outer.weight"] == (stream, "2.inner.weight:0")
    assert symmetry.axes["3.weight"][1] == stream


# Free axes and warnings ----------------------------------------------------------------------------------------------


def test_an_unknown_operation_frees_its_axes_with_one_warning_that_names_it():
    def forward(m, x):
        hidden = torch.tanh(F.linear(x, m.w1, m.b1)).logcumsumexp(1)
        hidden = torch.relu(F.linear(hidden, m.w2)).logcumsumexp(1)
        return F.linear(hidden, m.w3)

    symmetry, texts = quiet(infer_forward, forward)
    assert not {symmetry.axes[n][d] for n, d in [("w1", 0), ("w2", 0), ("w2", 1), ("w3", 1)]} & set(symmetry.groups)
    assert len(texts) == 1
    assert "aten.logcumsumexp.default has no handler" in texts[0]
    assert "w1[dim 0] = b1[dim 0]" in texts[0]
    assert "w2[dim 0]" in texts[0]


def test_an_unknown_operation_on_inputs_gives_no_warning():
    symmetry = infer_forward(lambda m, x: F.linear(torch.tanh(F.linear(x.logcumsumexp(1), m.w1)), m.w3))
    assert symmetry.groups[symmetry.axes["w1"][0]] is B


SILENT = {
    "of the units": (lambda m, x: torch.tanh(F.linear(x, m.w1)) + torch.randn_like(F.linear(x, m.w1)), "randn_like"),
    "of zeros": (lambda m, x: torch.tanh(F.linear(x, m.w1)) + torch.zeros(6).cumsum(0), "cumsum"),
    "of a number": (lambda m, x: F.linear(x, m.w1) * F.one_hot(torch.tensor(2), 6), "one_hot"),
    "of a matrix of ones": (lambda m, x: F.linear(x, m.w1) @ torch.ones(6, 6).triu(), "triu"),
}


@pytest.mark.parametrize("case", SILENT)
def test_what_meets_the_result_of_an_unknown_operation_is_free_with_a_warning_that_names_it(case):
    forward, operator = SILENT[case]
    symmetry, texts = quiet(infer_forward, lambda m, x: F.linear(forward(m, x).to(x), m.w3))
    assert group_of(symmetry, "w1", 0) is Group.TRIVIAL
    assert any(f"aten.{operator}" in text and "w1[dim 0]" in text for text in texts), texts


FREE = {
    "buffer": (lambda m, x: F.linear(torch.tanh(F.linear(x, m.w1) + m.shift), m.w3), "buffer shift"),
    "constant": (lambda m, x: F.linear(F.linear(x, m.w1) * torch.arange(6), m.w3), "a constant from aten.arange"),
    "every second unit": (
        lambda m, x: F.linear(F.linear(x, m.w1)[:, ::2], m.w3[:, :3]),
        "aten.slice.Tensor takes a part",
    ),
    "order": (lambda m, x: F.linear(F.linear(x, m.w1).cumsum(1), m.w3), "aten.cumsum.default depends on the order"),
    "cut across": (
        lambda m, x: F.linear(torch.einsum("bi,hi->bhi", x, m.w1).view(5, 4, 6).tanh().sum(1), m.w3),
        "aten.view.default cuts axes across",
    ),
    "parts that do not fit": (
        lambda m, x: F.linear((lambda h: h.view(5, 2, 3).transpose(1, 2).reshape(5, 6) + h)(F.linear(x, m.w1)), m.w3),
        "joins axes whose parts do not fit",
    ),
}


@pytest.mark.parametrize("case", FREE)
def test_what_moves_with_no_group_frees_the_axis_with_a_warning(case):
    forward, text = FREE[case]
    symmetry, texts = quiet(infer_forward, forward)
    assert group_of(symmetry, "w1", 0) is Group.TRIVIAL
    assert any(text in warning and "w1[dim 0]" in warning for warning in texts), texts
    assert len(set(texts)) == len(texts)


def test_an_autoencoder_with_tied_weights_keeps_its_hidden_axis():
    symmetry = infer_forward(lambda m, x: torch.tanh(x @ m.w1.T + m.b1) @ m.w1)
    assert symmetry.axes["w1"] == ("w1:0", "in:w1:1")
    assert symmetry.groups["w1:0"] is B


def test_a_parameter_shared_by_two_modules_appears_once():
    first, second = nn.Linear(4, 6, bias=False), nn.Linear(4, 6)
    second.weight = first.weight
    model = nn.ModuleDict({"first": first, "second": second, "out": nn.Linear(6, 2)})
    model.forward = lambda x: model["out"](torch.tanh(model["first"](x)) - torch.tanh(model["second"](x)))
    symmetry = infer_symmetry(model, torch.randn(5, 4))
    assert symmetry.axes == {
        "first.weight": ("first.weight:0", "in:first.weight:1"),
        "second.bias": ("first.weight:0",),
        "out.weight": ("out:out.weight:0", "first.weight:0"),
        "out.bias": ("out:out.weight:0",),
    }


def test_an_axis_of_one_unit_is_free():
    symmetry = infer_symmetry(mlp((4, 1, 2), "relu"), torch.randn(5, 4))
    assert symmetry.groups == {}
    assert symmetry.axes["0.weight"] == ("free:0.weight:0", "in:0.weight:1")


def test_a_parameter_without_dimensions_has_no_axes():
    assert infer_forward(TWO_LAYERS["scaled"]).axes["scalar"] == ()


def test_an_unused_parameter_couples_to_nothing():
    symmetry = infer_forward(TWO_LAYERS["F.linear"])
    assert symmetry.axes["w2"] == ("w2:0", "w2:1")
    others = {label for name, labels in symmetry.axes.items() if name != "w2" for label in labels}
    assert not others & {"w2:0", "w2:1"}
    assert [block.copies for block in symmetry.blocks if set(block.axes) == {"w2:0", "w2:1"}] == [1]


def test_frozen_parameters_shape_the_axes_and_are_left_out():
    model = mlp((3, 4, 5, 2), "tanh")
    model[2].requires_grad_(False)
    symmetry = infer_symmetry(model, torch.randn(6, 3))
    assert list(symmetry.axes) == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert symmetry.axes["4.weight"] == ("out:4.weight:0", "2.weight:0")
    assert symmetry.groups == {"0.weight:0": B, "2.weight:0": B}
