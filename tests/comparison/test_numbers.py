"""Numbers of published tables, from rows made by hand."""

import json

import pytest

from symlab.comparison.numbers import losses_at, names, numbers, reached_targets, references_of


def result(optimizer, seed, status="completed", references=None):
    text = json.dumps(references if references is not None else {"fit": 1.0 + seed})
    return {"optimizer": optimizer, "seed": seed, "status": status, "references": text}


def curve(optimizer, seed, losses):
    return [
        {"optimizer": optimizer, "seed": seed, "step": 10 * i, "test_loss": loss, "time_s": 0.1 * i}
        for i, loss in enumerate(losses)
    ]


RESULTS = [result("a", 0), result("a", 1), result("b", 0, "failed", {}), result("b", 1, "diverged")]
CURVES = [*curve("a", 0, [5, 1.25, 0.5]), *curve("a", 1, [5, 3, 2.5]), *curve("b", 1, [5, 0.1])]


def test_references_of_a_failed_run_are_those_of_its_seed():
    assert references_of(RESULTS) == {0: {"fit": 1.0}, 1: {"fit": 2.0}}
    assert references_of(RESULTS[::-1]) == references_of(RESULTS)


def test_targets_follow_each_seed_and_count_every_run():
    rows = {(r["optimizer"], r["seed"], r["target"]): r for r in reached_targets(RESULTS, CURVES, [0.5])}
    assert len(rows) == 8
    assert rows["a", 0, "1.3 x fit"]["level"] == pytest.approx(1.3)
    assert (rows["a", 0, "1.3 x fit"]["step"], rows["a", 1, "1.3 x fit"]["step"]) == (10, 20)
    assert rows["a", 0, "0.5"]["step"] == 20
    assert rows["a", 1, "0.5"]["step"] is None
    assert rows["b", 0, "1.3 x fit"] == {
        "optimizer": "b", "seed": 0, "target": "1.3 x fit", "level": pytest.approx(1.3), "step": None, "seconds": None,
    }  # fmt: skip
    assert rows["b", 1, "0.5"]["step"] is None  # it diverged after it was there


def test_losses_at_steps_keep_runs_that_ended_early():
    rows = {(r["optimizer"], r["step"]): r for r in losses_at(RESULTS, CURVES, [10, 20])}
    assert rows["a", 10]["median"] == pytest.approx(2.125)
    assert rows["a", 20]["mean"] == pytest.approx(1.5)
    assert rows["b", 10]["median"] == float("inf")
    assert (rows["b", 10]["min"], rows["b", 10]["mean"], rows["b", 10]["runs"]) == (0.1, None, 2)


def test_numbers_have_the_names_that_were_known_before():
    targets = reached_targets(RESULTS, CURVES, [0.5])
    found = numbers(RESULTS, losses_at(RESULTS, CURVES, [10, 20]), targets)
    assert sorted(found) == sorted(names(["a", "b"], [10, 20], ["fit"], ["0.5", "1.3 x fit"]))
    assert found["reference.fit"]["value"] == 1.5
    assert found["a.reached.0.5"]["value"] == 1
    assert found["a.steps_to.1.3 x fit"]["value"] == 15
    assert found["a.steps_to.0.5"]["value"] is None  # one of two never got there
    assert found["b.reached.0.5"]["value"] == 0
