"""SymO's options beyond the paper: statistics of the momentum, one free side, kept roots."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from symlab.models.preact_resnet18 import preact_resnet18
from symlab.optim import SymO
from symlab.optim.symo import symo
from symlab.optim.symo_momentum import symo_momentum
from symlab.symmetry import Group, WeightSymmetry
from tests import reference
from tests.optim.symo_problems import F64, flat, gradients, make, run, two_layer
from tests.optim.test_symo_as_optimizer import resumed, tensors_of

WHITENED = {"of_momentum": True, "momentum": 0.9, "beta": 0.0}


def three_layer(widths=(4, 5, 3, 2), group=Group.PERMUTATION):
    axes, shapes = reference.mlp_axes(widths, True)
    return WeightSymmetry(axes, shapes, {"h1": group, "h2": group})


def one_matrix(rows, columns):
    """A matrix between two axes under S_n: hidden to hidden."""
    groups = dict.fromkeys("rc", Group.PERMUTATION)
    return WeightSymmetry({"W": ("r", "c")}, {"W": (rows, columns)}, groups)


def heavy_ball(grads, momentum):
    b, path = 0.0, []
    for g in grads:
        b = momentum * b + g
        path.append(b)
    return path


# --- limit cases ---


@pytest.mark.parametrize(("rows", "columns"), [(3, 7), (7, 3), (4, 4)])
def test_one_free_side_is_one_sided_shampoo(rows, columns):
    """The smaller side has the statistics; rows where both are equal."""
    params, optimizer = make(one_matrix(rows, columns), beta=0.9, one_sided=True)
    grads = [g["W"] for g in gradients(params, 6)]
    turn = (lambda W: W.T) if rows <= columns else (lambda W: W)
    expected = reference.one_sided_shampoo(
        turn(params["W"].detach().numpy()).copy(), [turn(g.numpy()) for g in grads], 0.1, 0.9
    )
    path = run(params, optimizer, [{"W": g} for g in grads])
    np.testing.assert_allclose([turn(w.reshape(rows, columns)) for w in path], expected, rtol=1e-8)
    assert optimizer.coverage() == [("W", f"one side free, blocks of [{min(rows, columns)}]", rows * columns)]


@pytest.mark.parametrize(("shape", "free"), [((4, 3, 2, 2), "rows"), ((13, 3, 2, 2), "the rest")])
def test_a_kernel_has_its_input_channels_and_positions_on_one_side(shape, free):
    groups = dict.fromkeys(("out", "in"), Group.PERMUTATION)
    symmetry = WeightSymmetry({"K": ("out", "in", "y", "x")}, {"K": shape}, groups)
    params, optimizer = make(symmetry, beta=0.8, one_sided=True)
    grads = [g["K"].numpy().reshape(shape[0], -1) for g in gradients(params, 4)]
    turn = (lambda W: W.T) if free == "rows" else (lambda W: W)
    start = turn(params["K"].detach().numpy().reshape(shape[0], -1)).copy()
    expected = reference.one_sided_shampoo(start, [turn(g) for g in grads], 0.1, 0.8)
    path = run(params, optimizer, [{"K": torch.from_numpy(g).reshape(shape)} for g in grads])
    np.testing.assert_allclose([turn(w.reshape(shape[0], -1)) for w in path], expected, rtol=1e-7)


def test_tensors_with_a_free_side_keep_their_symmetry():
    """Only W2, hidden to hidden, changes; W1, W3 and the biases do what they would do without it."""
    symmetry = three_layer()
    params, optimizer = make(symmetry, one_sided=True)
    grads = gradients(params, 5)
    rest = symmetry.restrict([name for name in symmetry.axes if name != "W2"])
    twins = {name: nn.Parameter(params[name].detach().clone()) for name in rest.axes}
    plain = SymO(twins.items(), rest, lr=0.1)
    run(params, optimizer, grads)
    run(twins, plain, grads)
    torch.testing.assert_close({n: params[n].detach() for n in twins}, {n: p.detach() for n, p in twins.items()})
    rules = {row.tensor: row.rule for row in optimizer.coverage()}
    assert rules["W2"] == "one side free, blocks of [3]"
    assert all(rules[name].startswith("symmetry, blocks of") for name in twins)


def test_a_net_without_hidden_to_hidden_weights_is_as_before():
    params, optimizer = make(two_layer(bias=True), one_sided=True)
    twins, plain = make(two_layer(bias=True))
    grads = gradients(params, 5)
    torch.testing.assert_close(run(params, optimizer, grads), run(twins, plain, grads), rtol=0, atol=0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_whitened_momentum_is_its_polar_factor(nesterov):
    params, optimizer = make(one_matrix(4, 6), one_sided=True, nesterov=nesterov, **WHITENED)
    grads = [g["W"].numpy() for g in gradients(params, 8)]
    W = params["W"].detach().numpy().copy()
    path = run(params, optimizer, [{"W": torch.from_numpy(g)} for g in grads])
    for g, b, theta in zip(grads, heavy_ball(grads, 0.9), path, strict=True):
        U, _, Vt = np.linalg.svd(g + 0.9 * b if nesterov else b, full_matrices=False)
        W = W - 0.1 * math.sqrt(6) * U @ Vt
        np.testing.assert_allclose(theta.reshape(4, 6), W, rtol=1e-8)


@pytest.mark.parametrize(("group", "kind"), [(Group.SIGNED_PERMUTATION, "B"), (Group.PERMUTATION, "S")])
def test_statistics_of_the_momentum_retrace_the_dense_group_average(group, kind):
    symmetry = two_layer(bias=True, group=group)
    params, optimizer = make(symmetry, of_momentum=True, momentum=0.6, beta=0.8)
    grads = gradients(params, 25)
    theta, C = flat({n: p.detach() for n, p in params.items()}), 0.0
    path = run(params, optimizer, grads)
    for t, b in enumerate(heavy_ball([flat(g) for g in grads], 0.6), start=1):
        average = reference.group_average(np.outer(b, b), symmetry.axes, symmetry.shapes, {"h1": kind})
        C = 0.8 * C + 0.2 * average
        values, vectors = np.linalg.eigh(C / (1 - 0.8**t))
        kept = values > 1e-12 * values.max()
        theta = theta - 0.1 * vectors[:, kept] @ (values[kept] ** -0.5 * (vectors[:, kept].T @ b))
        np.testing.assert_allclose(path[t - 1], theta, rtol=1e-6, atol=1e-8, err_msg=f"step {t}")


@pytest.mark.parametrize("of_momentum", [True, False])
def test_nesterov_with_exponent_zero_retraces_torch_sgd(of_momentum):
    options = {"exponent": 0.0, "momentum": 0.9, "nesterov": True, "of_momentum": of_momentum}
    params, optimizer = make(two_layer(bias=True), **options)
    grads = gradients(params, 10)
    twins = {n: nn.Parameter(p.detach().clone()) for n, p in params.items()}
    sgd = torch.optim.SGD(twins.values(), lr=0.1, momentum=0.9, nesterov=True)
    torch.testing.assert_close(run(params, optimizer, grads), run(twins, sgd, grads), rtol=1e-12, atol=1e-12)


def test_a_kept_root_is_applied_as_it_stands_and_bounded():
    symmetry = WeightSymmetry({"a": ("i",)}, {"a": (4,)}, {})  # the full matrix
    params, optimizer = make(symmetry, beta=0.7, statistics_every=3)
    theta = params["a"].detach().numpy().copy()
    grads = gradients(params, 15)
    path = run(params, optimizer, grads)
    C, bounded = np.zeros((4, 4)), 0
    for t, step in enumerate(grads):
        g = step["a"].numpy()
        if t % 3 == 0:
            C = 0.7 * C + 0.3 * np.outer(g, g)
            values, Q = np.linalg.eigh(C)
            values = np.maximum(values, 4 * np.finfo(float).eps * values.max()) / (1 - 0.7 ** (t // 3 + 1))
            root = Q @ np.diag(values**-0.5) @ Q.T
            largest = np.linalg.norm(root @ g)
        move = root @ g
        bounded += np.linalg.norm(move) > largest
        theta = theta - 0.1 * move * min(1.0, largest / np.linalg.norm(move))
        if t < 12:  # C has full rank from its fourth gradient on; before, the root of its null space is arbitrary
            theta = path[t].numpy()
        else:
            np.testing.assert_allclose(path[t], theta, rtol=1e-6, err_msg=f"step {t}")
        assert np.linalg.norm(path[t] - (path[t - 1] if t else path[t])) <= 0.1 * largest * (1 + 1e-6)
    assert bounded > 0


# --- equivariance ---


@pytest.mark.parametrize(
    "options",
    [
        {"one_sided": True, **WHITENED},
        {"one_sided": True, "momentum": 0.9, "nesterov": True},
        WHITENED,
        {"one_sided": True, "of_momentum": True, "momentum": 0.5, "beta": 0.5, "statistics_every": 3},
    ],
)
@pytest.mark.parametrize("group", [Group.PERMUTATION, Group.SIGNED_PERMUTATION])
def test_a_step_commutes_with_the_group(options, group):
    symmetry = three_layer(group=group)
    params, optimizer = make(symmetry, damping=1e-3, **options)
    element = symmetry.random_element(torch.Generator().manual_seed(5))
    grads = gradients(params, 7)
    start = {n: p.detach()[None] for n, p in params.items()}
    twins = {n: nn.Parameter(x[0].clone()) for n, x in symmetry.act(element, start).items()}
    moved = SymO(twins.items(), symmetry, lr=0.1, damping=1e-3, **options)
    run(params, optimizer, grads)
    run(twins, moved, [{n: symmetry.act(element, {n: g[None]})[n][0] for n, g in step.items()} for step in grads])
    expected = symmetry.act(element, {n: p.detach()[None] for n, p in params.items()})
    torch.testing.assert_close({n: p.detach()[None] for n, p in twins.items()}, expected, rtol=1e-7, atol=1e-9)


# --- as an optimizer ---


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize("steps", [4, 5])
def test_resumes_bit_for_bit_between_renewals(dtype, steps):
    options = {"one_sided": True, "statistics_every": 3, "nesterov": True, **WHITENED}
    symmetry = three_layer()
    params, optimizer = make(symmetry, dtype=dtype, **options)
    grads = gradients(params, 11)
    run(params, optimizer, grads[:steps])
    twins, fresh = resumed(optimizer, params, symmetry)
    kinds = [(x.dtype, x.shape) for x in tensors_of(optimizer.state_dict()["state"])]
    assert kinds == [(x.dtype, x.shape) for x in tensors_of(fresh.state_dict()["state"])]
    torch.testing.assert_close(run(params, optimizer, grads[steps:]), run(twins, fresh, grads[steps:]), rtol=0, atol=0)


def test_a_bad_gradient_between_renewals_raises_and_changes_nothing():
    options = {"statistics_every": 4, **WHITENED}
    params, optimizer = make(two_layer(), **options)
    twins, clean = make(two_layer(), **options)
    grads = gradients(params, 10)
    run(params, optimizer, grads[:6])
    before = copy.deepcopy(optimizer.state_dict())
    spoiled = {n: g.clone() for n, g in grads[6].items()}
    spoiled["W2"][1, 2] = math.inf
    with pytest.raises(FloatingPointError, match="gradient of W2 holds NaN or inf"):
        run(params, optimizer, [spoiled])
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"], rtol=0, atol=0)
    torch.testing.assert_close(run(params, optimizer, grads[6:]), run(twins, clean, grads)[6:], rtol=0, atol=0)


def test_an_interval_that_is_set_later_starts_with_a_renewal():
    params, optimizer = make(two_layer(), **WHITENED)
    grads = gradients(params, 4)
    run(params, optimizer, grads[:2])
    optimizer.param_groups[0]["statistics_every"] = 3
    path = run(params, optimizer, grads[2:])
    assert all(bool(theta.isfinite().all()) for theta in path)


@pytest.mark.parametrize("kind", ["zero", "ones"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_degenerate_gradients_with_kept_roots(kind, dtype):
    params, optimizer = make(three_layer(), dtype=dtype, one_sided=True, statistics_every=3, **WHITENED)
    start = torch.cat([p.detach().flatten() for p in params.values()]).clone()
    path = run(params, optimizer, [{n: torch.full(p.shape, float(kind == "ones")) for n, p in params.items()}] * 8)
    assert all(bool(theta.isfinite().all()) for theta in path)
    assert bool((path[-1] == start).all()) == (kind == "zero")


@pytest.mark.parametrize("key", ["nesterov", "of_momentum", "one_sided"])
def test_flags_are_true_or_false(key):
    with pytest.raises(ValueError, match=f"{key} must be true or false, got 1"):
        make(two_layer(), **{key: 1})
    with pytest.raises(ValueError, match="statistics_every must be a whole number of at least 1, got 0"):
        make(two_layer(), statistics_every=0)


def test_the_precision_of_the_statistics_is_named():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = symo(model, torch.randn(5, 3), lr=0.1, statistics_dtype="float32")
    assert optimizer.statistics_dtype is torch.float32
    with pytest.raises(ValueError, match="statistics_dtype must be float32 or float64, got 'half'"):
        symo(model, torch.randn(5, 3), lr=0.1, statistics_dtype="half")


def test_trains_a_residual_net_with_blocks_of_the_smaller_side():
    g = torch.Generator().manual_seed(0)
    model = preact_resnet18((1, 8, 8), 10, g, width=4)
    inputs, targets = torch.randn(32, 1, 8, 8, generator=g), torch.randint(10, (32,), generator=g)
    optimizer = symo_momentum(model, inputs[:4], lr=0.003, beta=0.0, statistics_every=2)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    rules = {row.tensor: row.rule for row in optimizer.coverage()}
    assert rules["layer4.1.conv2.weight"] == "one side free, blocks of [32]"
    assert rules["stem.weight"].startswith("symmetry, blocks of")
