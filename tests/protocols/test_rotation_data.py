"""Protocols rotation_net and rotation_attention: their gradients, closed form, data, tables and what they refuse."""

import numpy as np
import pytest
import torch

from symlab.protocols.rotation_attention import Matching, rotation_attention
from symlab.protocols.rotation_net import Regression, rotation_net
from symlab.protocols.study import Ground
from tests.protocols.test_rotation import all_tables
from tests.protocols.watching import Calm
from tests.reference_rotation import factorisation_minimum

NET = {
    "size": 3,
    "rows": 12,
    "lrs": (0.05, 0.1),
    "batches": (2, 12),
    "decays": (0.0, 2.0),
    "noises": (0.0, 0.5),
    "time": 10.0,
    "shown_noise": 0.5,
    "shown_batch": 2,
    "shown_lr": 0.05,
}
ATTENTION = {
    "size": 3,
    "keys": 3,
    "lrs": (0.3, 1.0),
    "batches": (2, 8),
    "decays": (0.0, 0.9),
    "time": 10.0,
    "shown_batch": 2,
    "shown_lr": 1.0,
}


def ground(seeds=(0, 1)):
    return Ground(seeds, torch.device("cpu"), torch.float64)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("batch", [5, 12])
def test_regression_gradient_is_that_of_the_rows_drawn(batch):
    noises = [0.0, 0.7]
    task, twin = (Regression(ground(), 3, 12, 0.1, batch, noises) for _ in range(2))
    p = normal(2, 2, 3, 3)
    found = task.gradient(p)
    drawn = twin.draws.next() if batch < 12 else torch.arange(12).expand(2, 12)
    for r in range(2):
        for c, noise in enumerate(noises):
            own = p[r, c].clone().requires_grad_()
            loss = sum(
                0.5 * (own @ x - (task.goal[r] @ x + noise * e)).square().sum()
                for x, e in ((task.x[r, i], task.e[r, i]) for i in drawn[r].tolist())
            )
            (loss / batch).backward()
            torch.testing.assert_close(found[r, c], own.grad)


def test_inputs_are_white_and_the_closed_form_is_the_minimum():
    task = Regression(ground(), 3, 12, 0.1, 12, [0.0, 0.7])
    torch.testing.assert_close(task.x.mT @ task.x / 12, torch.eye(3, dtype=torch.float64).expand(2, 3, 3))
    least = task.minimum_values(torch.tensor([0.2, 0.2], dtype=torch.float64))
    x, e = task.x[1].numpy(), task.e[1].numpy()
    labels = x @ task.goal[1].numpy().T + 0.7 * e
    best = np.linalg.lstsq(x, labels, rcond=None)[0].T
    found = factorisation_minimum(best, 0.2, second=x.T @ x / 12)
    np.testing.assert_allclose(np.linalg.svd(found, compute_uv=False), least[1, 1].numpy(), atol=1e-5)


def test_matching_gradient_is_that_of_the_cross_entropy_and_keys_are_drawn_from_the_teacher():
    task, twin = (Matching(ground(), 3, 4, 2.0, 0.1, 400) for _ in range(2))
    p = normal(2, 1, 3, 3).requires_grad_()
    found = task.gradient(p.detach())
    drawn = twin.draws.next()
    x, z, chance = drawn[..., :3], drawn[..., 3:15].reshape(2, 400, 4, 3), drawn[..., 15]
    expected = torch.zeros(2, dtype=torch.float64)
    hits, probabilities = np.zeros(4), np.zeros(4)
    for r in range(2):
        for b in range(400):
            teacher = (z[r, b] @ (task.goal[r].T @ x[r, b]) / 3**0.5).softmax(0)
            right = int(np.searchsorted(np.cumsum(teacher.numpy()), float(chance[r, b])))
            order = teacher.argsort()
            hits[int((order == right).nonzero())] += 1
            probabilities += teacher[order].numpy()
            scores = z[r, b] @ (p[r, 0].T @ x[r, b]) / 3**0.5
            expected[r] += torch.nn.functional.cross_entropy(scores, torch.tensor(right)) / 400
    (gradient,) = torch.autograd.grad(expected.sum(), p)
    torch.testing.assert_close(found, gradient)
    assert np.abs(hits - probabilities).max() < 4 * 200**0.5  # 800 draws: four standard deviations at most


def test_teacher_is_the_minimum_without_decay():
    task = Matching(ground((0,)), 3, 3, 2.0, 0.2, 20000)
    at, away = (task.gradient(task.goal[:, None] * factor).norm() for factor in (1.0, 0.5))
    assert float(at) < 0.1 * float(away)


@pytest.mark.parametrize(("protocol", "keys", "arms"), [(rotation_net, NET, 4), (rotation_attention, ATTENTION, 3)])
def test_tables_and_numbers(protocol, keys, arms):
    study = protocol(ground(), **keys)
    tables = all_tables(study)
    assert set(study.figures.values()) | {"metrics"} == set(tables)
    metrics = tables["metrics"]
    cells = 2 * len(keys.get("noises", (0,)))
    assert len(metrics) == arms * 2 * 2 * cells * 2
    assert not metrics.duplicated(["arm", "lr", "batch", "decay", "noise", "seed"]).any()
    assert set(tables["decay"]["batch"]) == {2}
    numbers = study.numbers(tables)
    assert list(numbers) == list(study.number_names())
    assert numbers["matrix_rank"]["value"] > 0.95
    assert numbers["decay_drop"]["value"] >= 1


@pytest.mark.parametrize(
    ("protocol", "keys"),
    [(rotation_net, NET | {"time": 30.0}), (rotation_attention, ATTENTION | {"time": 120.0})],
)
def test_a_stopped_part_goes_on_exactly(protocol, keys):
    study = protocol(ground(), **keys)
    part = study.parts()[0]
    whole = study.run(part, Calm())
    watch = Calm(stop_at=2)
    assert study.run(part, watch) is None
    assert watch.kept["step"] == 256
    assert study.run(part, Calm(kept=watch.kept)) == whole
    assert study.run(part, Calm(due=True)) == whole


def test_net_with_all_rows_ends_at_the_closed_form():
    tables = all_tables(
        rotation_net(
            ground(), **(NET | {"time": 200.0, "lrs": (0.1,), "batches": (12,), "shown_lr": 0.1, "shown_batch": 12})
        )
    )
    product = tables["metrics"][tables["metrics"]["arm"] == "U W"]
    assert product["closed_form_gap"].max() < 1e-3


@pytest.mark.parametrize(
    ("protocol", "keys", "changes", "key"),
    [
        (rotation_net, NET, {"size": 1}, "size"),
        (rotation_net, NET, {"rows": 2}, "rows"),
        (rotation_net, NET, {"smallest": 2.0}, "smallest"),
        (rotation_net, NET, {"batches": (0, 2)}, "batches"),
        (rotation_net, NET, {"shown_batch": 3}, "shown_batch"),
        (rotation_net, NET, {"shown_noise": 0.1}, "shown_noise"),
        (rotation_net, NET, {"decays": (0.0, 20.0)}, "decays"),
        (rotation_net, NET, {"time": 0.1}, "time"),
        (rotation_net, NET, {"time": float("inf")}, "time"),
        (rotation_attention, ATTENTION, {"time": float("inf")}, "time"),
        (rotation_net, NET, {"cut_off": float("nan")}, "cut_off"),
        (rotation_attention, ATTENTION, {"keys": 1}, "keys"),
        (rotation_attention, ATTENTION, {"scale": float("inf")}, "scale"),
        (rotation_attention, ATTENTION, {"smallest": 0.0}, "smallest"),
        (rotation_attention, ATTENTION, {"shown_lr": 0.2}, "shown_lr"),
        (rotation_attention, ATTENTION, {"time": 1.0}, "time"),
    ],
)
def test_values_out_of_range_are_refused_by_name(protocol, keys, changes, key):
    with pytest.raises(ValueError, match=f"^{key}"):
        protocol(ground(), **(keys | changes))
