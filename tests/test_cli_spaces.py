"""Search spaces in configs, and lists of names for families: optimizers=[gd,adam]."""

import functools
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from symlab.cli import families, resume, validation
from symlab.cli.compose import compose, config_sources, parse, resolved
from symlab.rundir import BadInput, RunDir
from symlab.search import Space
from tests.cli_lab import Here

ROOT = Path(__file__).parents[1]
OPTIMIZERS = sorted(path.stem for path in ROOT.glob("conf/optimizer/*.yaml"))
SCHEDULES = sorted(path.stem for path in ROOT.glob("conf/schedule/*.yaml"))
SMALL = ("data.num_train=20", "data.num_test=10", "data.input_size=4", "data.hidden=[3]", "data.output_size=2")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Runs command lines of symlab itself in an empty directory, in this process."""
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    return Here(tmp_path, capsys)


@pytest.fixture
def experiments(tmp_path: Path) -> Path:
    """A --config-dir with experiments that take an optimizer out and add one under another label."""
    folder = tmp_path / "conf"
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "another.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n"
        "  - /optimizer@optimizers.symo_slow: symo\n"
        "  - override /optimizer@optimizers.shampoo: null\n"
        "  - _self_\n"
        "optimizers:\n"
        "  symo_slow:\n"
        "    beta: 0.5\n"
        "  adam:\n"
        "    lr: 0.5\n"
    )
    (folder / "experiment" / "half.yaml").write_text("# @package _global_\noptimizers:\n  gd:\n    lr: 0.123\n")
    return folder


def composed(*words: str, job: str = "benchmark", extra: Path | None = None) -> dict[str, Any]:
    """The config that the job gets, as the command line makes it."""
    with config_sources(job, extra, None):
        overrides, orders = families.rewritten(job, None, parse(words, multirun=False))
        return families.in_order(resolved(compose(job, None, [str(o.input_line) for o in overrides])), orders)


def bound(job: str, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return validation.bind(job, composed(*words, job=job), Path.cwd())


def labels(*words: str, **where: Any) -> list[str]:
    return list(composed(*words, **where)["optimizers"])


def test_a_list_chooses_the_options_in_its_order() -> None:
    assert labels("seed=1") == ["adam", "symo", "shampoo"]
    assert labels("optimizers=[gd,adam]") == ["gd", "adam"]
    nodes = composed("optimizers=[shampoo, 'symo',  \"muon\"]")["optimizers"]
    assert list(nodes) == ["shampoo", "symo", "muon"]
    assert nodes["muon"]["_target_"] == "symlab.optim.muon.muon"


@pytest.mark.parametrize("turned", [False, True])
def test_a_list_and_the_keys_of_its_labels_on_one_line(turned: bool) -> None:
    words = ("optimizers=[gd,adam]", "optimizers.gd.lr=0.3", "optimizers.adam.beta1=0.5")
    nodes = composed(*(reversed(words) if turned else words))["optimizers"]
    assert list(nodes) == ["gd", "adam"]
    assert (nodes["gd"]["lr"], nodes["adam"]["beta1"]) == (0.3, 0.5)


def test_families_of_other_groups() -> None:
    config = composed("schedules=[constant,cosine]", "optimizers=[gd]", "plots=[seconds]", job="compare")
    assert (list(config["schedules"]), list(config["optimizers"])) == (["constant", "cosine"], ["gd"])
    assert config["plots"]["seconds"]["x"] == "time_s"
    assert composed("targets=[0.1]", job="compare")["targets"] == [0.1]  # any other list stays what it is


def test_an_experiment_takes_out_and_adds(experiments: Path) -> None:
    nodes = composed("experiment=another", extra=experiments)["optimizers"]
    assert list(nodes) == ["adam", "symo", "symo_slow"]
    assert (nodes["symo_slow"]["beta"], nodes["symo"]["beta"], nodes["adam"]["lr"]) == (0.5, 0.95, 0.5)


def test_a_list_over_an_experiment(experiments: Path) -> None:
    chosen = composed("experiment=another", "optimizers=[symo_slow,gd,adam]", extra=experiments)["optimizers"]
    assert list(chosen) == ["symo_slow", "gd", "adam"]
    assert (chosen["symo_slow"]["beta"], chosen["adam"]["lr"]) == (0.5, 0.5)
    back = composed("optimizers=[shampoo,symo]", "experiment=another", extra=experiments)["optimizers"]
    assert list(back) == ["shampoo", "symo"]
    assert back["shampoo"]["_target_"] == "symlab.optim.shampoo.shampoo"
    typed = composed("+optimizer@optimizers.mine=symo", "optimizers=[mine,gd]", extra=experiments)["optimizers"]
    assert typed["mine"]["_target_"] == "symlab.optim.symo.symo"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optimizers=[symo,adma]"], "optimizers=[symo,adma]: there is no optimizer adma; did you mean adam"),
        (["optimizers=[symo,xyz]"], "there is no optimizer xyz; there are adam, adamw, "),
        (["optimizers=[gd,gd]"], "optimizers=[gd,gd]: gd stands twice"),
        (["optimizers=gd"], "optimizers=gd: expected a list of names: 'optimizers=[gd]'"),
        (["optimizers=[]"], "optimizers=[]: expected a list of at least one name"),
        (["optimizers=[gd]", "+optimizer@optimizers.other=gd"], "other is added but not in the list"),
        (["optimizers=null"], "optimizers=null: expected a list of at least one name"),
        (["optimizers=[1,2]"], "optimizers=[1,2]: expected a list of at least one name"),
        (
            ["-m", "optimizers=[gd],[adam]"],
            "a sweep over lists of optimizers is not possible; use one command for each",
        ),
        (
            ["optimizers=[gd]", "optimizers.adam.lr=1"],
            "optimizers.adam.lr=1: there is no key optimizers.adam.lr; did you",
        ),
        (
            ["optimizers.adam.lr=1", "optimizers=[gd]"],
            "optimizers.adam.lr=1: there is no key optimizers.adam.lr; did you",
        ),
        (["optimisers=[gd]"], "optimisers=[gd]: there is no key optimisers; did you mean optimizers?"),
        (["experiment=half", "optimizers=[gd]"], "has settings for optimizers.gd but does not add it"),
        (["-m", "experiment=half,another", "optimizers=[adam]"], "the runs of this sweep have different optimizers"),
        (
            ["experiment=half"],
            'optimizers.gd={"lr": 0.123}: expected an option of its group: optimizer@optimizers.gd=',
        ),
        (["optimizers.adam=gd"], "optimizers.adam=gd: expected an option of its group"),
        (["optimizers=[gd"], "Hydra cannot read this value"),
    ],
)
def test_lists_that_are_refused(command: Here, experiments: Path, words: list[str], said: str) -> None:
    done = command("benchmark", "--config-dir", str(experiments), *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert command.runs() == []


def test_a_list_is_shown_by_cfg_and_help(command: Here) -> None:
    shown = yaml.safe_load(command("benchmark", "optimizers=[muon, gd]", "--cfg", "job").stdout)
    assert set(shown["optimizers"]) == {"muon", "gd"}
    text = command("benchmark", "--help", "optimizers=[gd]").stdout
    assert "optimizers=[NAME,...] chooses" in text
    assert "optimizer@optimizers.gd " in text
    assert "optimizers.adam" not in text


def test_a_run_with_a_list(command: Here) -> None:
    words = ("optimizers=[gd,adam]", *SMALL, "repeats=2", "threads=null", "progress=false", "hydra.run.dir=here")
    done = command("benchmark", *words)
    assert done.returncode == 0, done.stderr
    saved = yaml.safe_load((command.cwd / "here" / "config.yaml").read_text())
    assert list(saved["optimizers"]) == ["gd", "adam"]
    assert "_tune_" not in str(saved)


def test_a_sweep_with_a_list(command: Here) -> None:
    words = ("optimizers=[gd,adam]", *SMALL, "repeats=2", "threads=null", "progress=false", "hydra.sweep.dir=here")
    done = command("benchmark", "-m", *words, "seed=0,1", "optimizers.gd.lr=0.1")
    assert done.returncode == 0, done.stderr
    runs = sorted(path.parent for path in (command.cwd / "here").glob("*/config.yaml"))
    assert [run.name[:6] for run in runs] == ["seed-0", "seed-1"]
    for run in runs:
        saved = yaml.safe_load((run / "config.yaml").read_text())
        assert [(name, node["lr"]) for name, node in saved["optimizers"].items()] == [("gd", 0.1), ("adam", 0.01)]


@pytest.fixture
def saved_run(tmp_path: Path) -> RunDir:
    """A run of `compare` whose gd has a rate of its own, and a label that no option has."""
    run = RunDir.create(tmp_path)
    words = ("optimizers=[gd,adam,fast]", "+optimizer@optimizers.fast=symo", "optimizers.gd.lr=0.3")
    run.write_config(resume.to_yaml(bound("compare", *words)[1]), [])
    return run


def changed(run: RunDir, *words: str) -> dict[str, Any]:
    with config_sources("compare", None, None):
        return resume.changed_config("compare", run, parse(words, multirun=False))


def test_a_resumed_run_takes_another_list_and_keeps_settings(saved_run: RunDir) -> None:
    config = changed(saved_run, "optimizers.sgd.lr=0.01", "optimizers=[sgd,fast, gd]")
    assert [(name, node["lr"]) for name, node in config["optimizers"].items()] == [
        ("sgd", 0.01),
        ("fast", 0.06),
        ("gd", 0.3),
    ]
    assert config["optimizers"]["sgd"]["_tune_"]["lr"]["scale"] == "log"
    same = changed(saved_run)
    assert list(same["optimizers"]) == ["gd", "adam", "fast"]
    deeper = changed(saved_run, "optimizers.fast._tune_.lr.high=3.5")
    assert deeper["optimizers"]["fast"]["_tune_"]["lr"]["high"] == 3.5


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("optimizers=[gd,adma]", "there is no optimizer adma; did you mean adam"),
        ("optimizers=[]", "expected a list of at least one name"),
        ("optimizers.fsat.lr=1", "there is no key optimizers.fsat; did you mean optimizers.fast"),
        ("model.hidden=[3]", "a resumed run keeps its configuration"),
    ],
)
def test_what_a_resumed_run_refuses(saved_run: RunDir, word: str, said: str) -> None:
    with pytest.raises(BadInput, match=r"^" + word.partition("=")[0] + r".*" + said):
        changed(saved_run, word)


def test_an_unknown_key_of_a_resumed_label_is_refused_when_it_is_bound(saved_run: RunDir) -> None:
    with pytest.raises(
        BadInput, match=r"optimizers\.fast\.lrr=1: symo has no key lrr; did you mean optimizers\.fast\.lr"
    ):
        validation.bind("compare", changed(saved_run, "optimizers.fast.lrr=1"), Path.cwd())


def test_spaces_reach_the_factory_and_never_its_keywords() -> None:
    arguments, saved = bound("compare", "optimizers=[gd,symo]", "schedules=[geometric,constant]")
    symo = arguments["optimizers"]["symo"]
    assert symo.space["beta"] == {"low": 0.8, "high": 0.99, "scale": "log_complement"}
    assert "_tune_" not in symo.keywords
    assert symo.func.__name__ == symo.__name__ == "symo"
    assert arguments["schedules"]["constant"].space == {}
    assert saved["optimizers"]["symo"]["_tune_"] == symo.space
    again = pickle.loads(pickle.dumps(symo))
    assert again == symo
    assert [d.key for d in Space.of(again.space).dimensions] == ["lr", "beta"]


def test_a_job_without_a_search_saves_no_space() -> None:
    arguments, saved = bound("train", "optimizer=adam")
    assert list(arguments["optimizer"].space) == ["lr", "beta2"]
    assert list(saved["optimizer"]) == ["_target_", "lr", "beta1", "beta2", "eps", "weight_decay"]
    assert "_tune_" not in saved["schedule"]
    _, saved = bound("benchmark")
    assert "_tune_" not in saved["optimizers"]["adam"]


def test_a_space_can_be_changed_and_left_out() -> None:
    words = ["optimizers=[gd,adam,sgd,symo]", "optimizers.gd._tune_.lr.high=3", "optimizers.adam._tune_.beta2=null"]
    words += [
        "optimizers.sgd._tune_=null",
        "++optimizers.symo._tune_.beta={choices:[0.5],low:null,high:null,scale:null}",
    ]
    arguments, saved = bound("compare", *words)
    spaces = {name: factory.space for name, factory in arguments["optimizers"].items()}
    assert spaces["gd"] == {"lr": {"low": 0.01, "high": 3, "scale": "log", "max": 100}}
    assert list(spaces["adam"]) == ["lr"]
    assert spaces["sgd"] == {}
    assert spaces["symo"]["beta"] == {"choices": [0.5]}
    assert {name: node.get("_tune_", {}) for name, node in saved["optimizers"].items()} == spaces


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "+optimizer._tune_.lrr={low: 1}",
            r"\._tune_\.lrr=.*: gd has no key lrr; did you mean optimizer\._tune_\.lr\?",
        ),
        ("optimizer._tune_=3", r"optimizer\._tune_=3: expected a mapping"),
        ("++optimizer._tune_.lr=3", r"optimizer\._tune_\.lr=3: expected \{low"),
        ("++optimizer._tune_.lr={choices: [1, a]}", r"\._tune_\.lr\.choices\[1\]=a: expected a number, got text"),
    ],
)
def test_spaces_that_are_refused(word: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        bound("train", "optimizer=gd", word)


def test_a_range_is_for_keys_that_take_decimals() -> None:
    word = "+optimizer._tune_.update_every={low: 1, high: 9, scale: log}"
    with pytest.raises(
        BadInput, match=r"optimizer\._tune_\.update_every: a range gives decimal numbers, .*whole number"
    ):
        bound("train", "optimizer=symo", word)
    bound("train", "optimizer=symo", "+optimizer._tune_.update_every={choices: [1, 10]}")


def test_the_keys_of_spaces_are_known_but_not_suggested(command: Here) -> None:
    assert "did you mean optimizer.lr" in command("train", "optimizer.lr_=1").stderr
    assert "_tune_" not in command("train", "optimizer.tune=1").stderr
    done = command("compare", "optimizers.gd._tune_.lr.high=9", "optimizers.gd._tune_.lr.hihg=9")
    assert done.stderr.startswith("symlab: error: optimizers.gd._tune_.lr.hihg=9: there is no key")
    assert "did you mean optimizers.gd._tune_.lr.high" in done.stderr


def test_help_shows_spaces_only_where_there_is_a_search(command: Here) -> None:
    assert "_tune_" not in command("train", "--help").stdout
    assert "_tune_" not in command("benchmark", "--help").stdout
    assert "_tune_" in command("compare", "--help").stdout
    assert command("train", "--help", "model.hidden=${oc.env:NO_SUCH_NAME}").returncode == 0  # nothing is resolved


@pytest.mark.parametrize(
    ("line", "listed"), [("train optimizer.", "optimizer.lr="), ("compare optimizers.gd.", "optimizers.gd._tune_.")]
)
def test_completion_of_keys(command: Here, monkeypatch: pytest.MonkeyPatch, line: str, listed: str) -> None:
    monkeypatch.setenv("COMP_LINE", f"symlab {line}")
    monkeypatch.setenv("COMP_POINT", str(len(f"symlab {line}")))
    words = command("-sc", "query=bash").stdout.split()
    assert listed in words
    assert any("_tune_" in word for word in words) == line.startswith("compare")


def rejecting(start: float, *, lr: float, beta: float = 0.5) -> float:
    if not lr < 1:
        raise ValueError(f"lr must be below 1, got {lr}")
    return start * lr


def test_an_error_names_the_value_that_was_used() -> None:
    factory = validation.Factory("optimizers.mine", rejecting, {"lr": 0.5}, {"lr": {"choices": [1]}})
    with pytest.raises(BadInput, match=r"^optimizers\.mine\.lr=7\.5: lr must be below 1, got 7\.5$"):
        functools.partial(factory, lr=7.5)(2.0)
    with pytest.raises(BadInput, match=r"^g\.lr=9\.0: lr must be below 1"):
        validation.Factory("g", rejecting, {})(2.0, lr=9.0)
    assert functools.partial(factory, lr=0.25)(2.0) == 0.5


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_take_both_ends_of_their_spaces(name: str) -> None:
    factory = bound("train", f"optimizer={name}")[0]["optimizer"]
    for unit in (0.0, 1.0):
        space = Space.of(factory.space)
        point = space.from_unit([unit] * len(space.dimensions))
        wider = space.around(point, 3.0)
        for values in (point, wider.from_unit([unit] * len(space.dimensions))):
            model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
            assert isinstance(factory(model, torch.zeros(2, 4), **values), torch.optim.Optimizer), values


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_take_both_ends_of_their_spaces(name: str) -> None:
    factory = bound("train", f"schedule={name}")[0]["schedule"]
    space = Space.of(factory.space)
    for unit in (0.0, 1.0):
        point = space.from_unit([unit] * len(space.dimensions))
        for values in (point, space.around(point, 3.0).from_unit([unit] * len(space.dimensions))):
            assert 0 <= factory(3, 10, **values) <= 1
