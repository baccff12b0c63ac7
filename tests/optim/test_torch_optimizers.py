"""gd, sgd, adam, adamw and muon: updates against formulas in numpy, refused numbers, one object for two rules."""

import copy
import io
import logging
import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from symlab.optim.adam import adam
from symlab.optim.adamw import adamw
from symlab.optim.gd import gd
from symlab.optim.muon import MuonAdamW, muon
from symlab.optim.sgd import sgd

FACTORIES = {
    "gd": (gd, {"lr": 0.1}),
    "sgd": (sgd, {"lr": 0.1}),
    "adam": (adam, {"lr": 0.1}),
    "adamw": (adamw, {"lr": 0.1}),
    "muon": (muon, {"lr": 0.1, "adamw_lr": 0.1}),
}
INPUTS = torch.zeros(2, 4, dtype=torch.float64)
GRADIENTS = [np.array([0.5, -2.0, 0.0]), np.array([-1.0, 0.25, 3.0]), np.array([2.0, 2.0, -1.0])]


class Weights(nn.Module):
    """One vector of weights that starts at (1, -2, 3)."""

    def __init__(self):
        super().__init__()
        self.vector = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))


def steps_of(factory, **options):
    """The vector after three updates with the gradients above."""
    model = Weights()
    optimizer = factory(model, INPUTS, **options)
    for gradient in GRADIENTS:
        model.vector.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return model.vector.detach().numpy()


def test_gd():
    expected = np.array([1.0, -2.0, 3.0]) - 0.1 * sum(GRADIENTS)
    assert steps_of(gd, lr=0.1) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(nesterov):
    w, m = np.array([1.0, -2.0, 3.0]), np.zeros(3)
    for g in GRADIENTS:
        g = g + 0.01 * w
        m = 0.9 * m + g
        w = w - 0.1 * (g + 0.9 * m if nesterov else m)
    found = steps_of(sgd, lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    assert found == pytest.approx(w, rel=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_and_adamw(decoupled, decay):
    w, m, v = np.array([1.0, -2.0, 3.0]), np.zeros(3), np.zeros(3)
    for t, g in enumerate(GRADIENTS, start=1):
        if decoupled:
            w = (1 - 0.1 * decay) * w
        else:
            g = g + decay * w
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        w = w - 0.1 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-6)
    options = {"lr": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": decay}
    assert steps_of(adamw if decoupled else adam, **options) == pytest.approx(w, rel=1e-12)


def test_muon_leaves_a_vector_to_adamw():
    options = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
    found = steps_of(muon, lr=5.0, adamw_lr=0.1, weight_decay=0.1)
    assert found.tolist() == steps_of(adamw, lr=0.1, **options).tolist()


def test_muon_moves_a_matrix_along_its_orthogonal_factor():
    """Singular values of the update lie in lr sqrt(max(1, rows/columns)) [0.5, 1.5], its singular vectors are G's."""
    model = nn.Linear(4, 6, bias=False).double()
    before = model.weight.detach().clone()
    gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model.weight.grad = gradient.clone()
    muon(model, INPUTS, lr=0.1, adamw_lr=0.1).step()
    u, _, v = np.linalg.svd(gradient.numpy(), full_matrices=False)
    core = u.T @ (before - model.weight.detach()).numpy() @ v.T / (0.1 * math.sqrt(6 / 4))  # [4, 4]
    assert np.all(np.abs(np.diag(core) - 1) < 0.5)
    assert np.abs(core - np.diag(np.diag(core))).max() < 0.05  # bfloat16


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_muon_takes_a_kernel_as_the_matrix_out_by_the_rest(memory):
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 2, bias=False).to(memory_format=memory)
    flat = nn.Linear(12, 4, bias=False)
    flat.weight.data = conv.weight.detach().contiguous().flatten(1).clone()
    optimizers = [muon(model, INPUTS, lr=0.1, adamw_lr=0.1, weight_decay=0.1) for model in (conv, flat)]
    for _ in range(3):
        gradient = torch.randn(4, 3, 2, 2)
        conv.weight.grad, flat.weight.grad = gradient.to(memory_format=memory), gradient.flatten(1)
        for optimizer in optimizers:
            optimizer.step()
    tolerance = {"rtol": 0, "atol": 0} if memory is torch.contiguous_format else {"rtol": 0, "atol": 0.02}  # bfloat16
    torch.testing.assert_close(conv.weight.detach().contiguous().flatten(1), flat.weight.detach(), **tolerance)
    assert list(optimizers[0].state[conv.weight]["momentum_buffer"].shape) == [4, 12]


def test_muon_leaves_kernels_to_adamw_on_request():
    optimizer = muon(mixed_net(), INPUTS, lr=0.1, adamw_lr=0.1, conv=False)
    assert {row.tensor for row in optimizer.coverage() if row.rule == "muon"} == {"2.weight", "4.weight"}


def test_muon_refuses_what_is_no_matrix():
    with pytest.raises(ValueError, match=r"Muon takes matrices and kernels.*got shape \[3\]"):
        MuonAdamW([{"rule": "muon", "params": [nn.Parameter(torch.ones(3))], "lr": 0.1}])


def mixed_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 2, bias=False))


def test_muon_says_which_rule_covers_how_many_weights(caplog):
    with caplog.at_level(logging.INFO, logger="symlab"):
        optimizer = muon(mixed_net(), torch.zeros(2, 1, 4, 4), lr=0.1, adamw_lr=0.1)
    expected = {
        "0.weight": ("muon", 2 * 9),
        "0.bias": ("adamw", 2),
        "2.weight": ("muon", 8 * 3),
        "2.bias": ("adamw", 3),
    }
    expected["4.weight"] = ("muon", 3 * 2)
    assert {row.tensor: (row.rule, row.weights) for row in optimizer.coverage()} == expected
    assert "muon covers 48 weights (matrices), adamw the other 5" in caplog.text


def gradient_steps(model, optimizer, first, last):
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def through_disk(model, optimizer):
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    fresh = muon(model, torch.zeros(1), lr=0.5, adamw_lr=0.5)  # other rates: the loaded ones count
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    return model, fresh


def copied(model, optimizer):
    return copy.deepcopy((model, optimizer))


def pickled(model, optimizer):
    return pickle.loads(pickle.dumps((model, optimizer)))


@pytest.mark.parametrize("way", [through_disk, copied, pickled])
def test_muon_goes_on_exactly_after(way):
    straight, halfway = mixed_net(), mixed_net()
    options = {"lr": 0.05, "adamw_lr": 0.01, "weight_decay": 0.1}
    gradient_steps(straight, muon(straight, torch.zeros(1), **options), 0, 6)
    optimizer = muon(halfway, torch.zeros(1), **options)
    gradient_steps(halfway, optimizer, 0, 3)
    halfway, optimizer = way(halfway, optimizer)
    gradient_steps(halfway, optimizer, 3, 6)
    assert len(optimizer.state) == len(list(halfway.parameters()))
    for one, other in zip(straight.parameters(), halfway.parameters(), strict=True):
        assert torch.equal(one, other)


def test_muon_obeys_the_rates_in_its_groups_and_takes_new_groups():
    model = mixed_net()
    optimizer = muon(model, torch.zeros(1), lr=0.1, adamw_lr=0.1)
    late = nn.Parameter(torch.ones(2, 2))
    optimizer.add_param_group({"rule": "muon", "params": [("late", late)], "lr": 0.3})
    for group in optimizer.param_groups[:2]:
        group["lr"] = 0.0
    before = [parameter.detach().clone() for parameter in model.parameters()]
    late.grad = torch.eye(2)
    gradient_steps(model, optimizer, 0, 1)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert not torch.equal(late, torch.ones(2, 2))


def test_muon_returns_the_loss_of_a_closure():
    model = nn.Linear(2, 2)
    optimizer = muon(model, torch.zeros(1), lr=0.1, adamw_lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert float(optimizer.step(closure).detach()) < float(first.detach())


def test_a_group_without_a_rule_is_refused():
    with pytest.raises(ValueError, match="rule='muon' or rule='adamw', got 'sgd'"):
        MuonAdamW([{"rule": "sgd", "params": [nn.Parameter(torch.ones(2))], "lr": 0.1}])


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, -math.inf, True, False, "1e-3", 1e3, None])
@pytest.mark.parametrize("name", list(FACTORIES))
def test_every_optimizer_refuses_the_same_rates(name, value):
    factory, options = FACTORIES[name]
    for key in options:
        with pytest.raises((ValueError, TypeError), match=rf"^{key} must be"):
            factory(Weights(), INPUTS, **(options | {key: value}))


@pytest.mark.parametrize(
    ("factory", "key", "values"),
    [
        (partial(sgd, lr=0.1), "momentum", [1.0, -0.1, math.nan, True]),
        (partial(sgd, lr=0.1), "weight_decay", [-1, math.nan, math.inf]),
        (partial(adam, lr=0.1), "beta1", [1.0, -0.1, math.nan]),
        (partial(adam, lr=0.1), "beta2", [1.0, "0.9"]),
        (partial(adam, lr=0.1), "eps", [0, -1e-8, math.inf]),
        (partial(adamw, lr=0.1), "beta1", [1.0]),
        (partial(adamw, lr=0.1), "beta2", [math.nan]),
        (partial(adamw, lr=0.1), "eps", [0]),
        (partial(adamw, lr=0.1), "weight_decay", [-0.1]),
        (partial(muon, lr=0.1, adamw_lr=0.1), "momentum", [1.0]),
        (partial(muon, lr=0.1, adamw_lr=0.1), "adamw_beta1", [1.0]),
        (partial(muon, lr=0.1, adamw_lr=0.1), "adamw_beta2", [math.nan]),
        (partial(muon, lr=0.1, adamw_lr=0.1), "adamw_eps", [0]),
        (partial(muon, lr=0.1, adamw_lr=0.1), "weight_decay", [math.inf]),
        (partial(muon, lr=0.1, adamw_lr=0.1), "newton_schulz_steps", [0, 100, 2.5, True]),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(factory, key, values):
    for value in values:
        with pytest.raises((ValueError, TypeError), match=rf"^{key} must be"):
            factory(Weights(), INPUTS, **{key: value})


def test_nesterov_needs_momentum():
    with pytest.raises(ValueError, match="nesterov=true needs momentum > 0"):
        sgd(Weights(), INPUTS, lr=0.1, momentum=0.0, nesterov=True)


@pytest.mark.parametrize("name", list(FACTORIES))
def test_frozen_weights_stay(name):
    factory, options = FACTORIES[name]
    model = mixed_net()
    model[2].weight.requires_grad_(False)
    optimizer = factory(model, INPUTS, **options)
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert trained == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    with pytest.raises(ValueError, match="no trainable parameter"):
        factory(model.requires_grad_(False), INPUTS, **options)
