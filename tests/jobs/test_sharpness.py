"""The job sharpness: its rows against descent and Hessians by hand, resuming, and what it refuses."""

import signal
from functools import partial

import pytest
import torch
from torch import nn

from symlab.curvature.smoothness import Landscape, LostInRoundingError
from symlab.data.dataset import Dataset
from symlab.jobs import sharpness as module
from symlab.jobs.sharpness import sharpness, summary_numbers
from symlab.plots.edge_of_stability import edge_of_stability
from symlab.rundir import BadInput, RunDir
from symlab.training.losses import auto


def data(rows=9):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(rows + 3, 5, generator=generator)
    labels = torch.arange(rows + 3) % 3
    return Dataset("five numbers", inputs[:rows], labels[:rows], inputs[rows:], labels[rows:], 3)


def with_norm(input_shape, output_size, generator, *, width=6, gain=1.0):
    model = nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, output_size))
    for p in (model[0].weight, model[3].weight):
        nn.init.normal_(p, std=gain * p.shape[1] ** -0.5, generator=generator)
    for p in (model[0].bias, model[3].bias):
        nn.init.zeros_(p)
    return model


def run_job(run, **changes):
    settings = {"models": {"norm": with_norm}, "data": data, "loss": auto, "plot": edge_of_stability, "lr": 0.3}
    settings |= {"steps": 5, "every": 2, "products": 60, "tolerance": 1e-6, "seeds": (0, 1), "dtype": "float64"}
    return sharpness(run, **(settings | {"device": "cpu", "threads": 1} | changes))


def by_hand(seed, steps, rows):
    """(loss, eigenvalues) before update 0, 2, 4 and after the last one, batch norm in training mode."""
    model = with_norm((5,), 3, torch.Generator().manual_seed(seed)).double().train()
    dataset = data().to("cpu", torch.float64)
    found = []
    for step in range(steps + 1):
        if step % 2 == 0 or step == steps:
            inputs, targets = dataset.train_inputs[:rows], dataset.train_targets[:rows]
            names = [name for name, _ in model.named_parameters()]

            def value(*parts, names=names, inputs=inputs, targets=targets):
                own = dict(zip(names, parts, strict=True)) | {k: b.clone() for k, b in model.named_buffers()}
                return auto(torch.func.functional_call(model, own, (inputs,)), targets)

            parts = tuple(p.detach() for p in model.parameters())
            blocks = torch.autograd.functional.hessian(value, parts)
            sizes = [p.numel() for p in parts]
            matrix = torch.cat(
                [torch.cat([b.reshape(n, m) for b, m in zip(row, sizes, strict=True)], 1)
                 for row, n in zip(blocks, sizes, strict=True)]
            )  # fmt: skip
            loss = float(auto(model(dataset.train_inputs), dataset.train_targets).detach())
            found.append((loss, torch.linalg.eigvalsh(matrix)))
        model.zero_grad()
        auto(model(dataset.train_inputs), dataset.train_targets).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.3 * p.grad
    return found


@pytest.mark.parametrize("rows", [None, 6])
def test_rows_are_those_of_descent_by_hand(tmp_path, rows):
    run = RunDir.create(tmp_path)
    outcome = run_job(run, rows=rows, expected={"late_norm": [0, 100], "crossing_norm": [0, 1]})
    found = run.read_rows()
    assert [(row["seed"], row["step"]) for row in found] == [(s, t) for s in (0, 1) for t in (0, 2, 4, 5)]
    for seed in (0, 1):
        own = [row for row in found if row["seed"] == seed]
        for row, (loss, values) in zip(own, by_hand(seed, 5, rows), strict=True):
            assert row["loss"] == pytest.approx(loss, rel=1e-10)
            assert row["hessian_largest"] == pytest.approx(float(values[-1]), rel=1e-5)
            assert row["hessian_smallest"] == pytest.approx(float(values[0]), rel=1e-4, abs=1e-6)
            assert row["edge_ratio"] == pytest.approx(float(values[-1]) * 0.15, rel=1e-5)
    assert outcome.status == "completed"
    assert outcome.summary["expected"]["late_norm"]["verdict"] == "within"
    assert (run.path / "figures" / "edge_of_stability.png").stat().st_size > 10_000


def test_a_net_that_diverges_is_counted(tmp_path):
    run = RunDir.create(tmp_path)
    models = {"norm": with_norm, "steep": partial(linear, gain=1e3)}
    outcome = run_job(run, models=models, data=regression, lr=50.0, steps=400, every=200)
    assert outcome.summary["diverged"]["steep"] == 2
    last = [row for row in run.read_rows() if row["variant"] == "steep"][-1]
    assert last["diverged"]
    assert last["loss"] is None
    assert outcome.summary["numbers"]["late_steep"]["value"] is None
    assert outcome.summary["numbers"]["largest_steep"]["value"] > 1


def test_a_hessian_that_overflows_before_its_loss_is_a_divergence(tmp_path):
    """y = w x with inputs of 1e20 and weights of 1e-20: outputs of 1, second derivatives of 1e40, no float32 number."""

    def large():
        whole = regression()
        inputs = 1e20 * whole.train_inputs
        return Dataset("large", inputs, whole.train_targets, inputs, whole.train_targets)

    run = RunDir.create(tmp_path)
    outcome = run_job(run, models={"small": small}, data=large, dtype="float32", seeds=(0,))
    assert outcome.summary["diverged"] == {"small": 1}
    (row,) = run.read_rows()
    assert (row["step"], row["diverged"]) == (0, True)


def test_a_hessian_lost_in_rounding_is_a_row_without_it_and_no_divergence(tmp_path, monkeypatch):
    def lost(self, **keys):
        raise LostInRoundingError("lost")

    monkeypatch.setattr(Landscape, "extremes", lost)
    run = RunDir.create(tmp_path)
    outcome = run_job(run, models={"norm": with_norm}, seeds=(0,))
    rows = run.read_rows()
    assert all(row["loss"] > 0 and row["hessian_largest"] is None and not row["diverged"] for row in rows)
    assert outcome.summary["diverged"] == {"norm": 0}
    assert outcome.summary["numbers"]["largest_norm"]["value"] is None
    assert outcome.summary["numbers"]["loss_norm"]["value"] == pytest.approx(rows[-1]["loss"])


def small(input_shape, output_size, generator):
    model = nn.Linear(5, output_size, bias=False)
    nn.init.normal_(model.weight, std=1e-20, generator=generator)
    return model


def linear(input_shape, output_size, generator, *, gain):
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, output_size, bias=False))
    for p in model.parameters():
        nn.init.normal_(p, std=gain, generator=generator)
    return model


def regression():
    whole = data()
    return Dataset("r", whole.train_inputs, whole.train_inputs[:, :2], whole.test_inputs, whole.test_inputs[:, :2])


def test_a_stopped_run_does_the_rest(tmp_path, monkeypatch):
    whole, run, looks = RunDir.create(tmp_path), RunDir.create(tmp_path), 0
    run_job(whole)
    asked = module.StopRequest.__call__

    def look(self):
        nonlocal looks
        looks += 1
        if looks == 11:  # in the second trial
            self.receive(signal.SIGINT)
        return asked(self)

    monkeypatch.setattr(module.StopRequest, "__call__", look)
    outcome = run_job(run)
    assert (outcome.status, outcome.exit_code) == ("interrupted", 130)
    assert {row["seed"] for row in run.read_rows()} == {0}
    assert run_job(RunDir(run.path)).status == "completed"
    assert run.read_rows() == whole.read_rows()


def test_numbers():
    def trial(seed, ratios, losses):
        return [
            {"variant": "a", "seed": seed, "step": 10 * i, "edge_ratio": r, "loss": v, "diverged": False}
            for i, (r, v) in enumerate(zip(ratios, losses, strict=True))
        ]

    rows = [*trial(0, (0.1, 0.5, 1.2, 0.9), (3, 2, 1, 0.5)), *trial(1, (0.3, 1.1, 1.4, 1.0), (3, 2, 1, 0.7))]
    numbers = summary_numbers(rows, ["a"])
    assert numbers["initial_a"]["value"] == pytest.approx(0.2)
    assert numbers["late_a"]["value"] == pytest.approx(0.95)
    assert numbers["largest_a"]["value"] == pytest.approx(1.3)
    assert numbers["crossing_a"]["value"] == pytest.approx(15)
    assert numbers["loss_a"]["value"] == pytest.approx(0.6)
    assert summary_numbers(trial(0, (0.1, 0.2), (2, 1)), ["a"])["crossing_a"]["value"] is None
    lost = summary_numbers(trial(0, (0.1, 0.2, 0.3, 0.2, None), (4, 3, 2, 1, 0)), ["a"])
    assert lost["late_a"]["value"] is None
    assert lost["largest_a"]["value"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"models": {}}, ["models"]),
        ({"lr": float("inf")}, ["lr", "inf"]),
        ({"steps": 0}, ["steps", "0"]),
        ({"products": 0}, ["products", "0"]),
        ({"tolerance": 0.0}, ["tolerance", "0.0"]),
        ({"seeds": []}, ["seeds"]),
        ({"rows": 10}, ["rows=10", "9"]),
        ({"rows": 1}, ["batch norm"]),
        ({"dtype": "bfloat16"}, ["bfloat16", "float64"]),
        ({"expected": {"late_chain": [0, 1]}}, ["late_chain", "late_norm"]),
    ],
)
def test_bad_values_are_named(tmp_path, keys, words):
    with pytest.raises(BadInput) as caught:
        run_job(RunDir.create(tmp_path), **keys)
    assert all(word in str(caught.value) for word in words), str(caught.value)
