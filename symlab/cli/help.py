"""The text of `symlab JOB --help`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from symlab.cli.arguments import Arguments
from symlab.cli.families import families
from symlab.cli.listing import config_dir, groups, jobs
from symlab.cli.validation import SEARCH, SPACE


def job_help(job: str, arguments: Arguments, config: DictConfig) -> str:
    """Groups with their options (the chosen one in brackets) and all keys with their values."""
    command = job.replace("_", "-")
    folders = [config_dir()] + ([arguments.config_dir] if arguments.config_dir is not None else [])
    options = groups(folders)
    choices = {key: chosen for key, chosen in config.hydra.runtime.choices.items() if _is_shown(key, options, config)}
    width = max((len(key) for key in choices), default=0)
    lines = [f"  {key:<{width}}  {_options(options[key.partition('@')[0]], choices[key])}" for key in choices]
    lists = families(config)
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    del plain["hydra"]
    shown = OmegaConf.create(plain if SEARCH in plain else _without_spaces(plain))
    keys = "\n".join(f"  {line}" for line in OmegaConf.to_yaml(shown).splitlines())
    return "\n".join(
        [
            f"symlab {command}: {jobs()[command]}",
            "",
            f"usage: symlab {command} [GROUP=OPTION ...] [KEY=VALUE ...] [-m] [--cfg job] [--config-dir DIR]",
            "",
            "groups and their options, the chosen one in brackets (GROUP=OPTION chooses another):",
            *lines,
            *(f"  {key}=[NAME,...] chooses the labels of {group}@{key}" for key, group in lists.items()),
            "",
            "keys and their values (KEY=VALUE changes one; a dot goes inside: optimizer.lr=0.1):",
            keys,
            "",
            "-m KEY=A,B makes one run for each value; resume=DIR continues a run; --cfg job prints the configuration.",
            "A value with spaces or any of = , [ ] ( ) { } # ~ is quoted twice: 'data.root=\"a=1\"'.",
        ]
    )


def _is_shown(choice: str, options: Mapping[str, list[str]], config: DictConfig) -> bool:
    """Groups that have options; one in a package of its own only if it was not taken out."""
    group, _, package = choice.partition("@")
    return group in options and (not package or OmegaConf.select(config, package) is not None)


def _without_spaces(node: Any) -> Any:
    """The ranges for a search mean nothing to a job that has none."""
    if not isinstance(node, dict):
        return node
    return {key: _without_spaces(value) for key, value in node.items() if key != SPACE}


def _options(options: list[str], chosen: str | None) -> str:
    return " ".join(f"[{option}]" if option == chosen else option for option in options)
