"""Corner cases with structures worked out by hand: states that recurrent nets start from, dimensions of one unit,
copies of heads, products of many dimensions, slices that begin before the start."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from symlab.symmetry import infer_symmetry
from tests.reference_parts import number_of_factors
from tests.symmetry.networks import Module, gradients_move_with_weights, kinds
from tests.symmetry.test_infer_structure import (
    GATES3,
    GATES4,
    HEADS,
    QK,
    ROWS,
    SEQUENCES,
    H,
    L,
    V,
    X,
    cell,
    lin,
    one,
)


def start(*shape):
    return nn.Parameter(torch.randn(*shape))


def repeated_heads(m, x):
    q, k, v = (layer(x).view(4, 2, -1, 2).transpose(1, 2) for layer in (m.q, m.k, m.v))
    k, v = (tensor.repeat_interleave(2, 1) for tensor in (k, v))
    return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 2, 8))


def attention_of_six_dimensions(m, x):
    q, k, v = (layer(x).view(4, 2, 1, 1, 2, 3).permute(0, 2, 3, 4, 1, 5) for layer in (m.q, m.k, m.v))
    return m.o(F.scaled_dot_product_attention(q, k, v).permute(0, 4, 1, 2, 3, 5).reshape(4, 2, 6))


def first_layer_from(m, x):
    states = x.new_zeros(2, 2, 3)
    states[0] = m.start
    return m.o(m.cell(x, states)[0])


def causal_tokens(m, x):
    return m.o(x * F.scaled_dot_product_attention(m.q, m.k, m.v, is_causal=True).sum(1))


def one_unit_written_to_five(m, x):
    units = x.new_zeros(4, 5)
    units.copy_(m.i(x))
    return m.o(units)


# name: model, inputs, tensors by hand, groups by hand
NETS = {
    "states of two layers": (
        Module(
            lambda m, x: m.o(m.cell(x, m.start.expand(-1, 2, -1).contiguous())[0]),
            start=start(2, 1, 3),
            cell=nn.GRU(3, 3, 2),
            o=L(3, 2),
        ),
        SEQUENCES,
        [[one(2), one(1), H], *cell(GATES3), *cell(GATES3, H), *lin(one(2), H)],
        {"h": ("P", 3)},
    ),
    "a state for every row": (
        Module(lambda m, x: m.o(m.cell(x, m.start)[0]), start=start(1, 2, 3), cell=nn.RNN(3, 3), o=L(3, 2)),
        SEQUENCES,
        [[one(1), one(2), H], *cell(H), *lin(one(2), H)],
        {"h": ("B", 3)},
    ),
    "a state of a cell for every row": (
        Module(lambda m, x: m.o(m.cell(x, m.start)), start=start(4, 3), cell=nn.GRUCell(3, 3), o=L(3, 2)),
        ROWS,
        [[one(4), H], *cell(GATES3), *lin(one(2), H)],
        {"h": ("P", 3)},
    ),
    "a state set in zeros": (
        Module(first_layer_from, start=start(3), cell=nn.GRU(3, 3, 2), o=L(3, 2)),
        SEQUENCES,
        [[H], *cell(GATES3), *cell(GATES3, H), *lin(one(2), H)],
        {"h": ("P", 3)},
    ),
    "states of the layers of another net": (
        Module(
            lambda m, x: m.o(m.decoder(x[:1], m.encoder(x)[1])[0]),
            encoder=nn.LSTM(3, 3, 2),
            decoder=nn.LSTM(3, 3, 2),
            o=L(3, 2),
        ),
        SEQUENCES,
        [*(cell(GATES4) + cell([["l"]] * 4, H, one("l"))) * 2, *lin(one(2), one("l"))],
        {"h": ("P", 3), "l": ("P", 3)},
    ),
    "an LSTM of one unit": (
        Module(lambda m, x: m.o(torch.tanh(m.h(m.cell(x)[0]))), cell=nn.LSTM(3, 1), h=L(1, 3), o=L(3, 2)),
        SEQUENCES,
        [*cell(one(4), X, one(1)), *lin(H, one(1)), *lin(one(2), H)],
        {"h": ("B", 3)},
    ),
    "last states of two layers of one unit": (
        Module(
            lambda m, x: m.o(torch.tanh(m.h(m.cell(x)[1].transpose(0, 1).flatten(1)))),
            cell=nn.GRU(3, 1, 2),
            h=L(2, 3),
            o=L(3, 2),
        ),
        SEQUENCES,
        [*cell(one(3), X, one(1)), *cell(one(3), one(1), one(1)), *lin(H, one(2)), *lin(one(2), H)],
        {"h": ("B", 3)},
    ),
    "two single units side by side": (
        Module(
            lambda m, x: m.o(torch.tanh(m.h(torch.cat([m.i(x), m.j(x)], 1)))),
            i=L(3, 1),
            j=L(3, 1),
            h=L(2, 4),
            o=L(4, 2),
        ),
        ROWS,
        [*lin(one(1), X), *lin(one(1), X), *lin(H, one(2)), *lin(one(2), H)],
        {"h": ("B", 4)},
    ),
    "a single unit between zeros": (
        Module(lambda m, x: m.o(torch.tanh(m.h(F.pad(m.i(x), (1, 2))))), i=L(3, 1), h=L(4, 4), o=L(4, 2)),
        ROWS,
        [*lin(one(1), X), *lin(H, one(4)), *lin(one(2), H)],
        {"h": ("B", 4)},
    ),
    "heads repeated for several heads of queries": (
        Module(repeated_heads, q=L(3, 8), k=L(3, 4), v=L(3, 4), o=L(8, 2)),
        SEQUENCES,
        [
            *lin(one("head", "copy", "d"), X),
            *lin(one("head", "d"), X),
            *lin(one("head", "e"), X),
            *lin(one(2), one("head", "copy", "e")),
        ],
        {"head": ("P", 2), "copy": ("P", 2), "d": ("B", 2), "e": ("B", 2)},
    ),
    "a matrix repeated as a vector": (
        Module(lambda m, x: m.o(m.w.repeat_interleave(2).view(4, 6) * m.i(x)), w=start(4, 3), i=L(3, 6), o=L(6, 2)),
        ROWS,
        [[one(4), H], *lin(one("h", "copy"), X), *lin(one(2), one("h", "copy"))],
        {"h": ("P", 3), "copy": ("P", 2)},
    ),
    "attention over three dimensions of heads": (
        Module(attention_of_six_dimensions, q=L(3, 6), k=L(3, 6), v=L(3, 6), o=L(6, 2)),
        SEQUENCES,
        [*lin(QK, X), *lin(QK, X), *lin(V, X), *lin(one(2), V)],
        HEADS,
    ),
    "a sum whose output is not written": (
        Module(lambda m, x: m.o(torch.tanh(torch.einsum("...i,oi", x, m.w))), w=start(4, 3), o=L(4, 2)),
        SEQUENCES,
        [[H, X], *lin(one(2), H)],
        {"h": ("B", 4)},
    ),
    "a sum over the units of one factor": (
        Module(lambda m, x: m.o(torch.einsum("bi,hi->b", x, m.w)[:, None]), w=start(4, 3), o=L(1, 2)),
        ROWS,
        [[H, X], *lin(one(2), one(1))],
        {"h": ("P", 4)},
    ),
    "causal attention of learned tokens": (
        Module(causal_tokens, q=start(1, 4, 2), k=start(1, 4, 2), v=start(1, 4, 3), o=L(3, 2)),
        ROWS,
        [*[[one(1), one(4), one("d")]] * 2, [one(1), one(4), X], *lin(one(2), X)],
        {"d": ("B", 2)},
    ),
    "one unit written to five": (
        Module(one_unit_written_to_five, i=L(3, 1), o=L(5, 2)),
        ROWS,
        [*lin(one(1), X), *lin(one(2), H)],
        {"h": ("P", 5)},
    ),
    "ones before the units": (
        Module(lambda m, x: m.o(F.pad(m.i(x), (2, 0), value=1.0)), i=L(3, 4), o=L(6, 2)),
        ROWS,
        [*lin(H, X), *lin(one(2), [["ones"], ["h"]])],
        {"h": ("P", 4), "ones": ("P", 2)},
    ),
    "a slice from before the start": (
        Module(lambda m, x: m.o(m.i(x)[:, -9:2].relu()), i=L(3, 5), o=L(2, 2)),
        ROWS,
        [*lin([["h"], ["rest"]], X), *lin(one(2), H)],
        {"h": ("P", 2), "rest": ("B", 3)},
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_the_structure_is_the_one_worked_out_by_hand(name):
    model, inputs, tensors, groups = NETS[name]
    model = copy.deepcopy(model)
    symmetry = infer_symmetry(model, inputs)
    assert kinds(symmetry) == sorted(groups.values())
    assert symmetry.num_factors == number_of_factors(tensors, groups)
    assert gradients_move_with_weights(model, inputs, symmetry)
