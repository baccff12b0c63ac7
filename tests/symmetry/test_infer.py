"""infer_symmetry: axes and groups of multilayer perceptrons; models and inputs of all kinds; models left as found."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from symlab.symmetry import Group
from symlab.symmetry.infer import infer_symmetry
from tests.symmetry.networks import gradients_move_with_weights, infer_forward, mlp

P, B, O = Group.PERMUTATION, Group.SIGNED_PERMUTATION, Group.ORTHOGONAL  # noqa: E741
GROUPS = {"tanh": B, "relu": P, "identity": B, "gelu": P, "silu": P, "sin": B}

# Multilayer perceptrons ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", GROUPS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(3, 4, 2), (3, 4, 5, 2), (3, 4, 5, 6, 2)])
def test_every_hidden_layer_of_an_mlp_has_the_group_of_its_activation(activation, bias, sizes):
    symmetry = infer_symmetry(mlp(sizes, activation, bias), torch.randn(6, 3))
    layers = len(sizes) - 1
    weights = [f"{2 * i}.weight" for i in range(layers)]
    hidden = [f"{name}:0" for name in weights[:-1]]
    assert symmetry.groups == dict.fromkeys(hidden, GROUPS[activation])
    ins = ["in:0.weight:1", *hidden]
    outs = [*hidden, f"out:{weights[-1]}:0"]
    assert [symmetry.axes[name] for name in weights] == list(zip(outs, ins, strict=True))
    if bias:
        assert [symmetry.axes[f"{2 * i}.bias"] for i in range(layers)] == [(label,) for label in outs]
    assert list(symmetry.axes) == [name for name, _ in mlp(sizes, activation, bias).named_parameters()]


def test_mixed_activations_give_each_layer_its_own_group():
    symmetry = infer_symmetry(mlp((3, 4, 5, 6, 2), ["relu", "tanh", "identity"]), torch.randn(6, 3))
    assert symmetry.groups == {"0.weight:0": P, "2.weight:0": B, "4.weight:0": B}


# Bernacchia (ICML 2025), number of independent factors of the covariance and of the mean gradient
FACTORS = [
    ((5, 5, 5), "tanh", True, 81, 5),
    ((5, 7, 5), "tanh", False, 55, 0),
    ((5, 5, 5, 5), "tanh", True, 58, 5),
    ((5, 5, 5, 5), "tanh", False, 31, 0),
    ((5, 5, 5, 5, 5), "tanh", False, 32, 0),
    ((10, 7, 4), "tanh", True, 130, 4),
    ((10, 7, 4), "tanh", False, 105, 0),
    ((5, 5, 5), "relu", False, 110, 10),
    ((5, 5, 5), "relu", True, 202, 16),
    ((5, 5, 5, 5), "relu", False, 109, 11),
    ((5, 5, 5, 5), "relu", True, 228, 18),
    ((5, 5, 5, 5, 5), "relu", False, 125, 12),
    ((100, 70, 40), "tanh", False, 9870, 0),
]


@pytest.mark.parametrize(("sizes", "activation", "bias", "factors", "mean_factors"), FACTORS)
def test_numbers_of_factors_are_those_of_the_paper(sizes, activation, bias, factors, mean_factors):
    symmetry = infer_symmetry(mlp(sizes, activation, bias), torch.randn(4, sizes[0]))
    assert (symmetry.num_factors, symmetry.num_mean_factors) == (factors, mean_factors)


def test_a_linear_network_has_the_same_structure_under_signs_and_under_rotations():
    model, inputs = mlp((3, 4, 5, 2), "identity"), torch.randn(6, 3)
    signed, orthogonal = infer_symmetry(model, inputs), infer_symmetry(model, inputs, orthogonal=True)
    assert set(signed.groups.values()) == {B}
    assert set(orthogonal.groups.values()) == {O}
    gradients = {name: torch.randn(parameter.shape) for name, parameter in model.double().named_parameters()}
    gradients = {name: gradient.double() for name, gradient in gradients.items()}
    torch.testing.assert_close(signed.project(gradients).dense(), orthogonal.project(gradients).dense())


def test_orthogonal_changes_nothing_for_an_axis_with_a_nonlinearity():
    symmetry = infer_symmetry(mlp((3, 4, 5, 2), ["tanh", "identity"]), torch.randn(6, 3), orthogonal=True)
    assert symmetry.groups == {"0.weight:0": B, "2.weight:0": O}


@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
def test_gradients_move_with_the_weights(activation):
    torch.manual_seed(0)
    model, inputs = mlp((3, 4, 5, 2), activation), torch.randn(6, 3)
    assert gradients_move_with_weights(model, inputs, infer_symmetry(model, inputs, orthogonal=True))


# Models and inputs of all kinds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_any_floating_dtype(dtype):
    symmetry = infer_symmetry(mlp((3, 4, 2), "tanh").to(dtype), torch.randn(6, 3).to(dtype))
    assert symmetry.groups == {"0.weight:0": B}


@pytest.mark.gpu
def test_a_model_on_cuda():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    state = torch.cuda.get_rng_state()
    symmetry = infer_symmetry(mlp((3, 4, 2), "tanh").cuda(), torch.randn(6, 3).cuda())
    assert symmetry.groups == {"0.weight:0": B}
    assert torch.equal(state, torch.cuda.get_rng_state())


def test_several_inputs():
    symmetry = infer_forward(
        lambda m, x, y: F.linear(torch.tanh(F.linear(x, m.w1) + y @ m.w1.T), m.w3), (torch.randn(5, 4),) * 2
    )
    assert symmetry.groups[symmetry.axes["w1"][0]] is B


@pytest.mark.parametrize("inputs", [torch.zeros(5, 4), torch.ones(1, 4), torch.randn(4)])
def test_inputs_of_any_kind(inputs):
    assert infer_symmetry(mlp((4, 6, 2), "relu"), inputs).groups == {"0.weight:0": P}


class Everything(nn.Module):
    """Dropout, batch norm, noise: all that leaves traces in a forward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.norm(self.first(x))))) + 0.01 * torch.randn(2)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was_found(training):
    model, inputs = Everything().train(training), torch.randn(8, 4)
    model.drop.eval()
    model(inputs).sum().backward()
    calls: list[str] = []
    model.last.register_forward_hook(lambda *_: calls.append("forward"))
    before = copy.deepcopy(model.state_dict())
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    identities = {name: id(parameter) for name, parameter in model.named_parameters()}
    flags = [module.training for module in model.modules()]
    given, random = inputs.clone(), torch.get_rng_state()
    assert infer_symmetry(model, inputs).groups == {"first.weight:0": P}
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(inputs, given)
    assert [module.training for module in model.modules()] == flags
    assert len(model.last._forward_hooks) == 1
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for name, parameter in model.named_parameters():
        assert id(parameter) == identities[name]
        assert parameter.requires_grad
        assert torch.equal(parameter.grad, gradients[name])


def test_the_same_call_gives_the_same_symmetry():
    model, inputs = Everything(), torch.randn(8, 4)
    first, second = infer_symmetry(model, inputs), infer_symmetry(copy.deepcopy(model), inputs)
    assert (first.axes, first.groups) == (second.axes, second.groups)
