"""Parts and factors of axes: their labels, what takes them apart, and what cannot be kept."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from symlab.symmetry import Group, infer_symmetry, inspect_symmetry
from tests.symmetry.networks import Forward, Module, gradients_move_with_weights, infer_forward, kinds, quiet
from tests.symmetry.test_infer_structure import NETS, ROWS, SEQUENCES, L


def test_query_and_key_share_their_rotations_and_value_and_output_others():
    model, inputs, _, _ = NETS["one projection for query, key and value"]
    symmetry = infer_symmetry(model, inputs, orthogonal=True)
    assert kinds(symmetry) == [("O", 3), ("O", 3), ("P", 2)]
    assert gradients_move_with_weights(copy.deepcopy(model), inputs, symmetry)
    head, shared, value = "qkv.weight:0:0:6/0", "qkv.weight:0:0:6/1", "qkv.weight:0:12:18/1"
    assert symmetry.axes["qkv.weight"][0].segments == ((head, shared), (head, shared), (head, value))
    assert symmetry.axes["o.weight"][1].segments == ((head, value),)


def test_the_fused_attention_of_torch_is_switched_off_and_on_again():
    model, inputs, _, groups = NETS["transformer layer"]
    model = copy.deepcopy(model).eval()
    for enabled in (True, False):
        torch.backends.mha.set_fastpath_enabled(enabled)
        try:
            assert kinds(infer_symmetry(model, inputs)) == sorted(groups.values())
            assert torch.backends.mha.get_fastpath_enabled() is enabled
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


def test_a_linear_axis_that_a_tensor_has_twice_is_reported_as_orthogonal():
    model = Module(lambda m, x: m.o(m.i(x[1]) + m.h(m.i(x[0]))), i=L(3, 4), h=L(4, 4), o=L(4, 2))
    symmetry = infer_symmetry(model, SEQUENCES)
    assert symmetry.groups == {"i.weight:0": Group.ORTHOGONAL}
    # W_i, b_i, b_h, W_o transposed: 3 + 1 + 1 + 2 copies of R^4; W_h: trivial, traceless symmetric, antisymmetric; b_o
    assert symmetry.num_factors == 7 * 8 // 2 + (3 * 4 // 2) + 1 + 1
    assert gradients_move_with_weights(model, SEQUENCES, symmetry)


def test_labels_of_parts_and_factors():
    model, inputs, _, _ = NETS["concatenation"]
    axes = infer_symmetry(model, inputs).axes
    assert axes["c.weight"][1].segments == (("a.weight:0",), ("b.weight:0",))
    model, inputs, _, _ = NETS["zeros on both sides of the channels"]
    axes = infer_symmetry(model, inputs).axes
    assert axes["b.weight"][0].segments == (("free:b.weight:0:0:1",), ("a.weight:0",), ("b.weight:0:5:7",))
    model, inputs, _, _ = NETS["group norm"]
    assert infer_symmetry(model, inputs).axes["0.weight"][0].segments == (("0.weight:0/0", "0.weight:0/1"),)


def test_a_linear_network_of_parts_may_rotate_each_part():
    def forward(m, x):
        first, second = F.linear(x, m.w1).split([2, 4], 1)
        return F.linear(torch.cat([second.tanh(), first], 1), m.w3)

    symmetry = infer_forward(forward, orthogonal=True)
    assert symmetry.groups["w1:0:0:2"] is Group.ORTHOGONAL
    assert symmetry.groups["w1:0:2:6"] is Group.SIGNED_PERMUTATION
    assert symmetry.axes["w3"][1].segments == (("w1:0:2:6",), ("w1:0:0:2",))


PARTS = {
    "slice": (lambda m, x: F.linear(F.linear(x, m.w1)[:, :4].relu(), m.w3[:, :4]), [("B", 2), ("P", 4)]),
    "narrow": (lambda m, x: F.linear(F.linear(x, m.w1).narrow(1, 2, 4).relu(), m.w3[:, 2:]), [("B", 2), ("P", 4)]),
    "one unit": (lambda m, x: F.linear(x, m.w1).relu()[:, 2:3] @ m.w3[:, 2:3].T, [("P", 2), ("P", 3)]),
    "select": (lambda m, x: F.linear(x, m.w1).relu()[:, -1, None] * m.w3[:, 5], [("P", 5)]),
    "halves exchanged": (
        lambda m, x: F.linear(torch.cat(F.linear(x, m.w1).chunk(2, 1)[::-1], 1), m.w3),
        [("B", 3)] * 2,
    ),
    "negative padding": (
        lambda m, x: F.linear(F.pad(F.linear(x, m.w1).relu(), (-1, -2)), m.w3[:, :3]),
        [("P", 3), ("P", 2)],
    ),
    "set in place": (lambda m, x: F.linear(zeroed(F.linear(x, m.w1).relu()), m.w3), [("P", 2), ("P", 4)]),
    "cut and back": (
        lambda m, x: F.linear(F.linear(x, m.w1).view(5, 2, 3).transpose(0, 1).transpose(0, 1).flatten(1), m.w3),
        [("B", 6)],
    ),
}


def zeroed(h):
    h = h.clone()
    h[:, :2] = 0
    return h


@pytest.mark.parametrize("case", PARTS)
def test_parts_of_the_hidden_units(case):
    forward, expected = PARTS[case]
    report = inspect_symmetry(Forward(forward), torch.randn(5, 4))
    hidden = [
        (a.group.name[0].replace("S", "B"), a.size)
        for a in report.axes
        if ("w1", 0) in a.places and a.error is not None
    ]
    assert sorted(hidden) == sorted(expected)


def test_reasons_of_a_parametrization_that_mixes_units():
    model = nn.Sequential(nn.utils.parametrizations.orthogonal(L(3, 4)), nn.Tanh(), L(4, 2))
    symmetry, texts = quiet(infer_symmetry, model, ROWS)
    assert symmetry.groups == {}
    assert any("householder" in text for text in texts)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(L(3, 4)), nn.Tanh(), L(4, 2)).eval()
    symmetry, texts = quiet(infer_symmetry, model, ROWS)
    assert symmetry.groups == {}
    assert any("_u lies along the axis and does not move with it" in text for text in texts)


def test_a_parallel_wrapper_is_named():
    with pytest.raises(ValueError, match=r"give its model\.module"):
        infer_symmetry(nn.DataParallel(L(3, 2)), ROWS)


def test_an_axis_that_a_tensor_has_three_times_is_free():
    def forward(m, x):
        h = torch.tanh(m.i(x))
        return m.o(h + torch.einsum("bij,kij->bk", h[:, :, None] * h[:, None], m.cube))

    model = Module(forward, i=L(3, 4), o=L(4, 2))
    model.cube = nn.Parameter(torch.randn(4, 4, 4))
    symmetry, texts = quiet(infer_symmetry, model, ROWS)
    assert symmetry.groups == {}
    assert len(texts) == 1
    assert "one axis indexes 3 dimensions of cube" in texts[0]
