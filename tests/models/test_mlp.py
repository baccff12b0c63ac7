"""The multi-layer perceptron: its function, its parameters and where its random numbers come from."""

import math

import pytest
import torch

from symlab.models.activations import ACTIVATIONS, activation_module
from symlab.models.mlp import mlp

FORMULAS = {
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "elu": lambda x: x if x > 0 else math.exp(x) - 1,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "sin": math.sin,
    "erf": math.erf,
    "identity": lambda x: x,
}


def build(seed: int = 0, input_shape: tuple[int, ...] = (5,), output_size: int = 3, **keys):
    return mlp(input_shape, output_size, torch.Generator().manual_seed(seed), **keys)


def test_every_activation_has_a_formula_here():
    assert set(ACTIVATIONS) == set(FORMULAS)


@pytest.mark.parametrize("name", FORMULAS)
def test_activation_equals_its_formula(name):
    points = torch.tensor([-2.5, -1.0, -0.1, 0.0, 0.3, 1.7], dtype=torch.float64)
    expected = torch.tensor([FORMULAS[name](float(x)) for x in points], dtype=torch.float64)
    torch.testing.assert_close(activation_module(name)(points), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("bias", [True, False])
def test_forward_is_the_formula_computed_by_loops(bias):
    model = build(hidden=[4, 6], activation="sin", bias=bias, bias_std=0.5 if bias else 0.0).double()
    x = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parameters = dict(model.named_parameters())
    expected = []
    for row in x.tolist():
        hidden = row
        for index, layer in enumerate(["layers.0", "layers.2", "layers.4"]):
            weight = parameters[f"{layer}.weight"].tolist()
            shift = parameters[f"{layer}.bias"].tolist() if bias else [0.0] * len(weight)
            sums = [sum(w * h for w, h in zip(row_w, hidden, strict=True)) for row_w in weight]
            hidden = [s + b for s, b in zip(sums, shift, strict=True)]
            hidden = hidden if index == 2 else [math.sin(value) for value in hidden]
        expected.append(hidden)
    torch.testing.assert_close(model(x), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_parameter_names_shapes_and_type():
    model = build(hidden=[4, 6], bias=True)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == {
        "layers.0.weight": (4, 5),
        "layers.0.bias": (4,),
        "layers.2.weight": (6, 4),
        "layers.2.bias": (6,),
        "layers.4.weight": (3, 6),
        "layers.4.bias": (3,),
    }
    assert {(p.dtype, p.device.type, p.requires_grad) for p in model.parameters()} == {(torch.float32, "cpu", True)}


def test_images_are_flattened_row_by_row():
    flat, image = build(input_shape=(12,), hidden=[4]), build(input_shape=(1, 3, 4), hidden=[4])
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(flat(x), image(x.reshape(6, 1, 3, 4)), rtol=0, atol=0)


def test_no_hidden_layer_is_a_linear_map():
    model = build(hidden=[])
    assert [tuple(p.shape) for p in model.parameters()] == [(3, 5)]
    x = torch.eye(5)
    torch.testing.assert_close(model(x), next(model.parameters()).T)


@pytest.mark.parametrize("init", ["normal", "narrow_normal", "kaiming", "orthogonal"])
def test_weights_come_from_the_generator_alone(init):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(seed=3, hidden=[6], bias=True, init=init, bias_std=0.1)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second, other = (build(seed=s, hidden=[6], bias=True, init=init, bias_std=0.1) for s in (3, 4))
    for a, b, c in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


@pytest.mark.parametrize(
    ("init", "std"), [("normal", 400**-0.5), ("narrow_normal", 1 / 400), ("kaiming", (2 / 400) ** 0.5)]
)
def test_standard_deviation_of_the_weights(init, std):
    weight = next(build(input_shape=(400,), hidden=[300], init=init).parameters()).detach().double()
    # 120,000 draws: the relative error of the standard deviation is about 0.002, of the mean (in std) 0.003
    assert float(weight.std()) == pytest.approx(std, rel=0.01)
    assert abs(float(weight.mean())) < 0.015 * std
    fourth = float((weight / std).pow(4).mean())
    assert fourth == pytest.approx(3.0, rel=0.05), "the weights are not Gaussian"


@pytest.mark.parametrize("sizes", [(8, 5), (5, 8), (6, 6)])
def test_orthogonal_weights_have_unit_singular_values(sizes):
    fan_in, fan_out = sizes
    weight = next(build(input_shape=(fan_in,), hidden=[fan_out], init="orthogonal").parameters())
    torch.testing.assert_close(torch.linalg.svdvals(weight), torch.ones(min(sizes)), rtol=1e-5, atol=1e-5)


def test_bias_std():
    biases = build(hidden=[2000], bias=True, bias_std=0.25).layers[0].bias.detach()
    assert float(biases.std()) == pytest.approx(0.25, rel=0.08)
    assert not build(hidden=[20], bias=True).layers[0].bias.any()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"activation": "tahn"}, ["activation", "tahn", "tanh", "identity"]),
        ({"init": "xavier"}, ["init", "xavier", "normal", "orthogonal"]),
        ({"hidden": [10, 0]}, ["hidden", "0"]),
        ({"hidden": [-3]}, ["hidden", "-3"]),
        ({"bias": True, "bias_std": -1.0}, ["bias_std", "-1"]),
        ({"bias": True, "bias_std": math.nan}, ["bias_std", "nan"]),
        ({"bias": False, "bias_std": 0.1}, ["bias_std", "bias=false", "0.1"]),
        ({"output_size": 0}, ["output_size", "0"]),
        ({"input_shape": (3, 0)}, ["input_shape", "0"]),
    ],
)
def test_bad_values_are_named(keys, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        build(**keys)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("hidden", [[2.5], [True], ["10"]])
def test_widths_are_whole_numbers(hidden):
    with pytest.raises(TypeError, match="hidden"):
        build(hidden=hidden)
