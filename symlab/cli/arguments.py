"""Splits the command line into job, flags and overrides, before Hydra sees any of it (no hydra import)."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from symlab.rundir import BadInput

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@dataclass(frozen=True)
class Arguments:
    """One command line: the job, Hydra's flags, and the overrides in the order they were typed."""

    job: str | None
    overrides: tuple[str, ...]
    multirun: bool
    help: bool
    version: bool
    show: tuple[str, ...]  # flags that show something instead of running: --cfg, --info, --hydra-help
    completion: bool
    config_name: str | None
    config_dir: Path | None


def parse(argv: Sequence[str]) -> Arguments:
    """Flags and overrides may stand in any order; the first bare word is the job.

    Raises BadInput for flags that symlab does not take; SystemExit(2) for unknown ones, like any argparse tool.
    """
    flags = _parser().parse_intermixed_args(list(argv))
    if flags.experimental_rerun is not None:
        raise BadInput("--experimental-rerun loads a pickle, which can run code: use resume=DIR")
    if flags.config_path is not None:
        raise BadInput("--config-path would hide symlab's own configuration: use --config-dir DIR to add to it")
    if (flags.resolve or flags.package) and not flags.cfg:
        raise BadInput("--resolve and --package go with --cfg, e.g. --cfg job --resolve")
    words = list(flags.words)
    job = words.pop(0) if words and "=" not in words[0] else None
    config_dir = None if flags.config_dir is None else Path(flags.config_dir).absolute()
    if config_dir is not None and not config_dir.is_dir():
        raise BadInput(f"--config-dir {flags.config_dir}: there is no directory {config_dir}")
    return Arguments(
        job=job,
        overrides=tuple(words),
        multirun=flags.multirun or "hydra.mode=MULTIRUN" in words,
        help=flags.help,
        version=flags.version,
        show=_show(flags),
        completion=flags.shell_completion,
        config_name=flags.config_name,
        config_dir=config_dir,
    )


def _show(flags: argparse.Namespace) -> tuple[str, ...]:
    show: list[str] = []
    show += ["--hydra-help"] if flags.hydra_help else []
    show += ["--cfg", flags.cfg] if flags.cfg else []
    show += ["--resolve"] if flags.resolve else []
    show += ["--package", flags.package] if flags.package else []
    show += ["--info", flags.info] if flags.info else []
    return tuple(show)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="symlab", add_help=False, allow_abbrev=False, usage="symlab JOB [KEY=VALUE ...]"
    )
    add = parser.add_argument
    add("words", nargs="*")
    add("--help", "-h", action="store_true")
    add("--version", action="store_true")
    add("--hydra-help", action="store_true")
    add("--multirun", "-m", action="store_true")
    add("--run", "-r", action="store_true")
    add("--shell-completion", "-sc", action="store_true")
    add("--cfg", "-c", choices=("job", "hydra", "all"))
    add("--resolve", action="store_true")
    add("--package", "-p")
    add("--config-name", "-cn")
    add("--config-dir", "-cd")
    add("--config-path", "-cp")
    add("--experimental-rerun")
    add("--info", "-i", nargs="?", const="all", choices=INFO)
    return parser


def quoted_value(value: str) -> str:
    """The text as Hydra reads it back, quoted if it holds more than plain characters or looks like another type."""
    if re.fullmatch(r"[A-Za-z0-9/._+-]+", value) and not _is_another_type(value):
        return value
    doubled = re.sub(r'\\+(?="|$)', lambda found: found[0] * 2, value)  # only before a quote is a backslash special
    escaped = doubled.replace('"', '\\"').replace("${", "\\${")
    return f'"{escaped}"'


def _is_another_type(value: str) -> bool:
    if value.lower() in ("true", "false", "null"):
        return True
    try:
        float(value)
    except ValueError:
        return False
    return True


def override_text(key: str, value: str) -> str:
    """key=value, ready for Hydra."""
    return f"{key}={quoted_value(value)}"


def pasteable(key: str, value: str) -> str:
    """key=value, ready for the shell: Hydra's quotes inside the shell's."""
    return shlex.quote(override_text(key, value))


def value_text(value: object) -> str:
    """A value as a person would type it: true, null, 0.1, [1,2], text."""
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False, default=str)
