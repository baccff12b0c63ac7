"""What a trial is, what its key depends on, and what one run does: against plain loops."""

from functools import partial

import pytest
import torch

from symlab.comparison.run_trial import TrialRunner
from symlab.comparison.settings import described, foreign_code, keywords_of, space_of, split_settings
from symlab.comparison.trial import held_out
from symlab.rundir import BadInput, RunDir
from symlab.search import Tunable
from symlab.training.batches import Batches
from symlab.training.losses import half_mean_squared_error
from tests.comparison.toy import RATES, descent, falling, line, steady, task, trial

CPU = torch.device("cpu")


def always(row):
    return True


def test_settings_of_factories():
    inner = Tunable(descent, {"lr": 0.3, "fail_above": 5.0}, RATES)
    outer = partial(inner, lr=0.7)
    assert keywords_of(outer) == {"lr": 0.7, "fail_above": 5.0}
    assert space_of(outer) == RATES
    assert described(outer) == {"function": "tests.comparison.toy.descent", "keywords": keywords_of(outer)}
    assert described(steady) == {"function": "tests.comparison.toy.steady", "keywords": {}}
    assert split_settings({"lr": 1, "schedule": "falling", "schedule.final": 0.1}) == ({"lr": 1}, {"final": 0.1})


def test_values_of_a_trial_arrive():
    tried = trial(settings={"lr": 0.3, "schedule": "falling", "schedule.final": 0.5}, fail_above=9.0)
    assert tried.effective_settings() == {"lr": 0.3, "fail_above": 9.0, "schedule": "falling", "schedule.final": 0.5}
    _, training, _, rates = TrialRunner(task(), CPU, 1).build(tried)
    assert training.base_rates == [0.3]
    assert rates.factor(5) == pytest.approx(0.5**0.5)


def test_key_says_what_is_computed():
    base = trial(settings={"lr": 0.3}).key(task(), "cpu")
    assert trial(lr=0.3).key(task(), "cpu") == base  # configured or tuned: the same run
    others = [
        trial(label="other", settings={"lr": 0.3}).key(
            task(), "cpu"
        ),  # a second label with the same content is a run too
        trial(settings={"lr": 0.31}).key(task(), "cpu"),
        trial(settings={"lr": 0.3, "schedule.final": 0.2}).key(task(), "cpu"),
        trial(seed=1, settings={"lr": 0.3}).key(task(), "cpu"),
        trial(split="validation", settings={"lr": 0.3}).key(task(), "cpu"),
        trial(settings={"lr": 0.3}).key(task(), "cuda"),
        *(
            trial(settings={"lr": 0.3}).key(task(**change), "cpu")
            for change in ({"steps": 11}, {"batch_size": 4}, {"data": partial(line, rows=41)}, {"dtype": "float64"})
        ),
    ]
    assert len({base, *others}) == 1 + len(others)


def test_keys_come_back_from_a_table_as_they_were(tmp_path):
    """Sixteen hex digits alone can be a number: 9098792935673520, or 12e4567890123456, which is infinite."""
    keys = [trial(seed=seed).key(task(), "cpu") for seed in range(4000)]
    run = RunDir(tmp_path)
    run.append_rows([{"key": key} for key in keys], "keys")
    assert [row["key"] for row in run.read_rows("keys")] == keys


def test_held_out_rows_are_training_rows_and_never_test_rows():
    data = line(seed=3)
    held = held_out(data, 0.25)
    assert (len(held.train_inputs), len(held.test_inputs)) == (30, 10)
    both = torch.cat([held.train_inputs, held.test_inputs])
    assert torch.equal(both[both[:, 0].argsort()], data.train_inputs[data.train_inputs[:, 0].argsort()])
    assert torch.equal(held_out(data, 0.25).test_inputs, held.test_inputs)
    assert held.references == {}
    for fraction in (0.0, 0.001, 1.0):
        with pytest.raises(BadInput, match="validation_fraction"):
            held_out(data, fraction)


def test_a_run_is_the_plain_loop():
    """The same numbers as a loop written out: start, order of batches, decay, evaluations."""
    tried = trial(seed=5, settings={"lr": 0.2, "schedule.final": 0.5})
    result = TrialRunner(task(), CPU, 1).run(tried, always)
    data = line(seed=5)
    generator = torch.Generator().manual_seed(5)
    weight, bias = torch.randn(1, 2, generator=generator), torch.randn(1, generator=generator)
    batches = Batches(data.train_inputs, data.train_targets, 8, 5)
    losses = {0: None, 5: None, 10: None}
    for step in range(11):
        if step in losses:
            losses[step] = float((data.test_inputs @ weight.T + bias - data.test_targets).square().mean() / 2)
        inputs, targets = batches.at(step)
        error = (inputs @ weight.T + bias - targets) / len(inputs)
        rate = 0.2 * 0.5 ** (step / 10)
        weight, bias = weight - rate * error.T @ inputs, bias - rate * error.sum(0)
    assert {row["step"]: row["test_loss"] for row in result.rows} == pytest.approx(losses, rel=1e-5)
    assert (result.status, result.step, result.parameters) == ("completed", 10, 3)
    assert result.references == {"noise": 0.005}


def test_divergence_is_a_status_and_keeps_the_rows():
    result = TrialRunner(task(steps=200), CPU, 1).run(trial(settings={"lr": 90.0, "schedule.final": 1.0}), always)
    assert result.status == "diverged"
    assert "not finite" in result.message or "inf" in result.message or "nan" in result.message
    assert result.rows[0]["step"] == 0
    assert result.step < 200


def test_pruning_ends_a_run():
    result = TrialRunner(task(), CPU, 1).run(trial(), lambda row: row["step"] < 5)
    assert (result.status, result.step) == ("pruned", 5)


def test_all_optimizers_start_alike_and_see_the_same_batches():
    runner = TrialRunner(task(), CPU, 1)
    first, second = (runner.build(trial(label=label, lr=lr)) for label, lr in (("a", 0.1), ("b", 0.9)))
    for one, two in zip(first[1].model.parameters(), second[1].model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert all(torch.equal(first[2].rows_at(t), second[2].rows_at(t)) for t in range(12))


def test_data_without_a_seed_cannot_vary():
    def fixed():
        return line()

    with pytest.raises(BadInput, match="vary_data"):
        task(data=fixed).check_data()
    task(data=fixed, vary_data=False).check_data()
    assert falling(0, 1) == 1.0


def test_functions_that_cannot_be_told_apart_are_refused():
    def inner(model, inputs):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    class Rule:
        def __call__(self, model, inputs):
            return inner(model, inputs)

    for function in (inner, lambda model, inputs: None, Rule()):
        with pytest.raises(BadInput, match="cannot be told"):
            described(function)
    with pytest.raises(BadInput, match="tell values"):
        described(Tunable(descent, {"lr": object()}))
    assert described(Tunable(descent, {"lr": steady}))["keywords"]["lr"]["function"] == "tests.comparison.toy.steady"


def test_code_from_outside_is_known_by_a_digest_of_its_file():
    assert foreign_code([Tunable(half_mean_squared_error)]) == ""
    found = foreign_code([Tunable(descent), half_mean_squared_error, steady])
    assert found.startswith("tests.comparison.toy ")
    assert len(found.split()[1]) == 8
