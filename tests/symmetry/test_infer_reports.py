"""What inspect_symmetry says about each axis: role, places, reasons, error; and the verification of many axes."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from symlab.symmetry import Group, infer_symmetry, inspect_symmetry
from symlab.symmetry.handlers import table
from symlab.symmetry.handlers.elementwise import odd_function
from symlab.symmetry.verify import EACH
from tests.symmetry.networks import Module, mlp, quiet

P, B = Group.PERMUTATION, Group.SIGNED_PERMUTATION
C, L = nn.Conv2d, nn.Linear


def reports(model, inputs, **options):
    return {report.label: report for report in inspect_symmetry(model, inputs, **options).axes}


def residual_net():
    def forward(m, x):
        stream = m.first(x)
        for conv, back in ((m.a, m.b), (m.c, m.d)):
            stream = stream + back(torch.relu(conv(stream)))
        return m.last(stream.mean((2, 3)))

    layers = {"a": C(4, 5, 3, padding=1), "b": C(5, 4, 1), "c": C(4, 3, 1), "d": C(3, 4, 1)}
    return Module(forward, first=C(2, 4, 3), **layers, last=L(4, 2))


def test_roles_places_and_reasons():
    found = reports(residual_net(), torch.randn(2, 2, 6, 6))
    roles = {label: report.role for label, report in found.items() if report.size > 1}
    assert roles == {
        "first.weight:0": "residual",
        "in:first.weight:1": "input",
        "free:first.weight:2": "kernel",
        "free:first.weight:3": "kernel",
        "a.weight:0": "hidden",
        "free:a.weight:2": "kernel",
        "free:a.weight:3": "kernel",
        "c.weight:0": "hidden",
        "out:last.weight:0": "output",
    }
    stream = found["first.weight:0"]
    assert (stream.size, stream.group, stream.reasons) == (4, B, ())
    assert stream.places == (
        *(("first.weight", 0), ("first.bias", 0), ("a.weight", 1), ("b.weight", 0), ("b.bias", 0)),
        *(("c.weight", 1), ("d.weight", 0), ("d.bias", 0), ("last.weight", 1)),
    )
    assert found["a.weight:0"].reasons == ("relu keeps permutations only",)
    assert found["in:first.weight:1"].reasons == ("model input",)
    assert found["out:last.weight:0"].reasons == ("model output",)
    assert found["free:first.weight:2"].reasons == ("kernel position",)
    assert all((report.error is None) == (report.group is Group.TRIVIAL) for report in found.values())
    assert all(report.error < 1e-12 for report in found.values() if report.error is not None)
    assert {report.role for report in found.values() if report.size == 1} == {"free"}


def test_only_the_operations_that_matter_are_reasons():
    found = reports(nn.Sequential(L(3, 4), nn.Tanh(), nn.ReLU(), nn.LayerNorm(4), L(4, 2)), torch.randn(5, 3))
    assert found["0.weight:0"].reasons == ("relu keeps permutations only", "layer_norm keeps permutations only")
    found = reports(nn.Sequential(L(3, 4), nn.Tanh(), L(4, 2)), torch.randn(5, 3))
    assert found["0.weight:0"].reasons == ("tanh keeps signed permutations only",)


def test_positions_and_axes_that_an_unknown_operation_frees():
    def forward(m, x):
        tokens = m.patch(x).flatten(2).mT + m.position
        return m.last(tokens.logcumsumexp(2).mean(1))

    model = Module(forward, patch=C(3, 4, 2, stride=2), last=L(4, 2))
    model.position = nn.Parameter(torch.randn(1, 4, 4))
    found, texts = quiet(reports, model, torch.randn(2, 3, 4, 4))
    roles = {place: report.role for report in found.values() for place in report.places}
    assert roles[("position", 1)] == "position"
    assert roles[("position", 2)] == "free"
    assert any("logcumsumexp" in reason for reason in found["free:patch.weight:0"].reasons)
    assert len(texts) == 1


def test_a_free_residual_stream_is_still_one():
    def forward(m, x):
        hidden = m.i(x)
        return m.o((hidden + m.a(hidden).tanh()).logcumsumexp(1))

    found, _ = quiet(reports, Module(forward, i=L(3, 4), a=L(4, 4), o=L(4, 2)), torch.randn(5, 3))
    assert found["free:i.weight:0"].role == "residual"


def test_verification_can_be_left_out():
    found = reports(mlp((3, 4, 2), "tanh"), torch.randn(5, 3), verify=False)
    assert found["0.weight:0"].error is None


def test_the_error_says_how_much_the_output_changes(monkeypatch):
    monkeypatch.setitem(table._TABLE, torch.ops.aten.relu, odd_function)
    found = reports(mlp((3, 4, 2), "relu"), torch.randn(5, 3), rtol=10.0)
    assert found["0.weight:0"].group is B
    assert found["0.weight:0"].error > 1e-2


def test_the_symmetry_is_that_of_infer_symmetry():
    model, inputs = residual_net(), torch.randn(2, 2, 6, 6)
    first, second = infer_symmetry(model, inputs), inspect_symmetry(model, inputs).symmetry
    assert (first.axes, first.groups) == (second.axes, second.groups)


# Many axes -----------------------------------------------------------------------------------------------------------


class Many(nn.Module):
    """More hidden layers, side by side, than are verified one by one, of two units each; counts forward passes."""

    def __init__(self, layers=EACH + 5, wrong=None):
        super().__init__()
        self.first = nn.ModuleList(L(3, 2) for _ in range(layers))
        self.last = nn.ModuleList(L(2, 2) for _ in range(layers))
        self.wrong = wrong
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        hidden = [layer(x) for layer in self.first]
        hidden = [torch.relu(h) if number == self.wrong else torch.tanh(h) for number, h in enumerate(hidden)]
        return sum(layer(h) for layer, h in zip(self.last, hidden, strict=True))


def test_many_axes_take_few_passes():
    model = Many()
    found = reports(model, torch.randn(4, 3))
    errors = [report.error for report in found.values() if report.error is not None]
    assert len(errors) == EACH + 5
    assert max(errors) < 1e-12
    assert model.passes == 1 + 1 + math.ceil(math.log2(EACH + 6))  # the trace, the weights as they are, the bits


@pytest.mark.parametrize("wrong", [0, 6, EACH + 4])
def test_a_wrong_axis_among_many_is_named(monkeypatch, wrong):
    monkeypatch.setitem(table._TABLE, torch.ops.aten.relu, odd_function)
    with pytest.raises(ValueError, match=rf"^axis 'first\.{wrong}\.weight:0' \(first\.{wrong}\.weight\[dim 0\]"):
        infer_symmetry(Many(wrong=wrong), torch.randn(4, 3))


def test_two_axes_that_should_be_one_are_told_apart_among_many(monkeypatch):
    """Both have two units: moved together, as permutations, they would not show."""

    def forward(m, x):
        return m.many(m.mix(torch.relu(m.a(x)) + torch.relu(m.b(x))))

    def addition(axes, call):
        result = axes.new_value(call.shape)
        axes.restrict(result.axes, P)
        return result

    model = Module(forward, a=L(3, 2, bias=False), b=L(3, 2, bias=False), mix=L(2, 3, bias=False), many=Many())
    assert infer_symmetry(model, torch.randn(4, 3)).axes["a.weight"][0] == "a.weight:0"
    monkeypatch.setitem(table._TABLE, torch.ops.aten.add, addition)
    with pytest.raises(ValueError, match=r"'a\.weight:0'|'b\.weight:0'|'mix\.weight:1'"):
        infer_symmetry(model, torch.randn(4, 3))


def test_a_part_that_claims_too_much_is_named(monkeypatch):
    model = Module(lambda m, x: m.o(F.relu(m.i(x)[:, :3])), i=L(3, 6), o=L(3, 2))
    infer_symmetry(model, torch.randn(4, 3))
    monkeypatch.setitem(table._TABLE, torch.ops.aten.relu, odd_function)
    with pytest.raises(ValueError, match=r"axis 'o\.weight:1' \(i\.weight\[dim 0\], i\.bias\[dim 0\]"):
        infer_symmetry(model, torch.randn(4, 3))
