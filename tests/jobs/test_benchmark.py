"""The benchmark job, its ratios and its count of memory."""

import time
from functools import partial

import pytest
import torch
from torch import nn

from symlab.jobs.benchmark import as_text, benchmark, race_as_text
from symlab.optim.adam import adam
from symlab.optim.gd import gd
from symlab.optim.symo import symo
from symlab.rundir import BadInput, RunDir
from symlab.training.losses import auto
from symlab.training.step_times import FEWEST, ratio, state_bytes, time_steps
from tests.training.problems import regression, small_net

ALL = {"gd": partial(gd, lr=0.1), "adam": partial(adam, lr=0.1), "symo": partial(symo, lr=0.1)}


def run_job(run, **changes):
    settings = {"model": small_net, "data": regression, "optimizers": ALL, "loss": auto, "repeats": 3, "threads": 1}
    return benchmark(run, **(settings | changes))


def test_table_and_rows(tmp_path):
    run = RunDir.create(tmp_path)
    threads = torch.get_num_threads()
    outcome = run_job(run, reference="adam")
    assert torch.get_num_threads() == threads
    table = {row["optimizer"]: row for row in outcome.summary["table"]}
    assert list(table) == ["gd", "adam", "symo"]
    assert (table["adam"]["step_ratio"], table["adam"]["update_ratio"]) == (1.0, 1.0)
    assert table["gd"]["state_kib"] == 0
    parameters = outcome.summary["parameters"]
    assert table["adam"]["state_kib"] * 1024 == pytest.approx(2 * 4 * parameters, abs=64)  # two moments, float32
    rows = run.read_rows()
    assert sorted((row["repeat"], row["optimizer"]) for row in rows[3:6]) == [(6, "adam"), (6, "gd"), (6, "symo")]
    assert all(row["step_time_s"] >= row["update_time_s"] > 0 for row in rows)
    text = as_text(outcome.summary["table"], "adam")
    assert "step / adam's" in text
    assert text.count("\n") == 4
    assert table["gd"]["repeats"] == 3
    mine = [row["update_time_s"] for row in rows if row["optimizer"] == "gd"]
    assert table["gd"]["update_mean_ms"] == pytest.approx(1e3 * sum(mine) / 3)


def test_an_optimizer_against_the_cheapest_of_its_rivals(tmp_path):
    run = RunDir.create(tmp_path)
    (race,) = run_job(run, rivals={"symo": ["gd", "adam"]}).summary["rivals"]
    rows = run.read_rows()
    mean = {name: sum(row["update_time_s"] for row in rows if row["optimizer"] == name) for name in ALL}
    cheapest = min(("gd", "adam"), key=mean.__getitem__)
    assert race["cheapest"] == cheapest
    assert race["ratio_of_means"] == pytest.approx(mean["symo"] / mean[cheapest])
    pairs = ratio(rows, "update_time_s", "symo", cheapest)
    assert (race["median_ratio"], race["quartiles"]) == (pairs["median"], [pairs["low"], pairs["high"]])
    assert race_as_text(race).startswith(f"update of symo / {cheapest}, the cheapest of gd, adam: means")


def test_ratio_pairs_the_times_of_one_repeat():
    """A slow second that hits both optimizers of a repeat leaves their ratio alone."""
    times = [(0, 1.0, 2.0), (1, 10.0, 20.0), (2, 1.0, 3.0)]
    rows = [
        {"repeat": repeat, "optimizer": name, "step_time_s": value}
        for repeat, first, second in times
        for name, value in (("a", first), ("b", second))
    ]
    assert ratio(rows, "step_time_s", "b", "a")["median"] == 2.0


def test_a_ratio_leaves_out_repeats_that_only_one_took():
    rows = [{"repeat": r, "optimizer": n, "t": 1.0 + r} for r in range(3) for n in ("a", "b") if (r, n) != (1, "b")]
    assert ratio(rows, "t", "a", "b") == {"median": 1.0, "low": 1.0, "high": 1.0}


class Sleeper(torch.optim.SGD):
    """Needs the batch, and takes 20 ms to look at it."""

    def observe(self, loss, inputs, targets):
        assert len(inputs) == len(targets) == 4
        time.sleep(0.02)


def sleeper_and_plain():
    models = {name: nn.Linear(3, 1) for name in ("sleeper", "plain")}
    kinds = {"sleeper": Sleeper, "plain": torch.optim.SGD}
    return models, {name: kinds[name](models[name].parameters(), lr=0.1) for name in models}


def test_looking_at_the_batch_is_part_of_the_update():
    models, optimizers = sleeper_and_plain()
    rows = list(time_steps(models, optimizers, auto, torch.ones(4, 3), torch.ones(4, 1), repeats=3))
    assert all((row["update_time_s"] >= 0.02) == (row["optimizer"] == "sleeper") for row in rows)


def test_the_processor_s_clock_leaves_out_what_is_slept():
    models, optimizers = sleeper_and_plain()
    arguments = (models, optimizers, auto, torch.ones(4, 3), torch.ones(4, 1), 3)
    rows = list(time_steps(*arguments, clock=time.process_time))
    assert all(row["update_time_s"] < 0.02 for row in rows)


def test_a_benchmark_names_its_clock(tmp_path):
    run = RunDir.create(tmp_path)
    assert run_job(run, cpu_time=True, optimizers={"gd": ALL["gd"]}).summary["clock"] == "processor"


def test_a_slow_optimizer_takes_fewer_turns():
    models, optimizers = sleeper_and_plain()
    rows = list(time_steps(models, optimizers, auto, torch.ones(4, 3), torch.ones(4, 1), repeats=12, limit_s=0.1))
    turns = {name: [row["repeat"] for row in rows if row["optimizer"] == name] for name in models}
    assert turns == {"sleeper": list(range(FEWEST)), "plain": list(range(12))}


def test_every_optimizer_steps_its_own_model():
    models = {name: nn.Linear(3, 1) for name in ("one", "two")}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    before = {name: model.weight.detach().clone() for name, model in models.items()}
    rows = list(time_steps(models, optimizers, auto, torch.ones(4, 3), torch.ones(4, 1), repeats=4))
    turns = [tuple(row["optimizer"] for row in rows if row["repeat"] == repeat) for repeat in range(4)]
    assert {tuple(sorted(turn)) for turn in turns} == {("one", "two")}
    assert len(set(turns)) == 2  # now one is first, now the other
    assert all(not bool((models[name].weight == before[name]).any()) for name in models)


def test_state_bytes_counts_a_shared_tensor_once():
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    shared = torch.zeros(10, dtype=torch.float64)
    optimizer.state[parameter] = {"list": [shared, shared, torch.zeros(3)], "step": 4, "nested": {"x": shared}}
    assert state_bytes(optimizer) == 80 + 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizers": {}}, "optimizers is empty"),
        ({"reference": "sgd"}, "reference=sgd is not one of the optimizers: gd, adam, symo"),
        ({"rivals": {"sgd": ["adam"]}}, "rivals=sgd is not one of the optimizers: gd, adam, symo"),
        ({"rivals": {"symo": ["kfac"]}}, "rivals.symo=kfac is not one of the optimizers: gd, adam, symo"),
        ({"rivals": {"symo": []}}, "rivals.symo is empty"),
        ({"limit_s": 0.0}, "limit_s must be positive, got 0.0"),
        ({"repeats": 1}, "repeats must be at least 2, got 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"device": "tpu"}, "device must be"),
    ],
)
def test_bad_input(tmp_path, changes, message):
    run = RunDir.create(tmp_path)
    with pytest.raises(BadInput, match=message):
        run_job(run, **changes)
    assert run.read_rows() == []


def halves(model, inputs, generator):
    """Every weight as a product with a half: a constraint."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.utils.parametrize.register_parametrization(module, "weight", Half())
    return model


class Half(nn.Module):
    def forward(self, x):
        return x / 2


def test_a_constraint_is_timed_beside_the_plain_model_and_judged(tmp_path):
    two = {name: ALL[name] for name in ("gd", "adam")}
    expected = {"gd_halves": [0, 1e-9], "adam_halves": [0, 1e9]}
    outcome = run_job(RunDir.create(tmp_path), optimizers=two, constraint=halves, expected=expected)
    table = {row["optimizer"]: row for row in outcome.summary["table"]}
    assert list(table) == ["gd", "adam", "gd_halves", "adam_halves"]
    assert table["gd"]["step_ratio"] == 1.0
    found = outcome.summary["expected"]
    assert {name: row["verdict"] for name, row in found.items()} == {"gd_halves": "outside", "adam_halves": "within"}
    assert found["adam_halves"]["value"] == table["adam_halves"]["step_ratio"]
    with pytest.raises(BadInput, match=r"expected.adam_halfs: .*near it: adam_halves"):
        run_job(RunDir.create(tmp_path / "bad"), constraint=halves, expected={"adam_halfs": [0, 1]})
    two["gd_halves"] = ALL["gd"]
    with pytest.raises(BadInput, match=r"optimizers\.gd_halves: .*take another name"):
        run_job(RunDir.create(tmp_path / "taken"), optimizers=two, constraint=halves)
