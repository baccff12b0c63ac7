"""SymO: limit cases against independent implementations, then every respect in which it is a torch optimizer."""

import copy
import io
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from symlab.optim import SymO
from symlab.symmetry import Group, WeightSymmetry
from tests import reference

F64 = torch.float64


def two_layer(bias=False, group=Group.SIGNED_PERMUTATION):
    axes, shapes = reference.mlp_axes((4, 3, 2), bias)
    return WeightSymmetry(axes, shapes, {"h1": group})


def make(symmetry, seed=0, dtype=F64, **options):
    """Parameters of the symmetry's shapes and a SymO on them."""
    g = torch.Generator().manual_seed(seed)
    shapes = symmetry.shapes.items()
    params = {n: nn.Parameter(torch.randn(s, generator=g, dtype=F64).to(dtype)) for n, s in shapes}
    return params, SymO(params.items(), symmetry, **{"lr": 0.1, **options})


def gradients(params, steps, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [{n: torch.randn(p.shape, generator=g, dtype=F64) for n, p in params.items()} for _ in range(steps)]


def run(params, optimizer, grads):
    """The flattened weights after each step."""
    path = []
    for step in grads:
        for name, p in params.items():
            p.grad = None if step.get(name) is None else step[name].to(p)
        optimizer.step()
        path.append(torch.cat([p.detach().flatten() for p in params.values()]).clone())
    return path


def flat(named):
    return np.concatenate([x.numpy().ravel() for x in named.values()])


# --- limit cases ---


@pytest.mark.parametrize(
    ("shapes", "exponent"), [({"a": (3,)}, -0.5), ({"a": (2, 2), "b": (2,)}, -0.5), ({"a": (2, 3)}, -1.0)]
)
def test_all_axes_free_is_the_full_matrix(shapes, exponent):
    axes = {n: tuple(f"{n}{d}" for d in range(len(s))) for n, s in shapes.items()}
    params, optimizer = make(WeightSymmetry(axes, shapes, {}), exponent=exponent, damping=1e-3)
    grads = gradients(params, 12)
    theta = flat({n: p.detach() for n, p in params.items()})
    expected = reference.full_matrix_rms(theta, [flat(g) for g in grads], 0.1, 0.95, exponent, eps=1e-3)
    np.testing.assert_allclose(run(params, optimizer, grads), expected, rtol=1e-8)


def test_rotated_rows_is_one_sided_shampoo():
    symmetry = WeightSymmetry({"W": ("row", "column")}, {"W": (7, 4)}, {"row": Group.ORTHOGONAL})
    params, optimizer = make(symmetry, beta=0.9)
    grads = gradients(params, 8)
    W = params["W"].detach().numpy().copy()
    expected = reference.one_sided_shampoo(W, [g["W"].numpy() for g in grads], 0.1, 0.9)
    np.testing.assert_allclose(run(params, optimizer, grads), [e.ravel() for e in expected], rtol=1e-9)


@pytest.mark.parametrize("known", [True, False])
def test_every_axis_rotated_or_outside_the_symmetry_is_one_scalar(known):
    shapes = {"W": (5, 4), "b": (5,)}
    axes = {"W": ("r", "c"), "b": ("d",)}
    symmetry = (
        WeightSymmetry(axes, shapes, dict.fromkeys("rcd", Group.ORTHOGONAL)) if known else WeightSymmetry({}, {}, {})
    )
    options = {"momentum": 0.8, "weight_decay": 0.1, "beta": 0.7}
    params, _ = make(WeightSymmetry(axes, shapes, {}))
    optimizer = SymO(params.items(), symmetry, 0.1, **options)
    grads = gradients(params, 8)
    expected = [
        reference.scalar_rms(
            p.detach().numpy().ravel().copy(), [g[n].numpy().ravel() for g in grads], 0.1, 0.7, 0.8, 0.1
        )
        for n, p in params.items()
    ]
    expected = [np.concatenate(row) for row in zip(*expected, strict=True)]
    np.testing.assert_allclose(run(params, optimizer, grads), expected, rtol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_exponent_zero_retraces_torch_sgd(momentum):
    params, optimizer = make(two_layer(bias=True), exponent=0.0, momentum=momentum)
    grads = gradients(params, 10)
    twins = {n: nn.Parameter(p.detach().clone()) for n, p in params.items()}
    sgd = torch.optim.SGD(twins.values(), lr=0.1, momentum=momentum)
    torch.testing.assert_close(run(params, optimizer, grads), run(twins, sgd, grads), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("group", "kind"), [(Group.SIGNED_PERMUTATION, "B"), (Group.PERMUTATION, "S")])
def test_retraces_the_dense_group_average(group, kind):
    """Sigma_t from the average of g g^T over all group elements, its inverse root dense."""
    symmetry = two_layer(bias=True, group=group)
    params, optimizer = make(symmetry, beta=0.8, damping=0.0)
    grads = gradients(params, 30)
    theta = flat({n: p.detach() for n, p in params.items()})
    C = 0.0
    path = run(params, optimizer, grads)
    for t, g in enumerate(grads, start=1):
        average = reference.group_average(np.outer(flat(g), flat(g)), symmetry.axes, symmetry.shapes, {"h1": kind})
        C = 0.8 * C + 0.2 * average
        values, vectors = np.linalg.eigh(C / (1 - 0.8**t))
        kept = values > 1e-12 * values.max()  # the gradient lies in the range of the kept ones
        theta = theta - 0.1 * vectors[:, kept] @ (values[kept] ** -0.5 * (vectors[:, kept].T @ flat(g)))
        np.testing.assert_allclose(path[t - 1], theta, rtol=1e-6, err_msg=f"step {t}")


def test_coarsened_block_treats_the_largest_free_axis_as_rotated():
    axes, shapes = reference.mlp_axes((40, 3, 2), False)
    fine = WeightSymmetry(axes, shapes, {"h1": Group.SIGNED_PERMUTATION})
    by_hand = WeightSymmetry(axes, shapes, {"h1": Group.SIGNED_PERMUTATION, "in": Group.ORTHOGONAL})
    params, optimizer = make(fine, max_block=8)
    twins, expected = make(by_hand)
    grads = gradients(params, 5)
    torch.testing.assert_close(run(params, optimizer, grads), run(twins, expected, grads), rtol=0, atol=0)
    assert "blocks of [1]" in optimizer.coverage()[0].rule


def test_kept_eigenvectors_are_scaled_by_their_present_second_moment():
    symmetry = WeightSymmetry({"a": ("i",)}, {"a": (4,)}, {})  # the full matrix
    params, optimizer = make(symmetry, beta=0.7, update_every=3)
    theta = params["a"].detach().numpy().copy()
    grads = gradients(params, 9)
    path = run(params, optimizer, grads)
    C = np.zeros((4, 4))
    for t, step in enumerate(grads, start=1):
        g = step["a"].numpy()
        C = 0.7 * C + 0.3 * np.outer(g, g)
        if t % 3 == 1:
            values, Q = np.linalg.eigh(C)
        else:
            values = np.array([q @ C @ q for q in Q.T])
        if t <= 3:  # the first basis is arbitrary in the null space of one gradient
            theta = path[t - 1].numpy()
            continue
        floored = np.maximum(values, 4 * np.finfo(float).eps * values.max()) / (1 - 0.7**t)
        theta = theta - 0.1 * Q @ (floored**-0.5 * (Q.T @ g))
        np.testing.assert_allclose(path[t - 1], theta, rtol=1e-6, err_msg=f"step {t}")


def test_a_gradient_outside_the_range_of_kept_eigenvectors_stays_bounded():
    """The first gradient has rank one; the second is new in all directions."""
    symmetry = WeightSymmetry({"a": ("i",)}, {"a": (6,)}, {})
    params, optimizer = make(symmetry, update_every=10)
    first = torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=F64)
    path = run(params, optimizer, [{"a": first}, {"a": torch.ones(6, dtype=F64)}])
    assert float((path[1] - path[0]).norm()) <= 0.1 * math.sqrt(6 / (1 - 0.95)) * (1 + 1e-9)


def test_update_is_bounded():
    """|update| <= lr sqrt(D_k m_k) / sqrt(1 - beta) per block, after any history: here tiny steps, then a huge one."""
    params, optimizer = make(two_layer(), beta=0.95)
    grads = [{n: g * 1e-8 for n, g in step.items()} for step in gradients(params, 20)] + gradients(params, 1, seed=3)
    path = run(params, optimizer, grads)
    rank = 3  # the last gradient's block is [6, 3]: rank 3, D = 3
    assert float((path[-1] - path[-2]).norm()) <= 0.1 * math.sqrt(rank * 3 / (1 - 0.95)) * (1 + 1e-9)


# --- degenerate statistics ---


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["zero", "ones", "dead unit", "tiny"])
@pytest.mark.parametrize("damping", [0.0, 1e-4])
def test_degenerate_gradients(dtype, kind, damping):
    params, optimizer = make(two_layer(bias=True, group=Group.PERMUTATION), dtype=dtype, damping=damping)
    start = torch.cat([p.detach().flatten() for p in params.values()]).clone()
    grads = [{n: torch.ones(p.shape, dtype=F64) for n, p in params.items()} for _ in range(10)]
    if kind == "zero":
        grads = [{n: 0 * g for n, g in step.items()} for step in grads]
    if kind == "tiny":
        grads = [{n: 1e-30 * g for n, g in step.items()} for step in grads]
    if kind == "dead unit":
        grads = gradients(params, 10)
        for step in grads:
            step["W1"][0], step["W2"][:, 0], step["b1"][0] = 0, 0, 0
    path = run(params, optimizer, grads)
    assert all(bool(theta.isfinite().all()) for theta in path)
    if kind == "zero" or (kind == "tiny" and dtype is torch.float16):
        assert bool((path[-1] == start).all())
    else:
        assert float((path[-1] - start).abs().max()) > 0
    for moment in optimizer.state[params["W1"]]["moments"]:
        assert moment.dtype is F64
        assert float(torch.linalg.eigvalsh(moment)[0]) >= -1e-12 * float(moment.trace() + 1e-300)


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exponent", [-0.5, -1.0])
@pytest.mark.parametrize("outside", [True, False])
def test_zero_gradient_of_a_block_with_one_copy_gives_a_zero_update(dtype, exponent, outside):
    """A zero-initialised last layer does this to all layers before it; `outside`: a tensor with a scalar of its own."""
    axes, shapes = {"W": ("r", "c")}, {"W": (5, 4)}
    groups = dict.fromkeys("rc", Group.PERMUTATION)  # blocks of one copy each
    params, _ = make(WeightSymmetry(axes, shapes, groups), dtype=dtype)
    symmetry = WeightSymmetry({}, {}, {}) if outside else WeightSymmetry(axes, shapes, groups)
    optimizer = SymO(params.items(), symmetry, lr=0.1, exponent=exponent)
    start = params["W"].detach().flatten().clone()
    path = run(params, optimizer, [{"W": torch.zeros(5, 4)} for _ in range(3)])
    assert all(bool((theta == start).all()) for theta in path)
    path = run(params, optimizer, [{"W": torch.ones(5, 4)}])
    assert bool((path[-1] < start).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_gradient_raises_and_changes_nothing(bad):
    params, optimizer = make(two_layer(), momentum=0.9)
    twins, clean = make(two_layer(), momentum=0.9)
    grads = gradients(params, 12)
    run(params, optimizer, grads[:6])
    before = copy.deepcopy(optimizer.state_dict())
    spoiled = {n: g.clone() for n, g in grads[6].items()}
    spoiled["W2"][1, 2] = bad
    with pytest.raises(FloatingPointError, match="gradient of W2 holds NaN or inf"):
        run(params, optimizer, [spoiled])
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"], rtol=0, atol=0)
    rest = run(params, optimizer, grads[6:])
    torch.testing.assert_close(rest, run(twins, clean, grads)[6:], rtol=0, atol=0)


# --- a torch optimizer in every respect ---


def test_descends_through_a_model_closure_and_scheduler():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2, bias=False))
    axes, shapes = reference.mlp_axes((4, 3, 2), False)
    names = {"W1": "0.weight", "W2": "2.weight"}
    symmetry = WeightSymmetry(
        {names[n]: a for n, a in axes.items()},
        {names[n]: s for n, s in shapes.items()},
        {"h1": Group.SIGNED_PERMUTATION},
    )
    optimizer = SymO(model.named_parameters(), symmetry, lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    x, y = torch.randn(20, 4), torch.randn(20, 2)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    losses = []
    for _ in range(40):
        losses.append(optimizer.step(closure).item())
        scheduler.step()
    assert losses[-1] < 0.75 * losses[0]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.95**40)


def resumed(optimizer, params, symmetry, **options):
    """A new optimizer on copies of the parameters, its state through torch.save and the default, safe loader."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twins = {n: nn.Parameter(p.detach().clone()) for n, p in params.items()}
    fresh = SymO(twins.items(), symmetry, **{"lr": 0.5, **options})
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return twins, fresh


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"update_every": 3}, {"max_block": 2}])
def test_resumes_bit_for_bit(dtype, options):
    symmetry = two_layer(bias=True, group=Group.PERMUTATION)
    params, optimizer = make(symmetry, dtype=dtype, **options)
    grads = gradients(params, 11)
    run(params, optimizer, grads[:5])  # with update_every=3, in the middle of an interval
    twins, fresh = resumed(optimizer, params, symmetry, max_block=options.get("max_block", 99))
    saved, loaded = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    for a, b in zip(tensors_of(saved), tensors_of(loaded), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert fresh.param_groups[0]["lr"] == 0.1
    torch.testing.assert_close(run(params, optimizer, grads[5:]), run(twins, fresh, grads[5:]), rtol=0, atol=0)
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(tensors_of(saved), tensors_of(loaded), strict=True))


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return list(itertools.chain.from_iterable(map(tensors_of, items)))


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_go_their_own_way(copier):
    params, optimizer = make(two_layer(), momentum=0.5)
    grads = gradients(params, 8)
    run(params, optimizer, grads[:4])
    twins, twin = copier((params, optimizer))
    torch.testing.assert_close(run(params, optimizer, grads[4:]), run(twins, twin, grads[4:]), rtol=0, atol=0)
    assert twin.param_groups[0]["params"][0] is twins["W1"]


def test_state_of_another_model_is_refused_and_changes_nothing():
    params, optimizer = make(two_layer())
    run(params, optimizer, gradients(params, 2))
    axes, shapes = reference.mlp_axes((6, 3, 2), False)
    _, other = make(WeightSymmetry(axes, shapes, {"h1": Group.SIGNED_PERMUTATION}))
    before = other.state_dict()
    with pytest.raises(ValueError, match=r"saved blocks are \[6\], this optimizer's are \[8\]"):
        other.load_state_dict(optimizer.state_dict())
    assert other.state_dict() == before
    with pytest.raises(ValueError, match="different number of parameter groups"):
        other.load_state_dict({"state": {}, "param_groups": []})


def test_a_state_saved_where_the_schedule_is_at_zero_loads():
    params, optimizer = make(two_layer())
    run(params, optimizer, gradients(params, 2))
    optimizer.param_groups[0]["lr"] = 0.0
    _, other = make(two_layer())
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0


def test_statistics_of_another_precision_are_refused():
    params, optimizer = make(two_layer(), statistics_dtype=torch.float32)
    run(params, optimizer, gradients(params, 1))
    _, fresh = make(two_layer())
    with pytest.raises(ValueError, match=r"saved statistics are torch.float32, this optimizer's are torch.float64"):
        fresh.load_state_dict(optimizer.state_dict())


def test_the_state_of_another_optimizer_is_refused():
    params, optimizer = make(two_layer())
    adam = torch.optim.Adam(params.items())
    with pytest.raises(ValueError, match="the saved state has no beta: it is that of another optimizer"):
        optimizer.load_state_dict(adam.state_dict())


def test_groups_have_their_own_settings_and_statistics():
    symmetry = two_layer(bias=True)
    params, _ = make(symmetry)
    named = list(params.items())
    optimizer = SymO([{"params": named[:2], "lr": 0.3}], symmetry, lr=0.1)
    optimizer.add_param_group({"params": named[2:], "beta": 0.5, "max_block": 1})
    alone = {n: nn.Parameter(p.detach().clone()) for n, p in named}
    first = SymO(list(alone.items())[:2], symmetry, lr=0.3)
    second = SymO(list(alone.items())[2:], symmetry, lr=0.1, beta=0.5, max_block=1)
    grads = gradients(params, 4)
    path = run(params, optimizer, grads)
    for step, expected in zip(grads, path, strict=True):
        for n, p in alone.items():
            p.grad = step[n]
        first.step()
        second.step()
        torch.testing.assert_close(torch.cat([p.detach().flatten() for p in alone.values()]), expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="beta must lie in"):
        optimizer.add_param_group({"params": [("new", nn.Parameter(torch.zeros(2)))], "beta": 2.0})
    assert len(optimizer.param_groups) == 2
    run(params, optimizer, grads)


def test_missing_gradients_and_frozen_parameters():
    symmetry = two_layer(bias=True)
    params, optimizer = make(symmetry, weight_decay=0.1, momentum=0.9)
    frozen = params["b2"].requires_grad_(False).detach().clone()
    optimizer.step()
    assert optimizer.state_dict()["state"] == {}  # nothing has a gradient: nothing happens
    grads = [{**g, "b2": None} for g in gradients(params, 5)]
    grads[2]["W1"] = None
    path = run(params, optimizer, grads)
    assert bool((params["b2"] == frozen).all())
    assert bool((path[2][:12] == path[1][:12]).all())  # W1 untouched at that step, not even decayed
    assert not bool((path[3][:12] == path[2][:12]).any())
    # a parameter that never has a gradient does not change the others' updates
    rest = symmetry.restrict(["W1", "b1", "W2"])
    twins, alone = make(rest, weight_decay=0.1, momentum=0.9)
    for n, p in make(symmetry)[0].items():
        if n in twins:
            twins[n].data = p.data.clone()
    expected = run(twins, alone, [{n: g[n] for n in twins} for g in grads])
    torch.testing.assert_close([theta[: len(expected[0])] for theta in path], expected, rtol=1e-10, atol=1e-12)


def test_scalar_empty_conv_and_unknown_parameters():
    symmetry = two_layer()
    params, _ = make(symmetry)
    extra = {"scale": (), "empty": (0, 3), "conv": (2, 3, 1, 1)}
    params.update({n: nn.Parameter(torch.ones(s, dtype=F64)) for n, s in extra.items()})
    optimizer = SymO(params.items(), symmetry, lr=0.1)
    before = torch.cat([p.detach().flatten() for p in params.values()]).clone()
    path = run(params, optimizer, gradients(params, 3))
    assert bool((path[0] != before).all())
    assert float(params["scale"].detach()) != 1
    coverage = {row.tensor: (row.rule, row.weights) for row in optimizer.coverage()}
    assert coverage == {
        "W1": ("symmetry, blocks of [6]", 12),
        "W2": ("symmetry, blocks of [6]", 6),
        "scale": ("one scalar per tensor", 1),
        "empty": ("empty, left alone", 0),
        "conv": ("one scalar per tensor", 6),
    }


def test_parameters_that_start_or_end_as_other_dtypes():
    symmetry = two_layer()
    params = {"W1": nn.Parameter(torch.ones(3, 4, dtype=torch.bfloat16)), "W2": nn.Parameter(torch.ones(2, 3))}
    optimizer = SymO(params.items(), symmetry, lr=0.1, momentum=0.9)
    run(params, optimizer, gradients(params, 3))
    assert params["W1"].dtype is torch.bfloat16
    assert optimizer.state[params["W1"]]["momentum_buffer"].dtype is torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"lr": lr}, f"lr must be positive and finite, got {lr}") for lr in (0, -1, math.nan, math.inf)),
        ({"beta": 1.0}, r"beta must lie in \[0, 1\), got 1.0"),
        ({"beta": math.nan}, r"beta must lie in \[0, 1\), got nan"),
        ({"momentum": -0.1}, r"momentum must lie in \[0, 1\), got -0.1"),
        ({"damping": -1}, r"damping must lie in \[0, inf\), got -1"),
        ({"exponent": 0.5}, r"exponent must lie in \[-1, 0\], got 0.5"),
        ({"weight_decay": math.inf}, r"weight_decay must lie in \[0, inf\), got inf"),
        ({"update_every": 0}, "update_every must be a whole number of at least 1, got 0"),
        ({"max_block": 2.5}, "max_block must be a whole number of at least 1, got 2.5"),
        ({"statistics_dtype": torch.bfloat16}, "statistics_dtype must be torch.float32 or torch.float64"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        make(two_layer(), **options)


def test_wrong_parameters():
    symmetry = two_layer()
    params, optimizer = make(symmetry)
    with pytest.raises(ValueError, match="SymO needs names"):
        SymO(params.values(), symmetry, lr=0.1)
    with pytest.raises(ValueError, match=r"W1 is \[5\], but \[3, 4\] in the symmetry"):
        SymO([("W1", nn.Parameter(torch.zeros(5)))], symmetry, lr=0.1)
    with pytest.raises(ValueError, match="c is complex"):
        SymO([("c", nn.Parameter(torch.zeros(5, dtype=torch.complex64)))], symmetry, lr=0.1)
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="lr must be positive and finite, got -1"):
        run(params, optimizer, gradients(params, 1))


# --- the paper's problem ---


def teacher_student(seed, activation):
    """Bernacchia (ICML 2025), optimizer comparison: 100-70-40, 5,000 rows, input eigenvalues logspace(0, -5, 100)."""
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(100, 100)))
    scale = np.sqrt(np.logspace(0, -5, 100))
    X, X_test = ((rng.normal(size=(5000, 100)) * scale) @ Q.T for _ in range(2))
    teacher, student = ([rng.normal(size=(70, 100)) / 10, rng.normal(size=(40, 70)) / math.sqrt(70)] for _ in range(2))
    Y, Y_test = (activation(x @ teacher[0].T) @ teacher[1].T for x in (X, X_test))
    return [torch.from_numpy(a).float() for a in (X, Y, X_test, Y_test)], [torch.from_numpy(w).float() for w in student]


def final_test_loss(seed, name, lr, gamma):
    f, act = {"tanh": (np.tanh, torch.tanh), "linear": (lambda z: z, lambda z: z)}[name]
    (X, Y, X_test, Y_test), student = teacher_student(seed, f)
    params = {f"W{i + 1}": nn.Parameter(w) for i, w in enumerate(student)}
    axes, shapes = reference.mlp_axes((100, 70, 40), False)
    optimizer = SymO(params.items(), WeightSymmetry(axes, shapes, {"h1": Group.SIGNED_PERMUTATION}), lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)

    def loss(x, y):
        return (act(x @ params["W1"].T) @ params["W2"].T - y).square().sum() / (2 * len(x))

    for _ in range(100):
        optimizer.zero_grad()
        loss(X, Y).backward()
        optimizer.step()
        scheduler.step()
    return float(loss(X_test, Y_test).detach())


# lr, gamma, and of an independent re-run over 10 seeds: median, smallest and largest test loss after 100 steps
BANDS = {"tanh": (0.09, 0.91, 0.0074, 0.0063, 0.0086), "linear": (0.05, 0.95, 3.2e-7, 1.2e-7, 9.3e-7)}


@pytest.mark.parametrize("name", BANDS)
def test_reaches_the_loss_of_the_paper(name):
    lr, gamma, _, low, high = BANDS[name]
    assert 0.8 * low < final_test_loss(0, name, lr, gamma) < 1.25 * high


@pytest.mark.slow
@pytest.mark.parametrize("name", BANDS)
def test_ten_seeds_lie_in_the_band(name):
    """The band is the extremes of 10 other seeds: the median must lie inside, and at least 8 of our 10."""
    lr, gamma, _, low, high = BANDS[name]
    losses = np.array([final_test_loss(seed, name, lr, gamma) for seed in range(10)])
    print(name, "median", np.median(losses), "range", losses.min(), losses.max())
    assert low < np.median(losses) < high
    assert ((losses > low) & (losses < high)).sum() >= 8
