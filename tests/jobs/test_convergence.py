"""The job convergence: its tables against the pieces, resuming, and what it refuses."""

import signal
from functools import partial

import pytest
import torch

from symlab.curvature.layerwise_bound import lower_bound
from symlab.data.dataset import Dataset
from symlab.jobs import convergence as module
from symlab.jobs.convergence import convergence
from symlab.models.normalised_resnet import normalised_resnet
from symlab.plots.curvature_scales import curvature_scales
from symlab.plots.layer_terms import layer_terms
from symlab.plots.path_panels import path_panels
from symlab.rundir import BadInput, RunDir
from symlab.training.losses import auto

TABLES = ("metrics", "layers", "draws", "theorems")
PLOTS = {
    "loss": partial(path_panels, y="loss", guide="level"),
    "terms": layer_terms,
    "scales": curvature_scales,
    "growth": partial(path_panels, y="first_norm", guide="quarter"),
}
MODELS = {
    "skip": partial(normalised_resnet, widths=(4, 3)),
    "plain": partial(normalised_resnet, widths=(4, 3), normalisation="none", branch_norm=None, activation="softplus"),
}


def data(rows=4, classes=2):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(rows + 6, 5, generator=generator)
    labels = torch.arange(rows + 6) % classes
    return Dataset("five numbers", inputs[:rows], labels[:rows], inputs[rows:], labels[rows:], classes)


def run_job(run, **changes):
    settings = {"models": MODELS, "data": data, "loss": auto, "lr": 0.2, "steps": 8, "measures": 4, "seeds": (0, 1)}
    settings |= {"scales": (1.0, 1e4), "draws": 2, "draw_scales": (1.0, 10.0), "products": 20, "device": "cpu"}
    settings |= {"threads": 1, "promises": {"monotone": ["skip"], "positivity": ["skip"]}}
    return convergence(run, **(settings | changes))


def tables(run):
    return {name: run.read_rows(name) for name in TABLES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = RunDir.create(tmp_path_factory.mktemp("convergence"))
    return run, run_job(run, plots=PLOTS, expected={"monotone_skip": [1, 1], "bound_skip": [5, 6]})


def test_tables(whole):
    run, outcome = whole
    found = tables(run)
    assert len(found["metrics"]) == 2 * 4 * 4  # nets, starts, steps
    assert [row["step"] for row in found["metrics"][::4]] == [0, 1, 3, 8] * 2
    given = [row for row in found["draws"] if row["rows"] == "given"]
    assert len(given) == 2 * 2 * 2
    assert {row["rows"] for row in found["draws"]} == {"given", "repeated", "beyond"}
    assert len(found["theorems"]) == 16
    assert outcome.status == "completed"
    assert {key: value["verdict"] for key, value in outcome.summary["expected"].items()} == {
        "monotone_skip": "within",
        "bound_skip": "outside",
    }
    for name in PLOTS:
        assert (run.path / "figures" / f"{name}.png").stat().st_size > 10_000


def test_first_rows_are_those_of_the_net_itself(whole):
    row = next(r for r in whole[0].read_rows() if (r["variant"], r["seed"], r["scale"]) == ("skip", 1, 1.0))
    dataset = data().to("cpu", torch.float64)
    model = normalised_resnet((5,), 2, torch.Generator().manual_seed(1), widths=(4, 3)).double()
    found = lower_bound(model, dataset.train_inputs)
    assert row["regularity"] == pytest.approx(found.value)
    assert row["bound"] == pytest.approx(found.bound)
    assert row["loss"] == pytest.approx(float(auto(model(dataset.train_inputs), dataset.train_targets).detach()))
    layers = [r for r in whole[0].read_rows("layers") if (r["variant"], r["seed"]) == ("skip", 1)][:3]
    assert [r["term"] for r in layers] == pytest.approx([term.term for term in found.terms])


def test_plain_nets_blow_up_and_normalised_ones_do_not(whole):
    run, outcome = whole
    last = [row for row in run.read_rows() if row["step"] == 8]
    assert {(row["variant"], row["scale"]) for row in last if not row["alive"]} == {("plain", 1e4)}
    dead = next(row for row in last if not row["alive"])
    assert dead["loss"] is None
    verdicts = outcome.summary["theorems"]
    assert verdicts["monotone_skip"] == verdicts["bound_skip"] == verdicts["positivity_skip"] == "holds"
    assert verdicts["monotone_plain"] == "fails"


def test_random_nets_that_overflow_are_rows_without_numbers(tmp_path):
    """At 1e80 even the outputs of the plain net overflow, at 1e35 only the squares of its Jacobian do."""
    run = RunDir.create(tmp_path)
    outcome = run_job(run, steps=1, scales=(1.0,), draw_scales=(1.0, 1e35, 1e80), draws=1)
    rows = {row["scale"]: row for row in run.read_rows("draws") if (row["variant"], row["rows"]) == ("plain", "given")}
    assert rows[1.0]["regularity"] > 0
    assert rows[1e35]["loss"] > 1e60
    assert rows[1e80]["loss"] is rows[1e80]["regularity"] is rows[1e80]["hessian_largest"] is None
    assert outcome.status == "completed"


@pytest.mark.gpu
def test_cuda_makes_the_same_rows(tmp_path, whole):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    run = RunDir.create(tmp_path)
    run_job(run, device="cuda")
    for row, wanted in zip(run.read_rows(), whole[0].read_rows(), strict=True):
        assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-6)
        assert row["rises"] == wanted["rises"]


def test_controls_break_the_conditions(whole):
    for row in whole[0].read_rows("draws"):
        if row["rows"] == "repeated":
            assert row["regularity"] < 1e-20
        if row["rows"] == "beyond":
            assert row["carrier"] != "first"  # whose lambda is 0: more rows than inputs
    assert {row["carrier"] for row in whole[0].read_rows("draws") if row["variant"] == "skip"} > {"first"}


@pytest.mark.parametrize("after", [3, 15])
def test_a_stopped_run_goes_on_exactly(whole, tmp_path, monkeypatch, after):
    """Stopped at the `after`-th look at the stop signal: during the draws, and on the way."""
    run, looks = RunDir.create(tmp_path), 0
    asked = module.StopRequest.__call__

    def look(self):
        nonlocal looks
        looks += 1
        if looks == after:
            self.receive(signal.SIGTERM)
        return asked(self)

    monkeypatch.setattr(module.StopRequest, "__call__", look)
    outcome = run_job(run)
    assert (outcome.status, outcome.exit_code) == ("interrupted", 143)
    outcome = run_job(RunDir(run.path))
    assert outcome.status == "completed"
    assert tables(run) == tables(whole[0])


def test_rows_after_the_last_checkpoint_are_made_again(whole, tmp_path, monkeypatch):
    """As of a process that was killed: its rows are on disk, its checkpoint is older."""
    run, steps = RunDir.create(tmp_path), 0
    advance = module.ManyStarts.advance

    def dies(self):
        nonlocal steps
        steps += 1
        if steps == 6:
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(module.ManyStarts, "advance", dies)
    with pytest.raises(KeyboardInterrupt):
        run_job(run, checkpoint_every_s=1e9)
    monkeypatch.undo()
    assert run.read_rows()
    assert not run.has_checkpoint("last")
    run_job(RunDir(run.path))
    assert tables(run) == tables(whole[0])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"lr": 0.0}, ["lr", "0.0"]),
        ({"level": float("nan")}, ["level", "nan"]),
        ({"steps": 0}, ["steps", "0"]),
        ({"measures": 1}, ["measures", "1"]),
        ({"scales": [1.0, -1.0]}, ["scales", "-1.0"]),
        ({"draw_scales": []}, ["draw_scales"]),
        ({"seeds": [0, 0]}, ["seeds", "[0, 0]"]),
        ({"models": {}}, ["models"]),
        ({"plots": {"curves": path_panels}}, ["plots.curves", "loss", "growth"]),
        ({"promises": {"speed": ["skip"]}}, ["promises.speed", "monotone"]),
        ({"promises": {"growth": ["chain"]}}, ["promises.growth", "chain", "plain"]),
        ({"expected": {"monotone_chain": [0, 1]}}, ["monotone_chain", "monotone_plain"]),
        ({"data": partial(data, rows=1500)}, ["3000", "2000"]),
    ],
)
def test_bad_values_are_named(tmp_path, keys, words):
    with pytest.raises(BadInput) as caught:
        run_job(RunDir.create(tmp_path), **keys)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_controls_need_more_rows_than_inputs(tmp_path):
    def few():
        whole = data()
        return Dataset("few", whole.train_inputs, whole.train_targets, whole.test_inputs[:1], whole.test_targets[:1], 2)

    with pytest.raises(BadInput, match="controls=true needs 6 rows"):
        run_job(RunDir.create(tmp_path), data=few)
    assert run_job(RunDir.create(tmp_path), data=few, controls=False, steps=1, scales=(1.0,)).status == "completed"
