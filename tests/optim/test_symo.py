"""SymO: limit cases against independent implementations, and degenerate statistics."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from symlab.optim import SymO
from symlab.symmetry import Group, WeightSymmetry
from tests import reference
from tests.optim.symo_problems import F64, flat, gradients, make, run, two_layer

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
