"""Concatenations and products of axes, channel groups, attention and recurrent nets: the structure found is the one
worked out by hand, the number of factors is the one that follows from group characters, and gradients move."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from symlab.symmetry import infer_symmetry
from tests.reference_parts import elements, number_of_factors
from tests.symmetry.networks import Module, gradients_move_with_weights, kinds

L, C = nn.Linear, nn.Conv2d
IMAGES, ROWS, SEQUENCES = torch.randn(2, 3, 4, 4), torch.randn(4, 3), torch.randn(4, 2, 3)


def attention(m, x):
    q, k, v = (layer(x).view(4, 2, 2, 3).transpose(1, 2) for layer in (m.q, m.k, m.v))
    weights = torch.softmax(q @ k.mT / 3**0.5, -1)
    return m.o((weights @ v).transpose(1, 2).reshape(4, 2, 6))


def packed_attention(m, x):
    q, k, v = m.qkv(x).reshape(4, 2, 3, 2, 3).permute(2, 0, 3, 1, 4).unbind(0)
    return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 2, 6))


def grouped_queries(m, x):
    q, k, v = (layer(x).view(4, 2, -1, 2).transpose(1, 2) for layer in (m.q, m.k, m.v))
    return m.o(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).reshape(4, 2, 8))


def densely(m, x):
    a = m.a(x)
    b = m.b(torch.relu(a))
    return m.c(torch.relu(torch.cat([a, b], 1)))


def gated(m, x):
    up, gate = m.i(x).chunk(2, -1)
    return m.o(up * F.silu(gate))


def padded(m, x):
    h = m.a(x)
    return m.o(F.pad(h, (0, 0, 0, 0, 1, 2)) + m.b(torch.relu(h)))


def interleaved(m, x):
    q, k = m.i(x).view(4, 2, 3, 2).unbind(-1)
    return m.o(q * k)


def shuffled(m, x):
    h = m.a(x)
    return m.o(h.view(2, 2, 3, 4, 4).transpose(1, 2).reshape(2, 6, 4, 4).relu())


def pairs(h):
    return (h[:, :, None] * h[:, None]).flatten(1)


def steps(m, x):
    state = m.cell(x[1], m.cell(x[0]))
    return m.o(state[0] if isinstance(state, tuple) else state)


def lin(out, *inn):
    """By hand: weight and bias of a linear layer between dimensions given as segments."""
    return [[out, inn[0]], [out]]


def conv(out, inn, kernel=1):
    return [[out, inn, [[kernel]], [[kernel]]], [out]]


def one(*axes):
    return [list(axes)]


H, X = one("h"), one(3)
QK, V = one("head", "d"), one("head", "e")
HEADS = {"head": ("P", 2), "d": ("B", 3), "e": ("B", 3)}
GATES3, GATES4 = [["h"]] * 3, [["h"]] * 4


def cell(gates, inputs=X, hidden=H):
    return [[gates, inputs], [gates, hidden], [gates], [gates]]


# name: model, inputs, tensors by hand, groups by hand
NETS = {
    "attention by hand": (
        Module(attention, q=L(3, 6), k=L(3, 6), v=L(3, 6), o=L(6, 2)),
        SEQUENCES,
        [*lin(QK, X), *lin(QK, X), *lin(V, X), *lin(one(2), V)],
        HEADS,
    ),
    "one projection for query, key and value": (
        Module(packed_attention, qkv=L(3, 18), o=L(6, 2)),
        SEQUENCES,
        [*lin(QK + QK + V, X), *lin(one(2), V)],
        HEADS,
    ),
    "grouped queries": (
        Module(grouped_queries, q=L(3, 8), k=L(3, 4), v=L(3, 4), o=L(8, 2)),
        SEQUENCES,
        [
            *lin(one("head", "copy", "d"), X),
            *lin(one("head", "d"), X),
            *lin(one("head", "e"), X),
            *lin(one(2), one("head", "copy", "e")),
        ],
        {"head": ("P", 2), "copy": ("P", 2), "d": ("B", 2), "e": ("B", 2)},
    ),
    "multi-head attention": (
        Module(lambda m, x: m.o(m.a(*[m.i(x)] * 3)[0]), i=L(3, 4), a=nn.MultiheadAttention(4, 2), o=L(4, 2)),
        SEQUENCES,
        [
            *lin(one("s"), X),
            *lin(QK + QK + V, one("s")),
            *lin(one("t"), V),
            *lin(one(2), one("t")),
        ],
        {"head": ("P", 2), "d": ("B", 2), "e": ("B", 2), "s": ("B", 4), "t": ("B", 4)},
    ),
    "transformer layer": (
        nn.Sequential(L(3, 4), nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True), L(4, 2)),
        SEQUENCES,
        [
            *lin(one("s"), X),
            *lin(QK + QK + V, one("s")),
            *lin(one("s"), V),
            *lin(H, one("s")),
            *lin(one("s"), H),
            *[[one("s")]] * 4,
            *lin(one(2), one("s")),
        ],
        {"head": ("P", 2), "d": ("B", 2), "e": ("B", 2), "s": ("P", 4), "h": ("P", 5)},
    ),
    "concatenation": (
        Module(densely, a=C(3, 4, 1), b=C(4, 5, 1), c=C(9, 2, 1)),
        IMAGES,
        [*conv(one("a"), X), *conv(one("b"), one("a")), *conv(one(2), [["a"], ["b"]])],
        {"a": ("P", 4), "b": ("P", 5)},
    ),
    "chunk and product": (
        Module(gated, i=L(3, 8), o=L(4, 2)),
        ROWS,
        [*lin([["h"], ["h"]], X), *lin(one(2), H)],
        {"h": ("P", 4)},
    ),
    "gated linear unit": (
        nn.Sequential(L(3, 8), nn.GLU(), L(4, 2)),
        ROWS,
        [*lin([["h"], ["h"]], X), *lin(one(2), H)],
        {"h": ("P", 4)},
    ),
    "every second unit": (
        Module(interleaved, i=L(3, 6), o=L(3, 2)),
        SEQUENCES,
        [*lin(one("h", 2), X), *lin(one(2), H)],
        {"h": ("P", 3)},
    ),
    "zeros on both sides of the channels": (
        Module(padded, a=C(3, 4, 1), b=C(4, 7, 1), o=C(7, 2, 1)),
        IMAGES,
        [*conv(one("a"), X), *conv([[1], ["a"], ["z"]], one("a")), *conv(one(2), [[1], ["a"], ["z"]])],
        {"a": ("P", 4), "z": ("B", 2)},
    ),
    "channels times space": (
        nn.Sequential(C(3, 4, 3), nn.ReLU(), nn.Flatten(), L(16, 2)),
        IMAGES,
        [*conv(H, X, 3), *lin(one(2), one("h", 4))],
        {"h": ("P", 4)},
    ),
    "space times channels": (
        Module(lambda m, x: m.o(m.a(x).movedim(1, -1).relu().flatten(1)), a=C(3, 4, 3), o=L(16, 2)),
        IMAGES,
        [*conv(H, X, 3), *lin(one(2), one(4, "h"))],
        {"h": ("P", 4)},
    ),
    "depthwise convolution": (
        nn.Sequential(C(3, 4, 1), nn.ReLU(), C(4, 8, 3, groups=4), nn.ReLU(), C(8, 2, 1)),
        IMAGES,
        [*conv(one("c"), X), *conv(one("c", "m"), one(1), 3), *conv(one(2), one("c", "m"))],
        {"c": ("P", 4), "m": ("P", 2)},
    ),
    "groups of channels": (
        nn.Sequential(C(3, 6, 1), nn.ReLU(), C(6, 4, 1, groups=2), nn.ReLU(), C(4, 2, 1)),
        IMAGES,
        [*conv(one("g", "i"), X), *conv(one("g", "o"), one("i")), *conv(one(2), one("g", "o"))],
        {"g": ("P", 2), "i": ("P", 3), "o": ("P", 2)},
    ),
    "transposed convolution with groups": (
        nn.Sequential(C(3, 6, 1), nn.Tanh(), nn.ConvTranspose2d(6, 4, 2, groups=2), nn.Tanh(), C(4, 2, 1)),
        IMAGES,
        [
            *conv(one("g", "i"), X),
            [one("g", "i"), one("o"), one(2), one(2)],
            [one("g", "o")],
            *conv(one(2), one("g", "o")),
        ],
        {"g": ("P", 2), "i": ("B", 3), "o": ("B", 2)},
    ),
    "group norm": (
        nn.Sequential(C(3, 6, 1), nn.GroupNorm(2, 6), nn.ReLU(), C(6, 2, 1)),
        IMAGES,
        [*conv(one("g", "c"), X), [one("g", "c")], [one("g", "c")], *conv(one(2), one("g", "c"))],
        {"g": ("P", 2), "c": ("P", 3)},
    ),
    "shuffled channels": (
        Module(shuffled, a=C(3, 6, 1), o=C(6, 2, 1)),
        IMAGES,
        [*conv(one("g", "u"), X), *conv(one(2), one("u", "g"))],
        {"g": ("P", 2), "u": ("P", 3)},
    ),
    "squeeze and excitation": (
        Module(
            lambda m, x: (lambda h: m.o(h * m.e(torch.relu(m.s(h.mean((2, 3), keepdim=True)))).sigmoid()))(m.a(x)),
            a=C(3, 4, 1),
            s=C(4, 2, 1),
            e=C(2, 4, 1),
            o=C(4, 2, 1),
        ),
        IMAGES,
        [*conv(one("a"), X), *conv(one("s"), one("a")), *conv(one("a"), one("s")), *conv(one(2), one("a"))],
        {"a": ("P", 4), "s": ("P", 2)},
    ),
    "recurrent layer": (
        Module(lambda m, x: m.o(m.cell(x)[0]), cell=nn.RNN(3, 4), o=L(4, 2)),
        SEQUENCES,
        [*cell(H), *lin(one(2), H)],
        {"h": ("B", 4)},
    ),
    "recurrence by hand": (
        Module(lambda m, x: m.o(torch.relu(m.i(x[1]) + m.h(torch.relu(m.i(x[0]))))), i=L(3, 5), h=L(5, 5), o=L(5, 2)),
        SEQUENCES,
        [*lin(H, X), *lin(H, H), *lin(one(2), H)],
        {"h": ("P", 5)},
    ),
    "gated recurrent layer": (
        Module(lambda m, x: m.o(m.cell(x)[0][-1]), cell=nn.GRU(3, 4), o=L(4, 2)),
        SEQUENCES,
        [*cell(GATES3), *lin(one(2), H)],
        {"h": ("P", 4)},
    ),
    "two layers of an LSTM, both ways": (
        Module(lambda m, x: m.o(m.cell(x)[0]), cell=nn.LSTM(3, 2, 2, bidirectional=True), o=L(4, 2)),
        SEQUENCES,
        [
            *cell([["a"]] * 4, X, one("a")),
            *cell([["b"]] * 4, X, one("b")),
            *cell([["c"]] * 4, [["a"], ["b"]], one("c")),
            *cell([["d"]] * 4, [["a"], ["b"]], one("d")),
            *lin(one(2), [["c"], ["d"]]),
        ],
        dict.fromkeys("abcd", ("P", 2)),
    ),
    "last state of the last layer": (
        Module(lambda m, x: m.o(m.cell(x)[1][0][-1]), cell=nn.LSTM(3, 3, 2), o=L(3, 2)),
        SEQUENCES,
        [*cell([["a"]] * 4, X, one("a")), *cell([["b"]] * 4, one("a"), one("b")), *lin(one(2), one("b"))],
        {"a": ("P", 3), "b": ("P", 3)},
    ),
    "sum of the last states": (
        Module(lambda m, x: m.o(m.cell(x)[1].sum(0)), cell=nn.GRU(3, 3, 2), o=L(3, 2)),
        SEQUENCES,
        [*cell(GATES3), *cell(GATES3, H), *lin(one(2), H)],
        {"h": ("P", 3)},
    ),
    "LSTM with a projection": (
        Module(lambda m, x: m.o(m.cell(x)[0]), cell=nn.LSTM(3, 4, proj_size=2), o=L(2, 2)),
        SEQUENCES,
        [*cell(GATES4, X, one("p")), [one("p"), H], *lin(one(2), one("p"))],
        {"h": ("P", 4), "p": ("B", 2)},
    ),
    "LSTM cell": (
        Module(steps, cell=nn.LSTMCell(3, 4), o=L(4, 2)),
        SEQUENCES,
        [*cell(GATES4), *lin(one(2), H)],
        {"h": ("P", 4)},
    ),
    "GRU cell": (
        Module(steps, cell=nn.GRUCell(3, 4), o=L(4, 2)),
        SEQUENCES,
        [*cell(GATES3), *lin(one(2), H)],
        {"h": ("P", 4)},
    ),
    "tied auto-encoder": (
        Module(lambda m, x: m.o(F.linear(torch.tanh(m.w(m.i(x))), m.w.weight.T)), i=L(3, 5), w=L(5, 4), o=L(5, 2)),
        ROWS,
        [*lin(one("s"), X), *lin(H, one("s")), *lin(one(2), one("s"))],
        {"s": ("B", 5), "h": ("B", 4)},
    ),
    "one square layer twice": (
        Module(lambda m, x: m.o(torch.relu(m.w(torch.relu(m.w(torch.relu(m.i(x))))))), i=L(3, 4), w=L(4, 4), o=L(4, 2)),
        ROWS,
        [*lin(H, X), *lin(H, H), *lin(one(2), H)],
        {"h": ("P", 4)},
    ),
    "weight norm": (
        Module(lambda m, x: m.o(torch.tanh(m.w(x))), w=nn.utils.parametrizations.weight_norm(L(3, 4)), o=L(4, 2)),
        ROWS,
        [[H], [H, one(1)], [H, X], *lin(one(2), H)],
        {"h": ("P", 4)},
    ),
    "bilinear layer": (
        Module(lambda m, x: m.o(m.b(m.i(x), m.j(x))), i=L(3, 4), j=L(3, 5), b=nn.Bilinear(4, 5, 3), o=L(3, 2)),
        ROWS,
        [*lin(one("i"), X), *lin(one("j"), X), [one("b"), one("i"), one("j")], [one("b")], *lin(one(2), one("b"))],
        {"i": ("B", 4), "j": ("B", 5), "b": ("B", 3)},
    ),
    "patches": (
        Module(lambda m, x: m.o(F.unfold(m.a(x).relu(), 2).mT), a=C(3, 4, 1), o=L(16, 2)),
        IMAGES,
        [*conv(H, X), *lin(one(2), one("h", 4))],
        {"h": ("P", 4)},
    ),
    "products of all pairs": (
        Module(lambda m, x: m.o(pairs(torch.tanh(m.i(x)))), i=L(3, 3), o=L(9, 2)),
        ROWS,
        [*lin(H, X), *lin(one(2), one("h", "h"))],
        {"h": ("B", 3)},
    ),
    "repeated units": (
        Module(lambda m, x: m.o(m.i(x).repeat(1, 2)), i=L(3, 4), o=L(8, 2)),
        ROWS,
        [*lin(H, X), *lin(one(2), one("copy", "h"))],
        {"h": ("B", 4), "copy": ("P", 2)},
    ),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_the_structure_is_the_one_worked_out_by_hand(name, training):
    model, inputs, tensors, groups = NETS[name]
    model = copy.deepcopy(model).train(training)
    symmetry = infer_symmetry(model, inputs)
    assert kinds(symmetry) == sorted(groups.values())
    assert symmetry.num_factors == number_of_factors(tensors, groups)
    assert gradients_move_with_weights(model, inputs, symmetry)


SMALL = ("every second unit", "last state of the last layer", "grouped queries", "two layers of an LSTM, both ways")


@pytest.mark.parametrize("name", SMALL)
def test_no_element_of_the_group_changes_the_outputs(name):
    model, inputs, _, _ = NETS[name]
    model, inputs = copy.deepcopy(model).double(), inputs.double()
    symmetry = infer_symmetry(model, inputs)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    every = [
        [torch.tensor(g).double() for g in elements("P" if group.name == "PERMUTATION" else "B", symmetry.sizes[label])]
        for label, group in symmetry.groups.items()
    ]
    before, count = model(inputs).detach(), 0
    for choice in itertools.product(*every):
        moved = symmetry.act(dict(zip(symmetry.groups, choice, strict=True)), weights)
        after = torch.func.functional_call(model, moved, (inputs,)).detach()
        torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)
        count += 1
    assert count > 1
