"""SOAP and Kron of pytorch-optimizer: their updates written out in numpy, and what symlab adds to them."""

import builtins
import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from symlab.optim.kron import kron
from symlab.optim.soap import soap

pytest.importorskip("pytorch_optimizer")
FACTORIES = {"soap": soap, "kron": kron}
ZERO = torch.zeros(1)


def linear(rows, columns, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Linear(columns, rows, bias=False).to(dtype)


@pytest.mark.parametrize("shampoo_beta", [None, 0.5])
def test_soap_is_adam_in_the_eigenbasis(shampoo_beta):
    """Within one interval of renewal: the bases are those of the first gradient, which moves no weight."""
    model = linear(3, 3)
    optimizer = soap(model, ZERO, lr=0.1, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.5, shampoo_beta=shampoo_beta)
    rng = np.random.default_rng(0)
    W, M, V = model.weight.detach().numpy().copy(), np.zeros((3, 3)), np.zeros((3, 3))
    for t in range(6):
        G = rng.normal(size=(3, 3))
        model.weight.grad = torch.from_numpy(G.copy())
        optimizer.step()
        if t == 0:
            left, right = (np.linalg.eigh(C)[1] for C in (G @ G.T, G.T @ G))
        else:
            M, V = 0.8 * M + 0.2 * G, 0.9 * V + 0.1 * (left.T @ G @ right) ** 2
            rate = 0.1 * math.sqrt(1 - 0.9**t) / (1 - 0.8**t)
            W = W - rate * left @ (left.T @ M @ right / (np.sqrt(V) + 1e-6)) @ right.T
            W = (1 - 0.1 * 0.5) * W
        np.testing.assert_allclose(model.weight.detach().numpy(), W, rtol=1e-7)
    b = shampoo_beta or 0.9
    assert optimizer.state[model.weight]["shampoo_beta"] == b


def test_soap_renews_its_bases_every_so_many_updates():
    model = linear(3, 4)
    optimizer = soap(model, ZERO, lr=0.1, update_every=2)
    bases = []
    for _ in range(6):
        model.weight.grad = torch.randn_like(model.weight)
        optimizer.step()
        bases.append(optimizer.state[model.weight]["Q"][0].clone())
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(bases)]
    assert changed == [False, True, False, True, False]  # behind updates 2 and 4; the first call is none


def kron_step(W, M, Q, G, V, t, decay):
    """One update with momentum 0.9 of two triangular factors, by numpy."""
    M = 0.9 * M + 0.1 * G
    ready = M / (1 - 0.9**t)
    A = Q[0] @ ready @ Q[1].T
    B = np.linalg.solve(Q[0].T, V) @ np.linalg.inv(Q[1])
    new = []
    for q, plus, minus in ((Q[0], A @ A.T, B @ B.T), (Q[1], A.T @ A, B.T @ B)):
        step = np.triu(plus - minus) @ q
        new.append((q, step, plus + minus))
    return M, ready, new


def test_kron_moves_each_factor_along_its_relative_gradient():
    """Q_d changes by c triu(A A^T - B B^T) Q_d, c at most 0.1 / (a lower bound of the norm); then W by lr Q^T Q M."""
    model = linear(3, 4, torch.float32)
    optimizer = kron(model, ZERO, lr=1e-3, weight_decay=0.5)
    rng = np.random.default_rng(0)
    M, Q = np.zeros((3, 4)), [np.eye(3), np.eye(4)]
    for t in range(1, 4):
        G, W = rng.normal(size=(3, 4)), model.weight.detach().double().numpy().copy()
        model.weight.grad = torch.from_numpy(G).float()
        torch.manual_seed(5)  # the probe must not come from here
        state = torch.get_rng_state()
        optimizer.step()
        assert torch.equal(torch.get_rng_state(), state)
        probe = probe_of(optimizer, t - 1)
        M, ready, moves = kron_step(W, M, Q, G, probe, t, 0.5)
        found = [q.double().numpy() for q in optimizer.state[model.weight]["Q"]]
        for (old, direction, total), new in zip(moves, found, strict=True):
            scale = np.vdot(old - new, direction) / np.vdot(direction, direction)
            np.testing.assert_allclose(old - new, scale * direction, atol=2e-6)
            assert 0.99 <= scale * np.linalg.norm(total, 2) / 0.1 < 2  # the norm in use is a lower bound
        Q = found
        U = Q[0].T @ Q[0] @ ready @ Q[1].T @ Q[1]
        U = U * min(1.0, 1.1 / (np.sqrt(np.mean(U**2)) + 1e-6))
        np.testing.assert_allclose(model.weight.detach().numpy(), W - 1e-3 * (U + 0.5 * W), atol=2e-6)


def probe_of(optimizer, step):
    """The random numbers that seed 0 and the number of the update give."""
    number = int(np.random.SeedSequence([0, step]).generate_state(1)[0])
    generator = torch.Generator().manual_seed(number)
    return torch.randn(3, 4, generator=generator).double().numpy()


def steps(model, optimizer, count):
    for _ in range(count):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()


def test_kron_leaves_the_random_state_of_torch_and_numpy_and_obeys_its_seed():
    results = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        model = linear(3, 4)
        optimizer = kron(model, ZERO, lr=0.1, seed=seed)
        np.random.seed(noise)  # noqa: NPY002
        torch.manual_seed(noise)
        before, mine = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
        steps(model, optimizer, 3)
        assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
        assert torch.equal(mine, torch.get_rng_state())
        results.append(model.weight.detach())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("every", [1, 2, 3, 49, None])
def test_kron_renews_its_factors_first_and_then_every_so_many_updates(every):
    model = linear(2, 2)
    optimizer = kron(model, ZERO, lr=1e-3, update_every=every)
    renewed, last = [], torch.eye(2)
    for t in range(100):
        steps(model, optimizer, 1)
        present = optimizer.state[model.weight]["Q"][0].clone()
        renewed += [] if torch.equal(present, last) else [t]
        last = present
    assert renewed == list(range(0, 100, every or 1))


@pytest.mark.parametrize("name", list(FACTORIES))
def test_copies_and_pickles_go_their_own_way(name):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = FACTORIES[name](model, ZERO, lr=0.1)
    steps(model, optimizer, 3)
    twins = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    before = [p.detach().clone() for p in model.parameters()]
    for twin, its in twins:
        steps(twin, its, 3)
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    steps(model, optimizer, 3)
    for twin, its in twins:
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
        assert its.coverage() == optimizer.coverage()


@pytest.mark.parametrize("name", list(FACTORIES))
def test_a_gradient_whose_square_overflows_is_refused(name):
    model = linear(3, 4, torch.float32)
    optimizer = FACTORIES[name](model, ZERO, lr=0.1)
    model.weight.grad = torch.full((3, 4), 1e25)
    with pytest.raises(FloatingPointError, match=r"gradient of weight is too large to be squared in torch.float32"):
        optimizer.step()
    assert not optimizer.state


def test_a_sparse_gradient_is_refused():
    model = nn.Embedding(4, 3, sparse=True)
    optimizer = soap(model, ZERO, lr=0.1)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="the gradient of weight is sparse"):
        optimizer.step()


def test_the_state_of_another_optimizer_is_refused():
    model = linear(3, 4)
    with pytest.raises(ValueError, match="the saved state has no betas: it is that of another optimizer"):
        soap(model, ZERO, lr=0.1).load_state_dict(kron(model, ZERO, lr=0.1).state_dict())


def test_a_closure_gives_its_loss_and_new_groups_are_taken():
    model = linear(3, 4)
    optimizer = soap(model, ZERO, lr=0.1)
    late = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer.add_param_group({"params": [("late", late)], "lr": 0.3})

    def closure():
        optimizer.zero_grad()
        loss = (model.weight - 1).square().sum() + late.square().sum()
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(6)]
    assert losses[0] == losses[1]  # the first call moves nothing
    assert losses[-1] < losses[0]
    assert [row.tensor for row in optimizer.coverage()] == ["weight", "late"]


def test_the_rules_in_words():
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Linear(20, 1))
    assert [row.rule for row in soap(model, ZERO, lr=0.1, max_precondition_dim=10).coverage()] == [
        "Adam in the eigenbasis of 3 x 3, 2 x 2, 2 x 2, 2 x 2",
        "Adam",
        "Adam in the eigenbasis of 1 x 1",
        "Adam",
    ]
    assert [row.rule for row in kron(model, ZERO, lr=0.1, max_size_triangular=10).coverage()] == [
        "factors 3 x 3, 2 x 2, 2 x 2, 2 x 2",
        "factors diagonal 3",
        "factors diagonal 1, diagonal 20",
        "factors diagonal 1",
    ]


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("soap", "beta1", [1.0, -0.1, True]),
        ("soap", "beta2", [1.0, math.nan]),
        ("soap", "shampoo_beta", [1.0, "0.9"]),
        ("soap", "update_every", [0, 2.5]),
        ("soap", "eps", [0, math.inf]),
        ("soap", "weight_decay", [-1]),
        ("soap", "max_precondition_dim", [0]),
        ("kron", "momentum", [1.0, math.nan]),
        ("kron", "update_every", [0, 2.5, True]),
        ("kron", "weight_decay", [-1]),
        ("kron", "max_size_triangular", [0]),
        ("kron", "seed", [-1, True, 0.5]),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(name, key, values):
    for value in values:
        with pytest.raises((ValueError, TypeError), match=rf"^{key} must be"):
            FACTORIES[name](linear(2, 2), ZERO, lr=0.1, **{key: value})


@pytest.mark.parametrize("name", list(FACTORIES))
def test_missing_package_names_the_extra(monkeypatch, name):
    real = builtins.__import__

    def without(module, *args, **kwargs):
        if module == "pytorch_optimizer":
            raise ImportError(module)
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'symlab\[baselines\]'"):
        FACTORIES[name](linear(2, 2), ZERO, lr=0.1)
