"""The signature is the schema: turns the composed config into the arguments of the job's function."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symlab.cli import names
from symlab.cli.arguments import value_text
from symlab.cli.conversion import convert, describe
from symlab.cli.listing import nearest
from symlab.rundir import BadInput

SPACE = "_tune_"  # reserved key of a group's node: the ranges of its other keys for a search
SEARCH = "search"  # the argument of the jobs that use them


@dataclass(frozen=True)
class Factory:
    """A function of a group node with the node's keys already in place; its errors name the key.

    Called like functools.partial(func, **keywords). `space` holds the node's `_tune_`: the ranges in which a search
    may vary the keywords.
    """

    group: str
    func: Callable[..., Any]
    keywords: Mapping[str, Any]
    space: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        used = {**self.keywords, **kwargs}  # like functools.partial: the call's own win
        try:
            return self.func(*args, **used)
        except BadInput:
            raise
        except (ValueError, TypeError) as error:
            raise BadInput(self._explain(str(error), used)) from error

    @property
    def __name__(self) -> str:
        return self.func.__name__

    def _explain(self, message: str, used: Mapping[str, Any]) -> str:
        """Put the key in front: the one of the keywords that the message names first, with the value it had."""
        words = re.findall(r"\w+", message)
        named = [word for word in words if word in used]
        if named:
            return f"{self.group}.{named[0]}={value_text(used[named[0]])}: {message}"
        return f"{self.group}={self.func.__name__}: {message}"


def job_function(job: str) -> Callable[..., Any]:
    """symlab/jobs/<job>.py, the function of the same name."""
    return getattr(importlib.import_module(f"symlab.jobs.{job}"), job)


def resumable_changes(job: str) -> tuple[str, ...] | None:
    """The keys that a resumed run may change: RESUMABLE_CHANGES of the job's module; None: cannot be resumed."""
    return getattr(importlib.import_module(f"symlab.jobs.{job}"), "RESUMABLE_CHANGES", None)


def bind(job: str, config: Mapping[str, Any], cwd: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of the job's function, and the config as it is saved: its paths absolute, with the search spaces only
    if the job has an argument `search`.

    Raises BadInput for an unknown key, a wrong type, a missing key or a target that is not allowed.
    """
    parameters = _parameters(job_function(job))
    arguments: dict[str, Any] = {}
    saved: dict[str, Any] = {}
    for key, value in config.items():
        if key not in parameters:
            raise BadInput(_unknown(key, value, job, parameters))
        if isinstance(value, dict) and "_target_" in value:
            arguments[key], saved[key] = _bind_group(key, value, cwd)
            saved[key] = saved[key] if SEARCH in parameters else without_space(saved[key])
        elif is_family(value):
            _check_family(key, value)
            bound = {name: _bind_group(f"{key}.{name}", node, cwd) for name, node in value.items()}
            arguments[key] = {name: factory for name, (factory, _) in bound.items()}
            nodes = {name: node for name, (_, node) in bound.items()}
            saved[key] = nodes if SEARCH in parameters else {k: without_space(node) for k, node in nodes.items()}
        else:
            arguments[key] = convert(key, value, parameters[key].annotation, cwd)
            saved[key] = plain(arguments[key])
    missing = [k for k, p in parameters.items() if k not in config and p.default is inspect.Parameter.empty]
    if missing:
        raise BadInput(f"{job} needs {', '.join(missing)}, which the config does not set: add {missing[0]}=...")
    return arguments, saved


def is_family(value: Any) -> bool:
    """Several options of one group by name, as of `optimizer@optimizers.adam: adam`."""
    return isinstance(value, dict) and any(isinstance(node, dict) and "_target_" in node for node in value.values())


def _check_family(key: str, nodes: Mapping[str, Any]) -> None:
    """Raises BadInput for a label that is no option, such as settings for one that no defaults list adds."""
    for label, node in nodes.items():
        if not (isinstance(node, dict) and "_target_" in node):
            group = key.removesuffix("s")
            raise BadInput(
                f"{key}.{label}={value_text(node)}: expected an option of its group: "
                f"{group}@{key}.{label}=OPTION (a + in front adds one), or ~{key}.{label} to leave it out"
            )


def _bind_group(group: str, node: Mapping[str, Any], cwd: Path) -> tuple[Factory, dict[str, Any]]:
    function = names.resolve(group, node["_target_"])
    parameters = _parameters(function)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    keywords: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("_target_", SPACE):
            continue
        if key in parameters:
            keywords[key] = convert(f"{group}.{key}", value, parameters[key].annotation, cwd)
        elif open_ended:
            keywords[key] = value
        else:
            raise BadInput(_unknown(f"{group}.{key}", value, function.__name__, parameters))
    saved = {"_target_": node["_target_"]} | {key: plain(value) for key, value in keywords.items()}
    space = _space(f"{group}.{SPACE}", node.get(SPACE) or {}, function.__name__, parameters, open_ended, cwd)
    if space:
        saved[SPACE] = space
    return Factory(group, function, keywords, space), saved


def _space(
    group: str, node: Any, owner: str, parameters: Mapping[str, inspect.Parameter], open_ended: bool, cwd: Path
) -> dict[str, Any]:
    """What a search may vary, without what is null: keys that the function has, values of the kind that it takes.

    The rest is for the search to check. Raises BadInput, naming the key.
    """
    if not isinstance(node, dict):
        raise BadInput(f"{group}={value_text(node)}: expected a mapping from keys to their ranges, or null")
    space = {}
    for key, entry in node.items():
        if key not in parameters and not open_ended:
            raise BadInput(_unknown(f"{group}.{key}", entry, owner, parameters))
        if entry is None:
            continue
        if not isinstance(entry, dict):
            expected = "expected {low: ..., high: ..., scale: ...} or {choices: [...]}"
            raise BadInput(f"{group}.{key}={value_text(entry)}: {expected}")
        space[key] = {name: value for name, value in entry.items() if value is not None}
        annotation = parameters[key].annotation if key in parameters else Any
        choices = entry.get("choices")
        for place, choice in enumerate(choices if isinstance(choices, list) else []):
            convert(f"{group}.{key}.choices[{place}]", choice, annotation, cwd)
        if "low" in space[key]:
            _check_takes_decimals(f"{group}.{key}", annotation, cwd)
    return space


def _check_takes_decimals(key: str, annotation: Any, cwd: Path) -> None:
    """A range holds all numbers between its ends."""
    try:
        convert(key, 0.5, annotation, cwd)
    except BadInput:
        wanted = describe(annotation)
        raise BadInput(
            f"{key}: a range gives decimal numbers, this key takes {wanted}: use {{choices: [...]}}"
        ) from None


def without_space(node: Mapping[str, Any]) -> dict[str, Any]:
    """A group's node without its `_tune_`."""
    return {key: value for key, value in node.items() if key != SPACE}


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a config may set: keyword-only arguments and those with a default, annotations evaluated."""
    settable = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
        or (parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is not parameter.empty)
    }
    annotated = types.SimpleNamespace(
        __annotations__={
            name: parameter.annotation
            for name, parameter in settable.items()
            if parameter.annotation is not parameter.empty
        }
    )
    hints = typing.get_type_hints(annotated, vars(sys.modules[function.__module__]))
    return {name: p.replace(annotation=hints.get(name, p.empty)) for name, p in settable.items()}


def _unknown(key: str, value: Any, owner: str, parameters: Mapping[str, Any]) -> str:
    prefix, dot, name = key.rpartition(".")
    keys = [prefix + dot + known for known in parameters]
    close = nearest(key, keys, "keys").partition("; there")[0]
    return f"{key}={value_text(value)}: {owner} has no key {name}{close}; its keys: {', '.join(parameters) or 'none'}"


def plain(value: Any) -> Any:
    """A checked value as YAML holds it: Path as text, tuple as list."""
    match value:
        case Path():
            return str(value)
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
    return value


def key_figures(job: str) -> tuple[str, ...] | None:
    """Dotted names in the summary that a sweep's table shows: KEY_FIGURES of the job's module."""
    return getattr(importlib.import_module(f"symlab.jobs.{job}"), "KEY_FIGURES", None)
