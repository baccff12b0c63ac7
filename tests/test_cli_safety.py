"""A config from somebody else must not run code: neither through a group nor through Hydra's own node."""

from pathlib import Path

import pytest

from symlab.cli import names, safety
from symlab.rundir import BadInput
from tests.cli_lab import Lab

GROUP_TARGETS = [
    "os.system",
    "builtins.open",
    "builtins.eval",
    "torch.load",
    "subprocess.Popen",
    "symlab.optim.plain.os.system",
    "symlab.optim.plain.os",
    "symlab.optim.plain._private",
    "symlab.cli.names.importlib.import_module",
    "symlab.optim..plain",
    "symlab.optim",
    "symlab.optimize.plain",
    "hydra.utils.call",
    ".os.system",
    "",
]

HYDRA_NODES = {
    "callback": "callbacks: {x: {_target_: subprocess.call, args: [touch, MARK]}}",
    "nested callback": "callbacks: {x: {_target_: hydra.experimental.callbacks.LogJobReturnCallback, "
    "y: {_target_: os.system, command: touch MARK}}}",
    "hydra's own call": "callbacks: {x: {_target_: hydra.utils.call, "
    "config: {_target_: os.system, command: touch MARK}}}",
    "handler factory": "job_logging: {handlers: {file: {(): subprocess.Popen, args: [touch, MARK]}}}",
    "handler class": "job_logging: {handlers: {x: {class: subprocess.Popen, args: [touch, MARK]}}}",
    "handler file": "job_logging: {handlers: {x: {class: logging.FileHandler, filename: MARK}}}",
    "formatter": "job_logging: {formatters: {simple: {(): subprocess.Popen, args: [touch, MARK]}}}",
    "formatter class": "job_logging: {formatters: {simple: {class: os.system}}}",
    "filter": "job_logging: {filters: {x: {(): subprocess.Popen, args: [touch, MARK]}}}",
    "hydra's log": "hydra_logging: {handlers: {console: {(): subprocess.Popen, args: [touch, MARK]}}}",
    "stream": "job_logging: {handlers: {console: {stream: 'ext://subprocess.Popen'}}}",
    "interpolated": "job_logging: {handlers: {console: {stream: '${note}'}}}",
    "launcher": "launcher: {_target_: os.system}",
    "launcher argument": "launcher: {x: {_target_: os.system, command: touch MARK}}",
    "sweeper argument": "sweeper: {params: {x: {_target_: os.system, command: touch MARK}}}",
    "chosen launcher": "launcher: {_target_: hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher}",
    "environment": "job: {env_set: {PATH: /evil}}",
    "plugin roots": "job: {env_set: {SYMLAB_PLUGINS: os}}",
    "files above": "output_subdir: ../..",
    "files elsewhere": "output_subdir: MARK",
    "files over the run's": "output_subdir: .",
    "interpolated files": "output_subdir: '${note}'",
}


def hostile(folder: Path, group: str, name: str, text: str) -> Path:
    file = folder / "extra" / group / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.replace("MARK", str(folder / "marker")))
    return folder / "extra"


@pytest.mark.parametrize("target", GROUP_TARGETS)
def test_a_target_outside_the_groups_package_is_refused(target: str) -> None:
    with pytest.raises(BadInput, match=r"optimizer\._target_="):
        names.resolve("optimizer", target)


def test_a_target_of_another_group_is_refused() -> None:
    with pytest.raises(BadInput, match=r"model may name what is in symlab\.models"):
        names.resolve("model", "symlab.optim.gd.gd")
    assert names.resolve("optimizer", "symlab.optim.gd.gd").__name__ == "gd"


def test_user_code_is_allowed_by_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_lab.py").write_text("import os\ndef rule(*, lr): return lr\nalias = os.system\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadInput, match="SYMLAB_PLUGINS"):
        names.resolve("optimizer", "my_lab.rule")
    monkeypatch.setenv("SYMLAB_PLUGINS", "other, my_lab")
    assert names.resolve("optimizer", "my_lab.rule")(lr=1) == 1
    for target in ("my_lab.alias", "my_lab.os", "my_lab.os.system", "my_labs.rule"):
        with pytest.raises(BadInput, match="_target_"):
            names.resolve("optimizer", target)
    with pytest.raises(BadInput, match=r"defines no public rulee; did you mean rule\?"):
        names.resolve("optimizer", "my_lab.rulee")


def test_a_hostile_group_option_runs_nothing(lab: Lab) -> None:
    extra = hostile(lab.cwd, "optimizer", "evil", "_target_: os.system\ncommand: touch MARK\n")
    done = lab("toy", "optimizer=evil", "--config-dir", str(extra))
    assert done.returncode == 2
    assert "optimizer._target_=os.system: not allowed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (lab.cwd / "marker").exists()
    assert not lab.runs()


@pytest.mark.parametrize("kind", HYDRA_NODES)
def test_hydras_node_is_checked_before_hydra_acts_on_it(kind: str, tmp_path: Path) -> None:
    """The same composition that the command line checks, without starting a process for each."""
    from symlab.cli.compose import compose, config_sources

    text = f"# @package _global_\nhydra:\n  {HYDRA_NODES[kind]}\n"
    extra = hostile(tmp_path, "experiment", "evil", text)
    wanted = "not allowed|a config may not choose it|Key '.*' not in '.*Conf'"  # Hydra's own check comes first
    with config_sources("train", extra, None), pytest.raises(BadInput, match=wanted):
        safety.check_hydra_node(compose("train", None, ["experiment=evil", "+note=ext://os.system"]).hydra)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("kind", ["callback", "handler factory", "hydra's log"])
def test_a_hostile_experiment_runs_nothing(lab: Lab, kind: str) -> None:
    extra = hostile(lab.cwd, "experiment", "evil", f"# @package _global_\nhydra:\n  {HYDRA_NODES[kind]}\n")
    hostile(lab.cwd, "experiment", "good", "# @package _global_\nrate: 2.0\n")
    sweep = ("-m", "experiment=good,evil") if kind == "callback" else ("experiment=evil",)
    for flags in (sweep, ("experiment=evil", "--help")):
        done = lab("toy", *flags, "--config-dir", str(extra))
        assert done.returncode == 2, done.stderr
        assert "not allowed" in done.stderr
    assert not (lab.cwd / "marker").exists()
    assert not lab.runs()


def test_what_a_configured_sweep_adds_is_checked_too(lab: Lab) -> None:
    params = "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {optimizer: 'plain,evil'}}}\n"
    extra = hostile(lab.cwd, "experiment", "sweep", params)
    hostile(lab.cwd, "optimizer", "evil", f"# @package _global_\nhydra:\n  {HYDRA_NODES['handler factory']}\n")
    done = lab("toy", "experiment=sweep", "--config-dir", str(extra))
    assert done.returncode == 2, done.stderr
    assert "not allowed" in done.stderr
    assert not (lab.cwd / "marker").exists()


def test_a_yaml_tag_runs_nothing(lab: Lab) -> None:
    extra = hostile(lab.cwd, "experiment", "evil", "x: !!python/object/apply:os.system [touch MARK]\n")
    done = lab("toy", "experiment=evil", "--config-dir", str(extra))
    assert done.returncode == 2
    assert "not valid YAML" in done.stderr
    assert not (lab.cwd / "marker").exists()


def test_user_code_from_a_directory_of_configs(lab: Lab) -> None:
    (lab.cwd / "my_lab.py").write_text("def half(start: float, *, lr: float) -> float: return start * lr / 2\n")
    extra = hostile(lab.cwd, "optimizer", "half", "_target_: my_lab.half\nlr: 1.0\n")
    path = f"{lab.tree}:{lab.cwd}"
    refused = lab("toy", "optimizer=half", "--config-dir", str(extra), PYTHONPATH=path)
    assert refused.returncode == 2
    assert "SYMLAB_PLUGINS" in refused.stderr
    done = lab("toy", "optimizer=half", "--config-dir", str(extra), PYTHONPATH=path, SYMLAB_PLUGINS="my_lab")
    assert done.returncode == 0, done.stderr
    assert (lab.runs()[0] / "metrics.csv").read_text() == "step,value\n0,0.0\n1,0.5\n2,1.0\n"


def test_a_primary_config_may_not_import_a_package(lab: Lab) -> None:
    (lab.cwd / "evil_package").mkdir()
    (lab.cwd / "evil_package" / "__init__.py").write_text(f"open({str(lab.cwd / 'marker')!r}, 'w')")
    text = "defaults: [toy, _self_]\nhydra: {searchpath: ['pkg://evil_package']}\n"
    (lab.cwd / "extra").mkdir()
    (lab.cwd / "extra" / "mine.yaml").write_text(text)
    done = lab("toy", "--config-name", "mine", "--config-dir", "extra")
    assert done.returncode == 2
    assert "pkg://evil_package: not allowed" in done.stderr
    assert not (lab.cwd / "marker").exists()


def test_a_hostile_saved_config_runs_nothing(lab: Lab) -> None:
    run = lab.cwd / "theirs"
    run.mkdir()
    (run / "config.yaml").write_text(f"optimizer: {{_target_: os.system, command: touch {lab.cwd / 'marker'}}}\n")
    done = lab("toy", "resume=theirs")
    assert done.returncode == 2
    assert "optimizer._target_=os.system: not allowed" in done.stderr
    assert not (lab.cwd / "marker").exists()


def test_what_symlab_and_hydra_configure_themselves_is_allowed() -> None:
    from symlab.cli.compose import compose, config_sources

    with config_sources("train", None, None):
        for choice in ([], ["hydra/job_logging=disabled"], ["hydra/job_logging=none"], ["hydra.verbose=true"]):
            safety.check_hydra_node(compose("train", None, choice).hydra)
        levels = ["+hydra.job_logging.loggers.matplotlib.level=ERROR", "hydra.job_logging.root.level=WARNING"]
        safety.check_hydra_node(compose("train", None, levels).hydra)
        threads = ["+hydra.job.env_set.OMP_NUM_THREADS=1", "hydra.callbacks={}"]
        safety.check_hydra_node(compose("train", None, threads).hydra)
