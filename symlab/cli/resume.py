"""Continuing a run or a sweep: its saved config, the few keys that may change, and when it may not be touched."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from symlab.cli import families, validation
from symlab.cli.arguments import pasteable, value_text
from symlab.cli.compose import compose, is_group, parse, resolved, translated
from symlab.cli.listing import nearest
from symlab.rundir import BadInput, RunDir


def split(overrides: Sequence[str], multirun: bool) -> tuple[Path | None, list[Override]]:
    """The directory of `resume=DIR`, relative to where it was typed, and the other overrides.

    Raises BadInput, with the quoted form, for a value that Hydra's grammar cannot read.
    """
    parsed = parse(overrides, multirun)
    found = [override for override in parsed if override.get_key_element() == "resume"]
    rest = [override for override in parsed if override.get_key_element() != "resume"]
    if not found:
        return None, rest
    value, text = found[-1].value(), str(found[-1].input_line).partition("=")[2]
    if found[-1].is_sweep_override() or not isinstance(value, (str, int, float)):
        raise BadInput(f"resume={text}: expected one directory; quote it twice: {pasteable('resume', text)}")
    return directory("resume", value if isinstance(value, str) else text), rest


def directory(key: str, text: str) -> Path:
    """A directory for runs, relative to where it was typed. Raises BadInput for a name that Hydra would interpolate."""
    if "${" in text:
        raise BadInput(f"{key}={text}: the name of a run's directory cannot hold ${{")
    return Path(os.path.expanduser(text)).absolute()


def load_config(run: RunDir) -> dict[str, Any]:
    """The resolved config that the run was started with."""
    with translated([]):
        config = OmegaConf.create(run.read_config_text())
    if not isinstance(config, DictConfig):
        raise BadInput(f"{run.path / 'config.yaml'} does not hold the keys of a run")
    return resolved(config)


def to_yaml(config: Mapping[str, Any]) -> str:
    """YAML text that `load_config` reads back equal: a literal `${` is escaped."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(dict(config))))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


def open_run(job: str, path: Path) -> RunDir:
    """The run to be continued.

    Raises BadInput if there is none, if the job cannot be resumed or if another process is writing it.
    """
    if validation.resumable_changes(job) is None:
        raise BadInput(f"{job} cannot be resumed: start it anew")
    if not path.is_dir():
        raise BadInput(f"resume={path}: there is no such directory")
    if (path / "multirun.yaml").is_file():
        raise BadInput(f"resume={path}: this is a sweep; repeat its command with -m, and add resume=...")
    run = RunDir.open(path)
    if run.is_claimed:
        raise BadInput(f"resume={path}: another process is writing this run")
    return run


def changed_config(job: str, run: RunDir, overrides: Sequence[Override]) -> dict[str, Any]:
    """The saved config with the overrides that a resumed run may take.

    Raises BadInput, naming the others and the keys that may change.
    """
    config = copy.deepcopy(load_config(run))
    allowed = validation.resumable_changes(job) or ()
    for override in sorted(overrides, key=lambda override: "." in override.key_or_group):  # labels before their keys
        key = override.key_or_group
        refused = override.is_add() or override.is_force_add() or override.is_delete()
        if refused or key.partition(".")[0] not in allowed:
            raise BadInput(
                f"{override.input_line}: a resumed run keeps its configuration; "
                f"only these may change: {', '.join(allowed) or 'none'}"
            )
        if validation.is_family(config.get(key.partition(".")[0])):
            _set_in_family(job, config, override)
        else:
            _set(job, config, override)
    return config


def _set_in_family(job: str, config: dict[str, Any], override: Override) -> None:
    """optimizers=[gd,adam] keeps the saved settings of what was there; optimizers.adam.lr=0.1 changes them."""
    family, *path = override.key_or_group.split(".")
    if not path:
        names = families.names_of(override)
        new = [name for name in names if name not in config[family]]
        if new:
            texts, _ = families.rewritten(job, None, parse([f"{family}=[{','.join(new)}]"], multirun=False))
            composed = resolved(compose(job, None, [str(text.input_line) for text in texts]))
            config[family] |= {name: composed[family][name] for name in new}
        config[family] = {name: config[family][name] for name in names}
        return
    with translated([]):
        value = resolved(OmegaConf.create({"value": override.value()}))["value"]
    target: Any = config[family]
    for place, part in enumerate(path[:-1]):
        if not isinstance(target.get(part), dict):
            known = [".".join((family, *path[:place], str(name))) for name in target]
            key = ".".join((family, *path[: place + 1]))
            raise BadInput(f"{override.input_line}: there is no key {key}{nearest(key, known, 'keys')}")
        target = target[part]
    target[path[-1]] = value


def _set(job: str, config: dict[str, Any], override: Override) -> None:
    path = override.key_or_group.split(".")
    fresh = resolved(compose(job, None, [str(override.input_line)]))
    if is_group(override) or len(path) == 1:
        config[path[0]] = fresh[path[0]]
        return
    target: Any = config
    value: Any = fresh
    for part in path[:-1]:
        target, value = target.get(part, {}), value[part]
    target[path[-1]] = value[path[-1]]


def check_same(run: RunDir, config: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Raises BadInput if the run on disk was made with another config and has results that would be mixed."""
    if not run.has_checkpoint("last") and not run.read_rows():
        return
    before = load_config(run)
    keys = [key for key in {**before, **config} if key not in allowed and before.get(key) != config.get(key)]
    if keys:
        texts = [f"{key}={value_text(before.get(key))}, now {value_text(config.get(key))}" for key in keys]
        raise BadInput(f"{run.path} was made with another configuration: {'; '.join(texts)}")


def open_sweep(job: str, path: Path) -> Path:
    """The directory of the sweep to be continued. Raises BadInput if there is none."""
    if validation.resumable_changes(job) is None:
        raise BadInput(f"{job} cannot be resumed: start it anew")
    if not (path / "multirun.yaml").is_file():
        raise BadInput(f"resume={path}: there is no sweep in this directory (it has no multirun.yaml)")
    return path
