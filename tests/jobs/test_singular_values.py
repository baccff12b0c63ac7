"""The job singular-values: against hand-made nets and descents, resumed, stopped, diverged, and what it refuses."""

import os
import signal
from functools import partial

import numpy as np
import pytest
import torch

from symlab.jobs.singular_values import singular_values
from symlab.models.random_matrix import random_matrix
from symlab.optim.gd import gd
from symlab.plots.singular_value_evolution import singular_value_evolution, variant_loss
from symlab.plots.singular_value_histogram import singular_value_histogram
from symlab.rundir import BadInput, RunDir
from symlab.training.losses import auto
from tests.reference_spectrum import jacobian
from tests.training.problems import classification, regression, small_net

FIGURES = {"histogram": singular_value_histogram, "evolution": singular_value_evolution, "loss": variant_loss}
NETS = {"plain": small_net, "normed": partial(small_net, batch_norm=True)}


def run_job(run, **changes):
    settings = {"models": NETS, "data": classification, "optimizer": partial(gd, lr=0.2), "loss": auto}
    settings |= {"rows": 6, "steps": 3, "iterations": (0, 2), "trials": 2, "dtype": "float64", "device": "cpu"}
    settings |= {"limits": (0.0, 3.0), "loss_window": (1, 2), "threads": 1, "progress": False}
    return singular_values(run, **(settings | changes))


def of(rows, **wanted):
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def test_random_matrices(tmp_path):
    """The way of Figure 1: no training, the law beside the histogram."""
    run, n = RunDir.create(tmp_path), 30
    data = partial(regression, rows=3)

    def square(input_shape, output_size, generator, *, skip):
        return torch.nn.Sequential(random_matrix((n,), n, generator, skip=skip))

    def wide():
        toy = data()
        inputs, targets = torch.randn(3, n, dtype=torch.float64), torch.randn(3, n, dtype=torch.float64)
        return type(toy)("square", inputs, targets, inputs, targets)

    outcome = run_job(
        run, models={"A": partial(square, skip=False), "B": partial(square, skip=True)}, data=wide, rows=1, steps=0,
        iterations=(0,), loss_window=None, plots=FIGURES, laws={"A": "a", "B": "i_plus_a"}, seed=5, method="svd",
        expected={"max_A": [0.0, 2.0], "min_B": [5.0, 6.0]}, thresholds=(0.25,),
    )  # fmt: skip
    assert outcome.status == "completed"
    assert {key: found["verdict"] for key, found in outcome.summary["expected"].items()} == {
        "max_A": "within",
        "min_B": "outside",
    }
    tables = run.read_rows(), run.read_rows("histogram")
    for trial in (5, 6):
        A = random_matrix((n,), n, torch.Generator().manual_seed(trial)).linear.weight.detach().double()
        for name, matrix in (("A", A), ("B", A + torch.eye(n))):
            truth = torch.linalg.svdvals(matrix).flip(0)
            (row,) = of(tables[0], trial=trial, variant=name)
            assert (row["max"], row["min"]) == pytest.approx((float(truth[-1]), float(truth[0])), abs=1e-12)
            assert row["median"] == pytest.approx(float(truth.quantile(0.5)))
            assert row["below_0_25"] == pytest.approx(float((truth < 0.25).double().mean()))
            np.testing.assert_allclose(run.read_arrays(f"trial_{trial}")[f"{name}_values"][0], truth, atol=1e-12)
            bins = of(tables[1], trial=trial, variant=name, kind="measured")
            counts, _ = np.histogram(truth, 32, (0, 3), density=False)
            np.testing.assert_allclose([row["density"] for row in bins], counts / n / (3 / 32), atol=1e-12)
    law = of(tables[1], kind="law", variant="B")
    assert sum(row["density"] * (row["high"] - row["low"]) for row in law) == pytest.approx(1, abs=2e-3)
    assert sorted(path.name for path in (run.path / "figures").glob("*.png")) == ["singular_value_histogram.png"]


def by_hand(factory, trial, steps, rows):
    """Gradient descent on the trial's rows, written out: losses and the net after `steps` updates."""
    net = factory((4,), 3, torch.Generator().manual_seed(trial)).double().train()
    inputs, targets = rows
    losses = []
    for _ in range(steps):
        net.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(inputs), targets)
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.2 * p.grad
    return losses, net


@pytest.mark.parametrize("norm", ["train", "eval"])
@pytest.mark.parametrize("batch", ["joint", "per_sample"])
def test_along_a_descent(tmp_path, norm, batch):
    """Loss before every update, and the Jacobian of a stretch after two of them, in the mode that was asked for."""
    run = RunDir.create(tmp_path)
    run_job(run, norm=norm, batch=batch, start="1", method="svd", rows=12, loss_window=None, trials=1)
    data = classification()
    rows = data.train_inputs, data.train_targets  # all 12, in whatever order: no number depends on it
    for name, factory in NETS.items():
        losses, net = by_hand(factory, 0, 2, rows)
        own = of(run.read_rows(), variant=name)
        assert [row["step"] for row in own] == [0, 1, 2, 3]
        assert [row["loss"] for row in own][:2] == pytest.approx(losses)
        assert own[3]["loss"] is None
        assert [row["max"] is None for row in own] == [False, True, False, True]
        net.train(norm == "train")
        for module in net.modules():
            module.track_running_stats = norm == "eval"
        point = net[0](rows[0]).detach()
        J = jacobian(net[1:], point).reshape(12, 3, 12, 5)
        parts = [J[b, :, b] for b in range(12)] if batch == "per_sample" else [J.reshape(36, 60)]
        truth = torch.cat([torch.linalg.svdvals(part) for part in parts]).sort().values
        np.testing.assert_allclose(run.read_arrays("trial_0")[f"{name}_values"][1], truth, atol=1e-10)
        assert own[2]["mean"] == pytest.approx(float(truth.mean()))


def tables_of(run):
    return [run.read_rows(table) for table in ("metrics", "histogram", "trials", "tests")]


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    """One that a signal stopped in its second trial, and one that is to have more trials."""
    whole, stopped = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(whole, trials=3)
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        return auto(outputs, targets)

    outcome = run_job(stopped, loss=loss)
    assert (outcome.status, outcome.exit_code, outcome.summary["trials"]) == ("interrupted", 143, 1)
    assert outcome.summary["expected"] == {}
    outcome = run_job(stopped, trials=3)
    assert (outcome.status, outcome.exit_code, outcome.summary["trials"]) == ("completed", 0, 3)
    assert tables_of(stopped) == tables_of(whole)
    assert outcome.summary["numbers"] == whole.read_summary()["numbers"]
    before = (stopped.path / "arrays" / "trial_0.npz").read_bytes()
    run_job(stopped, trials=3)
    assert (stopped.path / "arrays" / "trial_0.npz").read_bytes() == before
    assert tables_of(stopped) == tables_of(whole)


def test_mini_batches_of_all_rows(tmp_path):
    full, small = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(full, steps=4, iterations=2)
    run_job(small, steps=4, iterations=2, batch_size=5)
    first, second = full.read_rows(), small.read_rows()
    assert [row["step"] for row in first if row["max"] is not None] == [0, 2, 4] * 4
    assert [row["max"] for row in first if row["step"] == 0] == [row["max"] for row in second if row["step"] == 0]
    assert [row["loss"] for row in first if row["step"] == 0] != [row["loss"] for row in second if row["step"] == 0]


class Loud(torch.nn.Module):
    """Outputs whose squares overflow; its Jacobian does not."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return 1e155 * self.net(x)


def explosive(*arguments):
    return Loud(small_net(*arguments))


def test_divergence_is_counted(tmp_path):
    run = RunDir.create(tmp_path)
    outcome = run_job(run, models={"calm": small_net, "wild": explosive}, steps=3, data=regression, plots=FIGURES)
    assert outcome.status == "completed"
    assert outcome.summary["diverged"] == {"calm": 0, "wild": 2}
    assert {row["status"] for row in of(run.read_rows("trials"), variant="wild")} == {"diverged"}
    assert outcome.summary["numbers"]["loss_wild"]["value"] == float("inf")
    (test,) = of(run.read_rows("tests"), quantity="loss")
    assert (test["difference"], test["larger"]) == (float("inf"), 2)
    (first,) = of(run.read_rows(), variant="wild", trial=0)
    assert 1e154 < first["max"] < 1e157
    alone = RunDir.create(tmp_path)
    outcome = run_job(alone, models={"wild": explosive}, data=regression)
    assert (outcome.status, outcome.exit_code) == ("diverged", 3)


def test_products_alone(tmp_path):
    """The spectrum without a matrix, with its errors in the table."""
    run = RunDir.create(tmp_path)
    outcome = run_job(run, method="lanczos", probes=2, lanczos_steps=4, trials=1, plots=FIGURES)
    assert outcome.summary["computed"]["plain"] == "lanczos: 1 of 18 x 24, never a matrix; 2 probes of 4 steps"
    for row in run.read_rows():
        measured = row["step"] in (0, 2)
        assert (row["max_error"] is not None) == (row["mean_error"] is not None) == measured
        assert row["method"] == ("lanczos" if measured else None)
    drawn = {path.name for path in (run.path / "figures").glob("*.png")}
    assert drawn == {f"{plot.__name__}.png" for plot in FIGURES.values()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": {}}, "models: there is none"),
        ({"start": "layer"}, "models.plain: the model has no module 'layer'"),
        ({"batch": "each"}, "batch must be one of joint, per_sample, got 'each'"),
        ({"norm": "off"}, "norm must be one of train, eval, got 'off'"),
        ({"method": "qr"}, "method must be one of auto, gram, svd, lanczos"),
        ({"memory_gib": 0.0}, "memory_gib must be positive, got 0"),
        ({"probes": 1}, "probes must be at least 2, got 1"),
        ({"rows": 13}, "rows=13 is more than the 12 training rows"),
        ({"rows": 1}, "batches of one row cannot train batch norm"),
        ({"batch_size": 13}, "batch_size=13 does not fit the 12 training rows"),
        ({"iterations": (0, 4)}, r"iterations=\[0, 4\]: at least one number between 0 and steps=3"),
        ({"iterations": 0}, "iterations must be finite and at least 1, got 0"),
        ({"limits": (2.0, 1.0)}, r"limits=\[2.0, 1.0\]"),
        ({"thresholds": (0.0,)}, "thresholds"),
        ({"loss_window": (1, 3)}, r"loss_window=\[1, 3\]: \[first, last\] with 0 <= first <= last < steps=3"),
        ({"laws": {"plain": "b"}}, r"laws.plain=b: a variant \(plain, normed\) and its law \(a, i_plus_a\)"),
        ({"plots": {"bars": variant_loss}}, "plots.bars: the figures of this job are histogram, evolution, loss"),
        ({"expected": {"mean_res": [0, 1]}}, "expected.mean_res: the summary of this run has no number of that name"),
        ({"trials": 0}, "trials must be finite and at least 1, got 0"),
        ({"dtype": "int8"}, "dtype must be one of"),
    ],
)
def test_what_it_refuses(tmp_path, changes, message):
    run = RunDir.create(tmp_path)
    with pytest.raises(BadInput, match=message):
        run_job(run, **changes)
    assert not (run.path / "metrics.csv").exists()
