"""Verification of axes on the model, handlers of one's own, and errors of infer_symmetry."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from symlab.symmetry import Group
from symlab.symmetry.handlers import table
from symlab.symmetry.handlers.elementwise import odd_function
from symlab.symmetry.infer import infer_symmetry
from tests.symmetry.networks import infer_forward, mlp

B = Group.SIGNED_PERMUTATION

# Verification --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [False, True])
def test_a_handler_that_claims_too_much_is_caught(monkeypatch, zero):
    monkeypatch.setitem(table._TABLE, torch.ops.aten.relu, odd_function)
    model = mlp((3, 4, 5, 2), ["tanh", "relu"])
    if zero:  # a network that is constant at its present weights
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    with pytest.raises(
        ValueError, match=r"axis '2.weight:0' \(2.weight\[dim 0\], 2.bias\[dim 0\], 4.weight\[dim 1\]\)"
    ):
        infer_symmetry(model, torch.zeros(6, 3))
    assert infer_symmetry(model, torch.zeros(6, 3), verify=False).groups["2.weight:0"] is B


def test_a_merge_that_is_missing_is_caught(monkeypatch):
    monkeypatch.setitem(table._TABLE, torch.ops.aten.linear, lambda axes, call: axes.new_value(call.shape))
    with pytest.raises(ValueError, match="is no signed_permutation symmetry"):
        infer_symmetry(mlp((3, 4, 2), "tanh"), torch.randn(6, 3))


def test_every_axis_is_tried_even_one_of_two_units(monkeypatch):
    monkeypatch.setitem(table._TABLE, torch.ops.aten.relu, odd_function)
    for seed in range(10):
        with pytest.raises(ValueError, match=r"allowed 1\.5e-08"):
            infer_symmetry(mlp((3, 2, 2), "relu"), torch.randn(6, 3), seed=seed)


def test_the_tolerance_is_an_argument():
    with pytest.raises(ValueError, match=r"allowed 1.0e-20"):
        infer_symmetry(mlp((30, 40, 20), "tanh"), torch.randn(6, 30), rtol=1e-20)
    with pytest.raises(ValueError, match="rtol must be positive, got 0"):
        infer_symmetry(mlp((3, 4, 2), "tanh"), torch.randn(6, 3), rtol=0)


def test_outputs_that_are_not_finite_are_an_error():
    with pytest.raises(ValueError, match="not finite; use verify=False"):
        infer_forward(lambda m, x: torch.log(F.linear(torch.tanh(F.linear(x, m.w1)), m.w3)))


def test_a_handler_of_ones_own(monkeypatch):
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))
    table.register(torch.ops.aten.logcumsumexp)(lambda axes, call: call.value("self"))

    def along_rows(m, x):
        return F.linear(torch.tanh(F.linear(x, m.w1)).logcumsumexp(0), m.w3)

    assert infer_forward(along_rows, verify=False).groups["w1:0"] is B  # it claims too much, verification says so:
    with pytest.raises(ValueError, match="axis 'w1:0'"):
        infer_forward(along_rows)


def test_register_takes_operators_only():
    with pytest.raises(TypeError, match=r"register takes operators such as torch\.ops\.aten\.tanh"):
        table.register(torch.tanh)


def test_a_handler_with_the_wrong_shape_is_named(monkeypatch):
    monkeypatch.setitem(table._TABLE, torch.ops.aten.tanh, lambda axes, call: axes.new_value((1, 2)))
    with pytest.raises(RuntimeError, match=r"the handler of aten\.tanh\.default gave axes of shapes"):
        infer_symmetry(mlp((3, 4, 2), "tanh"), torch.randn(6, 3))


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: F.linear(x, m.w1) if x.sum() > 0 else x,
        lambda m, x: F.linear(x, m.w1) * x.sum().item(),
        lambda m, x: F.linear(x, m.w1)[x[:, 0] > 0],
    ],
)
def test_a_forward_pass_that_depends_on_values_is_a_clean_error(forward):
    with pytest.raises(ValueError, match="depends on the values of tensors") as caught:
        infer_forward(forward)
    assert "WeightSymmetry(axes, shapes, groups)" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "inputs", "error", "text"),
    [
        (nn.ReLU(), torch.randn(2, 3), ValueError, "ReLU has no parameters"),
        (nn.Linear(3, 2).requires_grad_(False), torch.randn(2, 3), ValueError, "no trainable parameter"),
        (nn.LazyLinear(2), torch.randn(2, 3), ValueError, "parameter weight of LazyLinear is not initialised"),
        (nn.Linear(3, 2, dtype=torch.complex64), torch.randn(2, 3), ValueError, "is complex"),
        (nn.Linear(3, 2), torch.randn(0, 3), ValueError, r"must not be empty, got shape \(0, 3\)"),
        (nn.Linear(3, 2), (), ValueError, "at least one tensor"),
        (nn.Linear(3, 2), ([1.0],), TypeError, "got a float: 1.0"),
        (nn.Linear(3, 2), torch.randn(2, 4), ValueError, r"cannot trace the forward pass of Linear on inputs .*2, 4"),
    ],
)
def test_input_that_cannot_be_used_is_named(model, inputs, error, text):
    with pytest.raises(error, match=text):
        infer_symmetry(model, inputs)


def test_an_empty_parameter_is_named():
    model = mlp((3, 4, 2), "tanh")
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 3)))
    with pytest.raises(ValueError, match=r"parameter nothing of Sequential is empty, shape \(0, 3\)"):
        infer_symmetry(model, torch.randn(6, 3))
