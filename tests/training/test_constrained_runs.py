"""`train` with a constraint: the same start, exact continuation, averages, and what the command line offers."""

import inspect
from functools import partial

import pytest
import torch
import yaml

from symlab.cli.listing import config_dir
from symlab.cli.names import resolve
from symlab.constraint.options.diagonal import diagonal
from symlab.constraint.options.elementwise import elementwise
from symlab.constraint.options.none import none
from symlab.constraint.options.shift import shift
from symlab.constraint.restore_symmetry import restore_symmetry
from symlab.optim.sgd import sgd
from symlab.rundir import BadInput, RunDir
from symlab.training.build import build_model
from tests.jobs.test_train import SignalAt, assert_same_runs, no_plot
from tests.training.problems import OPTIMIZERS, regression, run_job, small_net

DECAYING = partial(sgd, lr=0.05, momentum=0.9, weight_decay=0.1)


def built(seed, constraint=None):
    return build_model(small_net, regression(), seed, torch.device("cpu"), torch.float64, constraint)


@pytest.mark.parametrize("constraint", [shift, diagonal, elementwise])
def test_the_weights_are_at_first_those_without_it(constraint):
    plain, under, other = built(3), built(3, constraint), built(4, constraint)
    for k in (0, 2):
        torch.testing.assert_close(under[k].weight, plain[k].weight, rtol=1e-12, atol=1e-14)
        assert not torch.allclose(under[k].weight, other[k].weight)
    shifts = [dict(model.named_buffers()).get("0.parametrizations.weight.0.shift") for model in (under, other)]
    assert (shifts[0] is None) == (constraint is elementwise)
    assert shifts[0] is None or not torch.allclose(shifts[0], shifts[1])


@pytest.mark.parametrize("optimizer", [DECAYING, OPTIMIZERS["adam"], OPTIMIZERS["symo"]], ids=["sgd", "adam", "symo"])
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path, optimizer):
    settings = {"optimizer": optimizer, "constraint": shift, "plot": no_plot, "batch_size": 3, "epochs": 2, "ema": 0.8}
    straight, stopped = RunDir.create(tmp_path), RunDir.create(tmp_path)
    run_job(straight, **settings)
    outcome = run_job(stopped, loss=SignalAt(3), **settings)
    assert (outcome.status, outcome.summary["step"]) == ("interrupted", 3)
    assert run_job(stopped, **settings).status == "completed"
    assert_same_runs(stopped, straight)
    last, best = (straight.load_checkpoint(name) for name in ("last", "best"))
    drawn = built(0, shift).state_dict()
    for name, value in drawn.items():
        if name.endswith("shift"):  # constants, in the average too
            assert all(torch.equal(state[name], value) for state in (last["model"], last["weight_average"]))
        else:
            assert not torch.equal(last["model"][name], value)
    model = built(1, shift)
    model.load_state_dict(best["model"])
    outputs = model(regression().test_inputs)
    assert torch.equal(restore_symmetry(model)(regression().test_inputs), outputs)


def test_decay_moves_the_run_and_without_it_the_shift_does_not(tmp_path):
    def losses(name, **changes):
        run = RunDir.create(tmp_path / name)
        run_job(run, plot=no_plot, epochs=5, **changes)
        return torch.tensor([row["test_loss"] for row in run.read_rows()], dtype=torch.float64)

    large = partial(shift, sigma=1.0)
    without = [losses(f"{i}", optimizer=partial(sgd, lr=0.05), constraint=c) for i, c in enumerate((None, large))]
    torch.testing.assert_close(*without, rtol=1e-10, atol=1e-12)
    with_decay = [losses(f"d{i}", optimizer=DECAYING, constraint=c) for i, c in enumerate((None, large))]
    assert with_decay[0][0] == pytest.approx(float(with_decay[1][0]), rel=1e-10)
    assert (with_decay[0] - with_decay[1])[-1].abs() > 1e-3


def test_an_accumulated_run_is_the_plain_one_to_rounding(tmp_path):
    settings = {"constraint": shift, "optimizer": DECAYING, "plot": no_plot, "epochs": 3}
    runs = [RunDir.create(tmp_path) for _ in range(2)]
    for run, more in zip(runs, ({}, {"accumulate": 2}), strict=True):
        run_job(run, **settings, **more)
    one, other = (run.read_rows()[-1]["test_loss"] for run in runs)
    assert one == pytest.approx(other, rel=1e-10)


@pytest.mark.slow
def test_a_compiled_run_is_the_plain_one_to_rounding(tmp_path):
    settings = {"constraint": shift, "optimizer": DECAYING, "plot": no_plot, "epochs": 3}
    runs = [RunDir.create(tmp_path) for _ in range(2)]
    for run, compiled in zip(runs, (False, True), strict=True):
        run_job(run, compile=compiled, **settings)
    one, other = (run.read_rows()[-1]["test_loss"] for run in runs)
    assert one == pytest.approx(other, rel=1e-9)


def test_the_summary_says_how_sparse_constrained_weights_are_and_none_changes_nothing(tmp_path):
    found, runs = {}, {}
    for name, constraint in {"plain": None, "none": none, "product": elementwise, "shift": shift}.items():
        runs[name] = RunDir.create(tmp_path / name)
        outcome = run_job(runs[name], constraint=constraint, plot=no_plot, epochs=2)
        found[name] = outcome.summary["constrained_zero_fraction"]
    assert_same_runs(runs["plain"], runs["none"])
    assert found == {"plain": None, "none": None, "product": 0.0, "shift": None}


def test_a_checkpoint_of_another_constraint_is_refused(tmp_path):
    run = RunDir.create(tmp_path)
    run_job(run, constraint=shift, plot=no_plot, epochs=2)
    with pytest.raises(BadInput, match=r"parametrizations\.weight"):
        run_job(run, plot=no_plot, epochs=3)


@pytest.mark.parametrize("name", ["shift", "diagonal"])
def test_the_option_has_the_keys_and_defaults_of_its_function(name):
    node = yaml.safe_load((config_dir() / "constraint" / f"{name}.yaml").read_text())
    function = resolve("constraint", node.pop("_target_"))
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = inspect.signature(function).parameters
    assert node == {key: p.default for key, p in parameters.items() if p.kind is keyword}
