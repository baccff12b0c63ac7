"""dcs_resnet on a few rows: the arms, exact resuming, divergence, numbers from made-up tables, and what is refused."""

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any

import pandas
import pytest
import torch

from symlab.data.digits import digits
from symlab.models.mlp import mlp
from symlab.optim.lbfgs import lbfgs
from symlab.optim.sgd import sgd
from symlab.protocols.dcs_resnet import dcs_resnet
from symlab.protocols.study import Ground, Tables
from symlab.schedules.cosine import cosine
from tests.protocols.watching import Calm


def ground(**other: Any) -> Ground:
    data = digits(num_train=32, num_test=16)  # on the smallest net that has all that matters: the command has a resnet
    made = Ground(
        seeds=(3, 4),
        device=torch.device("cpu"),
        dtype=torch.float32,
        data=data,
        model=partial(mlp, hidden=(8,)),
        optimizer=partial(sgd, lr=0.1, momentum=0.9),
        schedule=cosine,
    )
    return replace(made, **other)


KEYS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "evaluations": 2, "timed_steps": 2}


def without_times(tables: Tables | None) -> list[dict[str, Any]]:
    assert tables is not None
    return [{k: v for k, v in row.items() if k != "time_s"} for row in tables["metrics"]]


def test_arms_start_alike_see_the_same_batches_and_differ_in_u_w_and_decay() -> None:
    study = dcs_resnet(ground(), decay=0.5, threshold=0.05, **KEYS)
    vanilla, dcs = (study.run(f"{arm}, seed 3", Calm()) for arm in ("vanilla", "DCS"))
    assert vanilla is not None
    assert dcs is not None
    first, last = dcs["metrics"]
    assert (first["step"], last["step"], last["epoch"]) == (2, 4, 2.0)
    assert first["accuracy_collapsed"] is None
    assert 0 <= last["accuracy_collapsed"] <= 1
    assert last["parameters"] > 1.9 * vanilla["metrics"][-1]["parameters"]
    assert last["zero_fraction"] > vanilla["metrics"][-1]["zero_fraction"]
    layers = pandas.DataFrame(dcs["layers"])
    assert layers["tensor"].tolist() == ["layers.0", "layers.2"]
    weighted = (layers["zero_fraction"] * layers["entries"]).sum() / layers["entries"].sum()
    assert weighted == pytest.approx(last["zero_fraction"])
    same = dcs_resnet(ground(), decay=1e-12, **{**KEYS, "epochs": 1, "evaluations": 1})
    rows = [same.run(f"{arm}, seed 4", Calm()) for arm in ("vanilla", "DCS", "DCS without decay")]
    losses = [without_times(found)[0]["train_loss"] for found in rows]
    assert losses[1] == losses[2]  # no decay to speak of
    assert losses[0] == pytest.approx(losses[1], rel=0.2)  # the same first batch, then other steps
    assert losses[0] != losses[1]


def test_a_stopped_arm_goes_on_exactly() -> None:
    study = dcs_resnet(ground(), decay=0.1, **KEYS)
    whole = study.run("DCS, seed 3", Calm())
    watch = Calm(stop_at=6)  # two updates, an evaluation, one update
    assert study.run("DCS, seed 3", watch) is None
    assert watch.kept is not None
    assert watch.kept["step"] == 3
    watch.kept = copy.deepcopy(watch.kept)
    resumed = study.run("DCS, seed 3", Calm(kept=watch.kept))
    assert without_times(resumed) == without_times(whole)
    assert resumed["layers"] == whole["layers"]  # type: ignore[index]
    watch = Calm(due=True)
    study.run("DCS, seed 3", watch)
    assert watch.kept["step"] == 4  # type: ignore[index]


def test_an_evaluation_that_was_stopped_is_done_when_the_arm_goes_on() -> None:
    study = dcs_resnet(ground(), decay=0.1, **KEYS)
    whole = study.run("DCS, seed 3", Calm())
    stopped = []
    for question in range(1, 20):
        watch = Calm(stop_at=question)
        if study.run("DCS, seed 3", watch) is not None:
            break
        assert watch.kept is not None
        stopped.append((watch.kept["step"], len(watch.kept["rows"])))
        resumed = study.run("DCS, seed 3", Calm(kept=copy.deepcopy(watch.kept)))
        assert without_times(resumed) == without_times(whole)
    assert (2, 0) in stopped  # after the updates of the first evaluation, without its row
    assert (4, 1) in stopped


def test_a_net_that_diverges_is_said_and_not_measured() -> None:
    study = dcs_resnet(ground(optimizer=partial(sgd, lr=100.0, momentum=0.9)), decay=1e30, **KEYS)
    tables = study.run("DCS, seed 3", Calm())
    assert tables is not None
    assert tables["metrics"][-1]["diverged"] is True
    assert tables["metrics"][-1]["accuracy"] is None
    assert tables["layers"] == []


def test_times_are_taken_in_turns() -> None:
    study = dcs_resnet(ground(), **KEYS)
    assert [part for part in study.parts() if "time" in part] == ["time of steps, seed 3", "time of steps, seed 4"]
    assert len(study.parts()) == 2 + 6
    rows = study.run("time of steps, seed 3", Calm())["step_times"]  # type: ignore[index]
    assert [(row["repeat"], row["arm"]) for row in rows] == [(0, "DCS"), (0, "vanilla"), (1, "vanilla"), (1, "DCS")]
    assert all(row["step_time_s"] > 0 for row in rows)
    assert study.run("time of steps, seed 3", Calm(stop_at=2)) is None


def made_up(diverged: bool = False) -> dict[str, pandas.DataFrame]:
    """Numbers that can be checked by hand: seeds 3 and 4."""
    rows: list[dict[str, Any]] = []
    values = {"vanilla": (0.90, 0.92, 0.0), "DCS": (0.91, 0.90, 0.8), "DCS without decay": (0.5, 0.5, 0.01)}
    for arm, (a, b, zeros) in values.items():
        for seed, accuracy in ((3, a), (4, b)):
            row = {"arm": arm, "seed": seed, "parameters": 10 if arm == "vanilla" else 19, "diverged": False}
            rows.append({**row, "accuracy": 0.1, "zero_fraction": 0.0, "train_loss": 9.0, "accuracy_collapsed": None})
            end = {"accuracy": accuracy, "zero_fraction": zeros, "train_loss": accuracy / 2}
            rows.append({**row, **end, "accuracy_collapsed": accuracy - 0.004})
    if diverged:
        nothing = dict.fromkeys(("accuracy", "zero_fraction", "train_loss", "accuracy_collapsed"))
        rows.append({"arm": "DCS", "seed": 4, "parameters": 19, "diverged": True, **nothing})
    layers = [{"arm": "DCS", "seed": s, "zero_fraction": z} for s, z in ((3, 0.5), (3, 0.05), (4, 0.2), (4, 0.1))]
    layers = [row for row in layers if not (diverged and row["seed"] == 4)]
    times = [(3, 0, 1.0, 1.1), (3, 1, 2.0, 2.0), (3, 2, 1.0, 9.0), (4, 0, 1.0, 1.3)]
    step_times = [
        {"seed": seed, "repeat": repeat, "arm": arm, "step_time_s": t}
        for seed, repeat, *both in times
        for arm, t in zip(("vanilla", "DCS"), both, strict=True)
    ]
    tables = {"metrics": rows, "layers": layers, "step_times": step_times}
    return {name: pandas.DataFrame(table) for name, table in tables.items()}


def test_numbers_are_differences_within_a_seed() -> None:
    study = dcs_resnet(ground(), **KEYS)
    numbers = study.numbers(made_up())
    assert list(numbers) == list(study.number_names())
    found = {name: number["value"] for name, number in numbers.items()}
    assert found == pytest.approx(
        {
            "accuracy_vanilla": 0.91,
            "accuracy_dcs": 0.905,
            "accuracy_difference": -0.005,
            "train_loss_difference": -0.0025,
            "collapse_difference": -0.004,
            "zero_fraction_dcs": 0.8,
            "zero_fraction_vanilla": 0.0,
            "zero_fraction_without_decay": 0.01,
            "sparse_layers_dcs": 0.75,
            "step_time_ratio": (1.1 + 1.3) / 2,
            "parameters_ratio": 1.9,
            "diverged": 0,
        }
    )
    assert numbers["accuracy_difference"]["spread"] == pytest.approx(math.sqrt(2) * 0.015)


def test_a_diverged_seed_leaves_no_number_but_its_count() -> None:
    numbers = dcs_resnet(ground(), **KEYS).numbers(made_up(diverged=True))
    gone = {name for name, number in numbers.items() if number["value"] is None}
    assert gone == {
        *("accuracy_dcs", "accuracy_difference", "train_loss_difference", "collapse_difference", "zero_fraction_dcs"),
        "sparse_layers_dcs",
    }
    assert numbers["diverged"]["value"] == 1


@pytest.mark.parametrize(
    ("keys", "other", "message"),
    [
        ({"decay": 0.0}, {}, "decay must be positive"),
        ({"threshold": -1.0}, {}, "threshold must be"),
        ({"epochs": 0}, {}, "epochs must be at least 1"),
        ({"batch_size": 33}, {}, "from 2 to the 32 training rows, got 33"),
        ({"evaluations": 5}, {}, "at most the number of updates, 4, got 5"),
        ({}, {"data": None}, "data=digits"),
        ({}, {"model": None}, "name one"),
        ({}, {"optimizer": None}, "optimizer=sgd"),
        ({}, {"schedule": None}, "schedule=cosine"),
        ({}, {"optimizer": partial(sgd, lr=0.1, weight_decay=0.1)}, "must be there and 0, as the arms .* got 0.1"),
        ({}, {"optimizer": partial(lbfgs, lr=1.0)}, "must be there and 0, as the arms .* got none"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], other: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dcs_resnet(ground(**other), **{**KEYS, **keys})
