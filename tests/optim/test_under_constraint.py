"""Every optimizer on shifted weights: without decay it goes where it goes without the shift."""

import copy
import warnings

import pytest
import torch
from torch import nn

from symlab.constraint.constrain import constrain
from symlab.constraint.distinct_decay import distinct_decay
from symlab.constraint.projectors.elementwise import Elementwise
from symlab.constraint.remove_symmetry import remove_symmetry
from symlab.optim.coverage import coverage_table
from symlab.optim.kfac import kfac
from symlab.optim.kfac_icml2025 import kfac_icml2025
from symlab.optim.symo import symo
from symlab.symmetry import Group, infer_symmetry
from symlab.symmetry.parametrized import behind, without_constants
from symlab.training.losses import auto
from tests.optim.test_every_optimizer import NAMES, build, finite, go, weights

BFLOAT16 = {"muon"}
"""Iterates in bfloat16, where a last bit of the gradient becomes 1 in 256."""


NO_DECAY = {"adamw": {"weight_decay": 0.0}}
"""Where the yaml has some."""


def problem():
    """7-6-5-4 with tanh and ReLU in float64, all layers with biases, and 40 rows in four classes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)]
        inputs = torch.randn(40, 7, dtype=torch.float64)
        return nn.Sequential(*layers).double(), inputs, torch.arange(40) % 4


def shifted(sigma=0.3):
    model, inputs, targets = problem()
    return remove_symmetry(model, sigma, generator=torch.Generator().manual_seed(3)), inputs, targets


def effective(model):
    return [t.detach().clone() for k in (0, 2, 4) for t in (model[k].weight, model[k].bias)]


def distance(one, other):
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_without_decay_the_shift_changes_nothing(name):
    plain, inputs, targets = problem()
    model, *_ = shifted()
    start = effective(plain)
    assert distance(effective(model), start) < 1e-14
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # SymO must not find free axes
        optimizers = [build(name, net, inputs, **NO_DECAY.get(name, {})) for net in (plain, model)]
    for net, optimizer in zip((plain, model), optimizers, strict=True):
        torch.manual_seed(1)
        go(net, optimizer, inputs, targets, 4)
    assert distance(effective(plain), start) > 1e-4
    assert distance(effective(model), effective(plain)) < (0.02 if name in BFLOAT16 else 1e-7)
    assert distance(weights(model), effective(plain)) > 0.05  # what moves is phi
    assert {row.tensor for row in coverage_table(model, optimizers[1])} == dict(model.named_parameters()).keys()


@pytest.mark.parametrize("kind", [kfac, kfac_icml2025])
def test_kfac_of_divided_weights_is_that_of_the_weights(kind):
    """The natural gradient of a layer does not depend on the units of its weights."""
    plain, inputs, targets = problem()
    model = distinct_decay(problem()[0], 0.4, generator=torch.Generator().manual_seed(3))
    for net in (plain, model):
        go(net, kind(net, inputs, lr=0.05), inputs, targets, 4)
    assert distance(effective(model), effective(plain)) < 1e-10
    rules = [row.rule for row in coverage_table(model, kind(model, inputs, lr=0.05))]
    assert all("Kronecker factors" in rule for rule in rules)


def test_kfac_leaves_products_to_gradient_descent():
    model, inputs, targets = problem()
    constrain(model, Elementwise(), where="2.weight")
    optimizer = kfac(model, inputs, lr=0.05)
    rules = {row.tensor: row.rule for row in optimizer.coverage()}
    assert rules["2.parametrizations.weight.original0"] == "gradient descent: not of a linear or convolution layer"
    assert rules["2.bias"] == "gradient descent: its layer's weight has no factors"
    assert rules["0.weight"] == "Kronecker factors 8 and 6"
    go(model, optimizer, inputs, targets, 3)
    assert finite(weights(model))
    with pytest.raises(ValueError, match="layers only, not"):
        kfac_icml2025(model, inputs, lr=0.05)


def test_symo_of_shifted_weights_has_the_symmetry_of_the_plain_model():
    plain, inputs, _ = problem()
    expected = infer_symmetry(plain, inputs)
    for change in (remove_symmetry, distinct_decay):
        model = change(problem()[0])
        found = symo(model, inputs, lr=0.01).symmetry
        assert list(found.axes) == [name for name, _ in model.named_parameters()]
        assert list(found.axes.values()) == list(expected.axes.values())
        assert (found.groups, found.sizes) == (expected.groups, expected.sizes)
        assert [block.copies for block in found.blocks] == [block.copies for block in expected.blocks]
    partly = remove_symmetry(problem()[0], where=["*.weight"])
    assert list(symo(partly, inputs, lr=0.01).symmetry.axes) == [name for name, _ in partly.named_parameters()]


def test_symo_of_products_has_both_factors_on_the_same_axes():
    model, inputs, targets = problem()
    expected = infer_symmetry(model, inputs)
    constrain(model, Elementwise())
    optimizer = symo(model, inputs, lr=0.01)
    axes = optimizer.symmetry.axes
    assert axes["2.parametrizations.weight.original0"] == axes["2.parametrizations.weight.original1"]
    assert len(optimizer.symmetry.groups) == len(expected.groups)
    assert set(optimizer.symmetry.groups.values()) == {Group.PERMUTATION}  # a sign of both factors cancels
    go(model, optimizer, inputs, targets, 3)
    assert finite(weights(model))


def test_what_is_behind_a_weight():
    """w = a p + s or nothing: of a shift, a factor, both, a product, an exponential, a norm, a matrix product."""
    layer = nn.Linear(3, 3)
    assert behind(layer, "weight").parameter is layer.weight
    assert behind(layer, "weights") is None
    shift, both = remove_symmetry(nn.Linear(3, 3)), distinct_decay(remove_symmetry(nn.Linear(3, 3)))
    assert behind(shift, "weight").factor is None
    found = behind(both, "weight")
    outer = both.parametrizations.weight
    torch.testing.assert_close(found.factor, 1 / outer.parametrizations.original[0].divisor)
    assert found.parameter is outer.parametrizations.original.original

    for dtype in (torch.bfloat16, torch.float16, torch.float64):  # rounding does not hide it
        assert behind(distinct_decay(nn.Linear(30, 30, dtype=dtype), 0.3), "weight") is not None

    class Exponential(nn.Module):
        def forward(self, x):
            return x.exp()

    class Turned(nn.Module):
        def forward(self, x):
            return x.flip(0)

    for parametrization in (Exponential(), Turned()):
        other = nn.Linear(3, 3)
        nn.utils.parametrize.register_parametrization(other, "weight", parametrization)
        assert behind(other, "weight") is None
    for change in (nn.utils.parametrizations.spectral_norm, nn.utils.parametrizations.orthogonal):
        other = change(nn.Linear(3, 3))
        before = copy.deepcopy(other.state_dict())
        assert behind(other, "weight") is None
        assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    assert behind(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), "weight") is None
    assert behind(constrain(nn.Linear(3, 3), Elementwise()), "weight") is None


def test_constants_are_taken_out_of_a_copy():
    model, inputs, targets = shifted()
    before = copy.deepcopy(model.state_dict())
    plain, names = without_constants(model)
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in problem()[0].named_parameters()]
    parameters = dict(model.named_parameters())
    assert all(torch.equal(p, parameters[names[name]]) for name, p in plain.named_parameters())
    auto(plain(inputs), targets).backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    untouched = problem()[0]
    assert without_constants(untouched) == (untouched, {})
    inner = remove_symmetry(constrain(problem()[0], Elementwise(), where="0.weight"), where="0.weight")
    products, names = without_constants(inner)
    assert (
        names["0.parametrizations.weight.original0"] == "0.parametrizations.weight.parametrizations.original0.original"
    )
    assert len(infer_symmetry(products, inputs).groups) == 2
