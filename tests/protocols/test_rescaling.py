"""The protocols rescaling and rescaling_mlp, on small settings, against loops, autograd and scikit-learn."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from symlab.data.digits import digits
from symlab.models.mlp import mlp
from symlab.protocols.rescaling import rescaling
from symlab.protocols.rescaling_mlp import lone_zeros, rescaling_mlp
from symlab.protocols.seed_statements import differences, means, ratios, rises, slopes
from symlab.protocols.sparse_regression import Plain, Product, gradients, sparse_regression
from symlab.protocols.study import Ground
from tests.protocols.watching import Calm

SMALL = {
    **{"rows": 40, "columns": 10, "nonzero": 2, "noise": 0.3, "time": 50.0},
    **{"lrs": (0.05, 0.1), "decays": (0.1, 0.5), "batch_sizes": (8, 40)},
    **{"shown_lr": 0.1, "shown_decay": 0.5, "shown_batch_size": 8, "lasso_updates": 5000},
}
NET = {
    **{"lrs": (0.1, 0.3), "decays": (0.001, 0.05), "batch_sizes": (10, 20), "time": 12.0},
    **{"shown_lr": 0.1, "shown_decay": 0.05, "shown_batch_size": 20},
}


def ground(seeds=(0, 1), dtype=torch.float64, **parts):
    return Ground(tuple(seeds), torch.device("cpu"), dtype, **parts)


def net_ground():
    data = digits(num_train=60, num_test=30).to(torch.device("cpu"), torch.float64)
    return ground(data=data, model=partial(mlp, hidden=[4], activation="relu"))


def frames(study):
    tables = {}
    for part in study.parts():
        for name, rows in study.run(part, Calm()).items():
            tables.setdefault(name, []).extend({"part": part, **row} for row in rows)
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


@pytest.fixture(scope="module")
def small():
    study = rescaling(ground(), **SMALL)
    return study, frames(study)


@pytest.mark.parametrize("size", [8, 40])
def test_steps_are_those_of_autograd(size):
    """p - lr (grad + decay p) with autograd's gradient of the mean squared error, seed by seed, on the same rows."""
    like = torch.empty((), dtype=torch.float64)
    problem = sparse_regression((3, 5), like, rows=40, columns=6, nonzero=2, noise=0.3, init=0.3)
    lr, decay = torch.tensor([0.05, 0.1], dtype=torch.float64), torch.tensor([0.2, 0.4], dtype=torch.float64)
    for arm in (Product, Plain):
        descent, batches = arm(problem, lr, decay), problem.batches(size)
        used = [next(batches) for _ in range(7)]
        for batch in used:
            descent.step(gradients(descent.weights, *batch))
        for e in range(2):
            for k in range(2):
                start = [problem.u[e], problem.v[e]] if arm is Product else [problem.u[e] * problem.v[e]]
                leaves = [p.clone().requires_grad_() for p in start]
                for x, y in used:
                    w = leaves[0] * leaves[1] if arm is Product else leaves[0]
                    found = torch.autograd.grad((x[e] @ w - y[e]).square().mean(), leaves)
                    pairs = zip(leaves, found, strict=True)
                    leaves = [(p - lr[k] * (g + decay[k] * p)).detach().requires_grad_() for p, g in pairs]
                w = leaves[0] * leaves[1] if arm is Product else leaves[0]
                torch.testing.assert_close(descent.weights[e, k], w.detach())


def test_batches_are_rows_in_a_new_order_each_epoch():
    like = torch.empty((), dtype=torch.float64)
    problem = sparse_regression((0, 1), like, rows=10, columns=3, nonzero=1, noise=0.1, init=1.0)
    batches = problem.batches(4)
    first, second = ([next(batches)[1] for _ in range(2)] for _ in range(2))
    for e in range(2):
        for epoch in (first, second):
            seen = torch.cat([targets[e] for targets in epoch])
            assert len(seen.unique()) == 8  # two rows of ten are left out
            assert all(value in problem.targets[e] for value in seen)
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(problem.truth[0], problem.truth[1])
    assert (problem.truth[:, 1:] == 0).all()
    assert (problem.truth[:, 0].abs() >= 0.5).all()


def test_arms_differ_as_claimed(small):
    study, tables = small
    numbers = study.numbers(tables)
    assert list(numbers) == list(study.number_names())
    value = {name: number["value"] for name, number in numbers.items()}
    assert value["decay_slope"] > 0.1
    assert value["decay_rises"] == 1
    assert value["control_zeros"] == value["diverged"] == 0
    assert value["more_zeros_than_control"] > 0.4
    assert value["lasso_agreement"] == 1  # scikit-learn
    assert value["lasso_weights_difference"] < 1e-3


def test_tables_have_the_rows_of_their_figures(small):
    study, tables = small
    assert {name: len(table) for name, table in tables.items()} == {
        **{"metrics": 2 * 2 * 2 * 2, "batch": 2 * (2 * 2 + 1 * 2), "rate": 2 * (2 * 2 + 1 * 2)},
        **{"decay": 2 * 2 * 2, "lasso": 2 * 2 * 2},
    }
    assert set(study.figures.values()) == set(tables)
    assert set(tables["metrics"]["batch_size"]) == {8}
    assert set(tables["batch"]["lr"]) == set(tables["decay"]["lr"]) == {0.1}
    assert set(tables["rate"]["curve"]) == {"u * v, decay 0.1", "u * v, decay 0.5", "w, decay 0.5"}
    largest = tables["metrics"][tables["metrics"]["lr"] == 0.1]
    assert (largest["zero_fraction"] == largest["zero_fraction_equal_updates"]).all()


def test_what_diverges_is_told():
    study = rescaling(
        ground((0,)),
        **{**SMALL, "lrs": (1.0, 3.0), "shown_lr": 3.0, "decays": (0.3,), "shown_decay": 0.3, "lasso": False},
    )
    tables = frames(study)
    gone = tables["metrics"].set_index(["arm", "lr"])["diverged"]
    assert gone["w", 3.0]
    assert np.isfinite(tables["metrics"]["train_loss"]).any()
    numbers = study.numbers(tables)
    assert numbers["diverged"]["value"] > 0.2
    assert numbers["decay_slope"]["value"] is None  # one decay has no slope
    assert "lasso_agreement" not in numbers


def test_a_stopped_part_has_no_rows():
    study = rescaling(ground((0,)), **SMALL)
    assert all(study.run(part, Calm(stop_at=1)) is None for part in study.parts())


def test_a_stopped_part_goes_on_exactly():
    study = rescaling(ground(), **SMALL)
    for part in ("u * v, lr 0.05, batch size 8", "w, lr 0.05, batch size 8"):
        whole = study.run(part, Calm())
        for question, updates in ((1, 0), (2, 500)):
            watch = Calm(stop_at=question)
            assert study.run(part, watch) is None
            assert watch.kept["updates"] == updates
            assert study.run(part, Calm(kept=watch.kept)) == whole
        assert study.run(part, Calm(due=True)) == whole


def test_statements_per_seed_leave_out_what_diverged():
    rows = [
        {"seed": seed, "decay": 10.0**k, "zeros": 0.1 * k + seed, "diverged": k == 3}
        for seed in (0, 1)
        for k in range(4)
    ]
    table = pd.DataFrame(rows)
    table.loc[table["decay"] == 1e3, "zeros"] = -100.0
    assert slopes(table, "decay", "zeros", (0, 1)) == pytest.approx([0.1, 0.1])
    assert rises(table, "decay", "zeros", (0, 1), 0.0) == [1, 1]
    assert means(table, "zeros", (0, 1, 2)) == [pytest.approx(0.1), pytest.approx(1.1), None]
    table.loc[1, "zeros"] = -0.01
    assert rises(table, "decay", "zeros", (0, 1), 0.0) == [0, 1]
    assert rises(table, "decay", "zeros", (0, 1), 0.02) == [1, 1]
    assert slopes(table.iloc[:1], "decay", "zeros", (0,)) == [None]
    assert differences([2.0, None], [0.5, 1.0]) == [1.5, None]
    assert ratios([1.0, 1.0], [2.0, 0.0]) == [0.5, None]


def test_a_net_has_zeros_and_its_control_has_none():
    study = rescaling_mlp(net_ground(), **NET)
    tables = frames(study)
    numbers = study.numbers(tables)
    assert list(numbers) == list(study.number_names())
    assert "60 rows" not in study.title
    assert "296 weights" in study.title  # 64 x 4 + 4 x 10
    product = tables["metrics"][tables["metrics"]["arm"] == "u * v"].groupby("decay")["zero_fraction"].mean()
    assert product[0.05] > 0.3 > product[0.001]
    assert numbers["control_lone_zeros"]["value"] < 0.01
    assert set(study.figures.values()) == set(tables)


def test_lone_zeros_stand_beside_others():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 0, 0], [0.05, 2, 0], [0, 0, 0]]))  # a dead unit and a dead input
        net[1].weight.copy_(torch.tensor([[0.0, 1, 0], [1, 1, 0]]))
        assert lone_zeros(net, 0.06) == pytest.approx((2 + 1) / (4 + 4))
        assert lone_zeros(net, 0.01) == pytest.approx((1 + 1) / (4 + 4))
        assert lone_zeros(net, 0.11) == pytest.approx(0 / 1)  # only the weight 2 is above 1.1, its row and column live
        assert lone_zeros(net, 3.0) is None


def test_a_net_starts_as_its_control_and_resumes_exactly():
    study = rescaling_mlp(net_ground(), **{**NET, "time": 12.0})
    product, plain = (study._start(1, arm) for arm in ("u * v", "w"))
    x = study.data.test_inputs
    torch.testing.assert_close(product(x), plain(x), rtol=0, atol=0)
    part = study.parts()[2]
    whole = study.run(part, Calm())
    stopping = Calm(stop_at=3)
    assert study.run(part, stopping) is None
    assert stopping.kept["step"] > 0
    assert study.run(part, Calm(kept=stopping.kept)) == whole


def test_nets_of_every_batch_size_count_as_diverged(small):
    study, tables = small
    tables = {name: table.copy() for name, table in tables.items()}
    assert study.numbers(tables)["diverged"]["value"] == 0
    other = tables["batch"]["batch_size"] != tables["metrics"]["batch_size"].iloc[0]
    assert other.any()
    tables["batch"].loc[other, "diverged"] = True
    expected = other.sum() / (len(tables["metrics"]) + other.sum())
    assert study.numbers(tables)["diverged"]["value"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"nonzero": 11}, "nonzero must be at most columns=10, got 11"),
        ({"rows": 0}, "rows must be a whole number from 1 on, got 0"),
        ({"noise": -0.1}, "noise must be finite and at least 0, got -0.1"),
        ({"threshold": float("nan")}, "threshold must be positive and finite, got nan"),
        ({"batch_sizes": (8, 41)}, "batch_sizes must be at most rows=40, got 41"),
        ({"time": 0.01}, "time = lr x updates must be at least one update"),
        ({"decays": (0.5, 0.1)}, "decays must ascend"),
        ({"decays": (0.5, 20.0)}, "decays times lrs must be at most 1"),
        ({"shown_lr": 0.2}, "shown_lr must be one of lrs"),
        ({"shown_batch_size": 9}, "shown_batch_size must be one of batch_sizes"),
    ],
)
def test_values_out_of_range(keys, message):
    with pytest.raises(ValueError, match=message):
        rescaling(ground(), **{**SMALL, **keys})


@pytest.mark.parametrize(
    ("where", "keys", "message"),
    [
        (ground(), {}, "trains on data"),
        (ground(data=digits(num_train=60, num_test=30)), {}, "trains a model"),
        (net_ground(), {"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        (net_ground(), {"time": 0.0}, "time must be positive and finite, got 0.0"),
        (net_ground(), {"shown_decay": 0.1}, "shown_decay must be one of decays"),
    ],
)
def test_values_out_of_range_of_the_net(where, keys, message):
    with pytest.raises(ValueError, match=message):
        rescaling_mlp(where, **{**NET, **keys})


def test_the_shown_curves_are_numbers(small):
    assert np.isfinite(small[1]["metrics"][["zero_fraction", "train_loss", "risk"]].to_numpy()).all()
