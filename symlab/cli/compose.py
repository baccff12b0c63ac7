"""Composes configs through Hydra, and turns what Hydra says when it cannot into one plain message."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from symlab.cli import resolvers
from symlab.cli.arguments import override_text, pasteable
from symlab.cli.listing import config_dir, nearest
from symlab.rundir import BadInput

resolvers.register()


class ExtraConfigDir(SearchPathPlugin):
    """Adds the directory of --config-dir behind symlab's own, for composing ahead and for Hydra's run alike."""

    directory: Path | None = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if ExtraConfigDir.directory is not None:
            search_path.append(provider="--config-dir", path=f"file://{ExtraConfigDir.directory}")


@contextmanager
def config_sources(job: str, extra: Path | None, name: str | None) -> Iterator[None]:
    """Hydra's config loader over conf/ and `extra`, for the calls below.

    Raises BadInput if the config `name` is not there or would load configs out of a Python package.
    """
    _check_primary(name or job, extra)
    Plugins.instance().register(ExtraConfigDir)
    ExtraConfigDir.directory = extra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(config_dir()), version_base="1.3", job_name=job):
            yield
    finally:
        ExtraConfigDir.directory = None


def _check_primary(name: str, extra: Path | None) -> None:
    folders = [config_dir()] + ([extra] if extra is not None else [])
    stem = name.removesuffix(".yaml")
    files = [folder / f"{stem}.yaml" for folder in folders]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        known = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")} - {"base"})
        raise BadInput(f"--config-name {name}: there is no {stem}.yaml{nearest(stem, known, 'configs')}")
    if found.parent != config_dir():
        _refuse_packages(found)


def _refuse_packages(file: Path) -> None:
    """pkg:// in a search path imports the package that it names, before anything can be checked."""
    with translated([]):
        leaves = [OmegaConf.to_container(OmegaConf.load(file), resolve=False)]
    while leaves:
        value = leaves.pop()
        if isinstance(value, dict):
            leaves += value.values()
        elif isinstance(value, list):
            leaves += value
        elif isinstance(value, str) and "pkg:" in value:
            raise BadInput(f"{file}: {value}: not allowed; a config takes others from directories only (file://...)")


def parse(overrides: Sequence[str], multirun: bool) -> list[Override]:
    """The overrides, parsed by Hydra's grammar.

    Raises BadInput, with the quoted form, for one that does not parse or that means a sweep without -m.
    """
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return [_parse_one(parser, text, multirun) for text in overrides]


def _parse_one(parser: OverridesParser, text: str, multirun: bool) -> Override:
    key, equals, value = text.partition("=")
    if not __debug__:
        text = f"{key}{equals}{listed_range(value)}"
    if not equals and not key.startswith("~"):
        raise BadInput(f"{text}: expected KEY=VALUE (the job comes first: symlab JOB KEY=VALUE ...)")
    try:
        override = parser.parse_overrides([text])[0]
    except AttributeError:
        raise BadInput(f"{text}: Hydra cannot read functions and {{...}} under PYTHONOPTIMIZE: unset it") from None
    except OverrideParseException:
        hint = f"; if it is one text, quote it twice: {pasteable(key, value)}"
        raise BadInput(f"{text}: Hydra cannot read this value{hint}") from None
    if _names_no_option(override):
        raise BadInput(f"{text}: names no option; leave it out, or write ~{key.lstrip('+')} to go without one")
    if override.is_sweep_override() and not multirun:
        hint = f"add -m for one run each, or quote it twice if it is one text: {pasteable(key, value)}"
        raise BadInput(f"{text}: several values; {hint}")
    return override


def _names_no_option(override: Override) -> bool:
    """GROUP=null, which Hydra does not compose, also as one value of a sweep."""
    if override.is_delete() or not is_group(override):
        return False
    swept = override.is_sweep_override() and override.is_discrete_sweep()
    values = list(override.sweep_string_iterator()) if swept else [override.get_value_element_as_str()]
    return any(value in ("", "null") for value in values)


def listed_range(value: str) -> str:
    """range(a,b,step) of whole numbers as a,b,c: Hydra's parser of functions needs the asserts that -O removes."""
    numbers = re.fullmatch(r"range\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?(?:,\s*(-?[1-9]\d*)\s*)?\)", value)
    if numbers is None:
        return value
    return ",".join(map(str, range(*(int(number) for number in numbers.groups() if number is not None))))


def expand(overrides: Sequence[Override]) -> list[list[str]]:
    """One list of plain overrides for each combination of the values that are swept over."""
    choices = []
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices.append([str(override.input_line)])
        elif override.is_discrete_sweep():
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:  # an interval, for sweepers that choose values themselves
            value = override.value()
            choices.append([f"{key}={value.start if isinstance(value, IntervalSweep) else value}"])
    return [list(combination) for combination in itertools.product(*choices)]


def is_group(override: Override) -> bool:
    """Whether the override chooses an option of a group."""
    parent, _, name = override.key_or_group.partition("@")[0].rpartition("/")
    return name in GlobalHydra.instance().config_loader().list_groups(parent)


def compose(job: str, name: str | None, overrides: Sequence[str]) -> DictConfig:
    """The composed config with Hydra's own node; nothing of it has been acted upon.

    Raises BadInput.
    """
    with translated(overrides, job, name, composing=True):
        return hydra.compose(
            name or job, overrides=[*overrides, override_text("hydra.job.name", job)], return_hydra_config=True
        )


def resolved(config: DictConfig) -> dict[str, Any]:
    """The job's config as plain values, every interpolation resolved, without Hydra's node.

    Raises BadInput, with the key, for a missing value or an interpolation that cannot be resolved.
    """
    job_config = copy.deepcopy(config)
    with open_dict(job_config):
        job_config.pop("hydra", None)
    with translated([]):
        plain = OmegaConf.to_container(job_config, resolve=True, throw_on_missing=True)
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


@contextmanager
def translated(
    overrides: Sequence[str], job: str | None = None, name: str | None = None, composing: bool = False
) -> Iterator[None]:
    """Errors of Hydra, OmegaConf and the YAML parser leave this block as BadInput."""
    try:
        yield
    except MissingConfigException as error:
        raise BadInput(_missing_option(error)) from error
    except ConfigCompositionException as error:
        raise BadInput(_composition(error, overrides, job, name)) from error
    except OmegaConfBaseException as error:
        raise BadInput(_omegaconf(error)) from error
    except yaml.YAMLError as error:
        raise BadInput(f"a configuration file is not valid YAML: {' '.join(str(error).split())}") from error
    except HydraException as error:
        raise BadInput(_first_line(error)) from error
    except (ValueError, TypeError) as error:
        if isinstance(error, BadInput) or not composing:
            raise
        raise BadInput(f"{' '.join(overrides)}: {_first_line(error)}") from error


def _missing_option(error: MissingConfigException) -> str:
    wanted = str(error.missing_cfg_file or "")
    group, _, option = wanted.rpartition("/")
    if not error.options:
        return _first_line(error)
    return f"{group}={option}: there is no such option{nearest(option, error.options, 'options')}"


def _composition(error: Exception, overrides: Sequence[str], job: str | None, name: str | None) -> str:
    """Name the override whose key is unknown, with the nearest keys; else what Hydra says."""
    if job is None:
        return _first_line(error)
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    groups = [o for o in parsed if is_group(o) and not o.is_delete()]
    try:
        base = hydra.compose(name or job, overrides=[str(o.input_line) for o in groups])
    except HydraException:
        return _first_line(error)  # the group choices themselves do not fit together
    there = [*dotted(OmegaConf.to_container(base, resolve=False)), "hydra"]
    gone = tuple(f"{o.key_or_group}." for o in parsed if o.is_delete() and not is_group(o))
    left = [key for key in there if not f"{key}.".startswith(gone)] if gone else there
    for override in parsed:
        key, known = override.key_or_group, there if override.is_delete() else left
        plain = not (override.is_add() or override.is_force_add() or is_group(override))
        if plain and key not in known and not key.startswith("hydra."):
            similar = [name for name in known if "_tune_" not in name or "_tune_" in key]
            return f"{override.input_line}: there is no key {key}{nearest(key, similar, 'keys')}"
    return _first_line(error)


def dotted(node: Any, prefix: str = "") -> Iterator[str]:
    """All keys of a nested mapping, as one types them."""
    for key, value in node.items():
        if key != "_target_":
            yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")


def _omegaconf(error: OmegaConfBaseException) -> str:
    key = error.full_key or error.key
    text = str(error).strip().splitlines()[0].replace("KeyError raised while resolving interpolation: ", "")
    hint = "; set it, or give another value: ${oc.env:NAME,other}" if "Environment variable" in text else ""
    return f"{key}: {text}{hint}" if key else text


def _first_line(error: BaseException) -> str:
    """The message in one line, without the lines about OmegaConf's types."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error.__cause__, OmegaConfBaseException):
        lines += str(error.__cause__).strip().splitlines()
    said = dict.fromkeys(line.strip().rstrip(".:") for line in lines)
    return ": ".join(
        line for line in said if line and not line.startswith(("full_key:", "object_type=", "reference_type="))
    )
