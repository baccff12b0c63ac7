"""Which runs form a group, and what the group is called."""

import pytest

from symlab.plots.grouping import common_setting, group_labels


def config(optimizer: str = "adam", *, seed: int = 0, data_seed: int = 0, **keys) -> dict:
    own = {"adam": {"lr": 0.01, "betas": [0.9, 0.999]}, "gd": {"lr": 0.8}}[optimizer]
    own = own | {name.removeprefix("optimizer__"): v for name, v in keys.items() if name.startswith("optimizer__")}
    return {
        "seed": seed,
        "device": "cpu",
        "threads": None,
        "epochs": keys.get("epochs", 100),
        "model": {"_target_": "symlab.models.mlp.mlp", "hidden": keys.get("hidden", [70]), "activation": "tanh"},
        "data": {
            "_target_": "symlab.data.teacher_student.teacher_student",
            "seed": data_seed,
            "activation": keys.get("data_activation", "tanh"),
        },
        "optimizer": {"_target_": f"symlab.optim.{optimizer}.{optimizer}"} | own,
        "plot": {"_target_": "symlab.plots.loss.loss", "x": keys.get("x", "step")},
    }


def test_seeds_machine_and_figure_make_no_group():
    configs = [config(), config(seed=1), config(data_seed=3), config(x="epoch"), config() | {"device": "cuda:0"}]
    assert group_labels(configs) == [""] * 5


def test_several_seeds_expectations_and_figures_make_no_group():
    study = config() | {"seeds": [0, 1], "plots": None, "expected": None}
    shown = {"seeds": [2], "plots": {"phase": {"x": "decay"}}, "expected": {"slope": [0, 1]}}
    assert group_labels([study, study | shown, study | shown | {"epochs": 3}]) == ["epochs=100"] * 2 + ["epochs=3"]


def test_an_optimizers_own_keys_are_not_shown_when_the_optimizer_says_it_all():
    assert group_labels([config("adam"), config("gd"), config("gd", seed=1)]) == [
        "optimizer=adam",
        "optimizer=gd",
        "optimizer=gd",
    ]


def test_keys_that_vary_within_one_optimizer_are_shown_for_it_alone():
    configs = [config("adam"), config("adam", optimizer__lr=0.1), config("gd")]
    assert group_labels(configs) == ["optimizer=adam, lr=0.01", "optimizer=adam, lr=0.1", "optimizer=gd"]


def test_ambiguous_names_are_written_in_full_and_values_short():
    configs = [config(), config(data_activation="relu", hidden=[70, 30], epochs=200)]
    assert group_labels(configs) == [
        "epochs=100, hidden=70, activation=tanh",
        "epochs=200, hidden=70-30, activation=relu",
    ]
    two = [config(), config(data_activation="relu")]
    two[1]["model"]["activation"] = "relu"
    assert group_labels(two) == [
        "model.activation=tanh, data.activation=tanh",
        "model.activation=relu, data.activation=relu",
    ]


def test_equal_numbers_are_no_difference_but_true_and_one_are():
    same = [config(epochs=100), config(epochs=100.0)]
    assert group_labels(same) == ["", ""]
    assert group_labels([config(epochs=1), config(epochs=True)]) == ["epochs=1", "epochs=true"]


def test_a_key_that_one_run_lacks_is_a_difference():
    old = config()
    del old["epochs"]
    assert group_labels([old, config()]) == ["epochs=unset", "epochs=100"]


def test_different_groups_never_share_a_label():
    configs = [
        config(o, seed=s, hidden=h, epochs=e)
        for o in ("adam", "gd")
        for s in (0, 1)
        for h in ([3], [4])
        for e in (1, 2)
    ]
    labels = group_labels(configs)
    assert len(set(labels)) == 8
    assert all(labels.count(label) == 2 for label in labels)


def test_group_by_keys_or_options():
    configs = [config("adam"), config("gd"), config("adam", optimizer__lr=0.1, epochs=5)]
    assert group_labels(configs, ["optimizer"]) == ["optimizer=adam", "optimizer=gd", "optimizer=adam"]
    assert group_labels(configs, ["optimizer.lr", "epochs"]) == [
        "lr=0.01, epochs=100",
        "lr=0.8, epochs=100",
        "lr=0.1, epochs=5",
    ]
    assert group_labels(configs, []) == ["", "", ""]
    with pytest.raises(ValueError, match=r"group_by.*'optimzer'.*optimizer"):
        group_labels(configs, ["optimzer"])


def test_common_setting_names_what_all_share():
    assert common_setting([config("adam"), config("adam", seed=1)]) == "teacher_student, mlp, adam"
    assert common_setting([config("adam"), config("gd")]) == "teacher_student, mlp"
    assert common_setting([{"seed": 1}]) == ""
