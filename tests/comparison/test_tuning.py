"""The search over settings, with values from a formula in place of runs."""

import json
import math

import pytest

from symlab.comparison.plan import Plan, check_plan, evaluation_interval
from symlab.comparison.run_trial import TrialResult
from symlab.comparison.tuning import Family, Search, Tuner, objective_value, round_counts, shares
from symlab.rundir import BadInput
from symlab.search import Tunable
from symlab.search.quasi_random import quasi_random
from symlab.search.sampler import Sampler
from tests.comparison.toy import RATES, descent, falling, steady, trial


def result(value, status="completed"):
    return TrialResult(status, rows=[{"step": 10, "test_loss": value, "train_loss": 2 * value, "test_accuracy": 0.9}])


def family(trials=16, seeds=(7, 8), search=quasi_random, rounds=3):
    return Family(trial(), Search(search, round_counts(trials, 1, rounds)[0], 5), seeds, "validation_loss")


def spend(found, loss, order=lambda waiting: 0):
    """Run the family to its end; several runs are out at a time and come back in another order."""
    out = []
    while not found.finished:
        while (following := found.next()) is not None:
            out.append(following)
        setting, tried = out.pop(order(out))
        found.record(setting, tried.seed, loss(setting.point["lr"], tried.seed))


def parabola(centre):
    return lambda lr, seed: result(1 + (math.log(lr) - math.log(centre)) ** 2 + 0.01 * seed)


@pytest.mark.parametrize(("trials", "families", "rounds"), [(30, 1, 3), (7, 2, 3), (3, 3, 3), (1, 1, 5), (100, 3, 1)])
def test_every_trial_is_spent(trials, families, rounds):
    counts = round_counts(trials, families, rounds)
    assert sum(map(sum, counts)) == trials
    assert all(count >= 1 for own in counts for count in own)
    assert max(map(sum, counts)) - min(map(sum, counts)) <= 1
    assert all(own[0] >= sum(own[1:]) for own in counts)


def test_too_few_trials_for_the_schedules():
    with pytest.raises(BadInput, match="trials=2"):
        round_counts(2, 3, 1)
    assert shares(7, 3) == [3, 2, 2]


@pytest.mark.parametrize("centre", [0.03, 5.0])
def test_search_finds_the_best_rate_even_beyond_the_declared_range(centre):
    """The declared range ends at 1: rounds around the best value move beyond it."""
    found = family()
    spend(found, parabola(centre))
    assert len(found.settings) == 16
    best = found.best
    assert abs(math.log(best.point["lr"] / centre)) < 0.7
    assert best.value((7, 8)) == min(s.value((7, 8)) for s in found.settings)
    assert {s.round for s in found.settings} == {1, 2, 3}


def test_an_optimum_far_outside_is_flagged():
    found = family()
    spend(found, parabola(1e4))
    assert found.edges() == ["lr"]
    inside = family()
    spend(inside, parabola(0.03))
    assert inside.edges() == []


def test_order_of_results_changes_nothing():
    first, second = family(), family()
    spend(first, parabola(0.1))
    spend(second, parabola(0.1), order=lambda waiting: len(waiting) - 1)
    assert [s.point for s in first.settings] == [s.point for s in second.settings]


def test_a_setting_counts_only_with_all_its_seeds():
    """Diverging on one of two seeds is no value, and never the best, however good the other was."""
    found = family(trials=4, rounds=1)

    def loss(lr, seed):
        return result(0.0) if seed == 7 else (result(math.nan, "diverged") if lr > 0.03 else result(5.0))

    spend(found, loss)
    assert found.best.point["lr"] <= 0.03
    assert found.best.value((7, 8)) == 2.5
    summary = Tuner("descent", [found]).summary()
    assert summary["diverged"] == sum(s.point["lr"] > 0.03 for s in found.settings) > 0
    assert (summary["trials"], summary["runs"], summary["failed"]) == (4, 8, 0)


def test_the_configured_values_are_the_first_setting():
    """Tuning is never worse than not tuning, on the tuning seeds; a value off the scale leaves all to the sampler."""
    found = family(trials=8, seeds=(7,))
    spend(found, lambda lr, seed: result(1.0 if lr == 0.1 else 2.0))
    assert found.settings[0].point == {"lr": 0.1, "schedule.final": 0.1}
    assert found.best is found.settings[0]
    assert len(found.settings) == 8
    off = Family(trial(lr=-1.0), Search(quasi_random, [4], 5), (7,), "validation_loss")
    spend(off, lambda lr, seed: result(1.0))
    assert len(off.settings) == 4
    assert all(setting.point["lr"] > 0 for setting in off.settings)


def test_all_diverged_leaves_no_best():
    found = family(trials=4)
    spend(found, lambda lr, seed: result(math.nan, "diverged"))
    tuner = Tuner("descent", [found])
    assert tuner.finished
    assert tuner.best() is None
    assert tuner.summary()["value"] is None
    assert json.loads(tuner.summary()["settings"]) == {}


class Pruner(Sampler):
    """Gives up whatever has a rate above 0.5."""

    prunes = True

    def __init__(self, space, trials, seed):
        self.points, self.told = [{"lr": 0.9, "schedule.final": 0.5}, {"lr": 0.1, "schedule.final": 0.5}], []

    def ask(self):
        return self.points.pop(0) if self.points else None

    def tell(self, point, value):
        self.told.append((point["lr"], value))

    def should_stop(self, point, step, value):
        return point["lr"] > 0.5


def test_pruned_runs_are_counted():
    found = family(trials=3, rounds=1, search=Pruner, seeds=(7,))
    setting, _ = found.next()
    assert found.proceed(setting, {"step": 5, "test_loss": 1e9})  # the configured values run to their end
    found.record(setting, 7, result(2.0))
    setting, _ = found.next()
    assert not found.proceed(setting, {"step": 5, "test_loss": 3.0})
    found.record(setting, 7, TrialResult("pruned", rows=[{"step": 5, "test_loss": 3.0}]))
    setting, _ = found.next()
    assert found.proceed(setting, {"step": 5, "test_loss": 3.0})
    found.record(setting, 7, result(1.0))
    assert found.finished
    assert Tuner("d", [found]).summary()["pruned"] == 1
    assert found.best.point["lr"] == 0.1


def test_objectives():
    row = {"step": 1, "test_loss": 0.5, "train_loss": 0.25, "test_accuracy": 0.75}
    assert [objective_value(row, name) for name in ("validation_loss", "train_loss", "validation_accuracy")] == [
        0.5,
        0.25,
        0.25,
    ]
    assert objective_value(row | {"test_loss": math.inf}, "validation_loss") is None


def plan(**changes):
    values = {
        "optimizers": {"descent": Tunable(descent, {"lr": 0.1}, RATES)},
        "schedules": {"falling": falling, "steady": steady},
        "schedule_of": {},
        "steps": 10,
        "eval_every": 5,
        "eval_train_size": None,
        "seeds": (0, 1),
        "tuning_seeds": (7,),
        "trials": 6,
        "rounds": 1,
        "objective": "validation_loss",
        "search": quasi_random,
    }
    return Plan(**{**values, **changes})


def test_schedules_share_the_trials_and_the_best_of_all_is_reported():
    tried = plan()
    (tuner,) = tried.tuners()
    assert [sum(family.search.counts) for family in tuner.families] == [3, 3]
    for family, offset in zip(tuner.families, (1.0, 0.0), strict=True):
        spend(family, lambda lr, seed, offset=offset: result(offset + abs(math.log(lr / 0.1))))
    reported = tried.reported([tuner])
    assert [(t.seed, t.split) for t in reported] == [(0, "test"), (1, "test")]
    assert {t.effective_settings()["schedule"] for t in reported} == {"steady"}
    assert reported[0].settings["lr"] == tuner.families[1].best.point["lr"]


def test_without_tuning_the_configured_values_run():
    tried = plan(trials=0, schedule_of={"descent": "steady"})
    assert tried.tuners() == []
    (first, _) = tried.reported([])
    assert first.effective_settings() == {"lr": 0.1, "schedule": "steady"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizers": {}}, "optimizers is empty"),
        ({"schedules": {}}, "schedules is empty"),
        ({"schedule_of": {"decent": "steady"}}, "schedule_of=decent.*descent"),
        ({"schedule_of": {"descent": "stedy"}}, "schedule_of.descent=stedy.*steady"),
        ({"seeds": (0, 0)}, "seeds must be different"),
        ({"seeds": ()}, "seeds must be different"),
        ({"seeds": (0, 7)}, r"nothing in common, both have \[7\]"),
        ({"trials": 1}, "trials=1"),
        ({"optimizers": {"plain": descent}}, "plain declares no _tune_"),
        ({"optimizers": {"d": Tunable(descent, {"lr": 0.1}, {"lr": {"low": 2, "high": 1, "scale": "log"}})}}, "low"),
        ({"optimizers": {"d": Tunable(descent, {"lr": 0.1}, RATES | {"beta": {"choices": [1]}})}}, "no key beta"),
        ({"objective": "train_loss", "eval_train_size": 0}, "eval_train_size"),
    ],
)
def test_plans_that_cannot_work(changes, message):
    with pytest.raises(BadInput, match=message):
        check_plan(plan(**changes))
    check_plan(plan())


def test_evaluation_interval():
    assert evaluation_interval(200, [50, 100, 150]) == 2
    assert evaluation_interval(100, []) == 2
    assert evaluation_interval(7, []) == 1
    assert evaluation_interval(6000, [2000]) == 100
