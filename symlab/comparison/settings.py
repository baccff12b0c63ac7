"""Factories with other values in place, and what stands in a factory, as plain values."""

import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from symlab.rundir import BadInput

SCHEDULE = "schedule"


@runtime_checkable
class Bound(Protocol):
    """A function with keywords in place: `functools.partial`, and what a config's node becomes."""

    @property
    def func(self) -> Callable[..., Any]: ...
    @property
    def keywords(self) -> Mapping[str, Any]: ...


@runtime_checkable
class Searched(Protocol):
    """A factory that declares the space of its settings."""

    @property
    def space(self) -> Mapping[str, Any]: ...


def space_of(factory: Callable[..., Any]) -> Mapping[str, Any]:
    """The space that the factory declares, as `symlab.search.Space.of` reads it; empty if there is none."""
    if isinstance(factory, Searched):
        return factory.space
    return space_of(factory.func) if isinstance(factory, Bound) else {}


def keywords_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """All keywords in place, the outermost of equal names winning."""
    if not isinstance(factory, Bound):
        return {}
    return keywords_of(factory.func) | dict(factory.keywords)


def function_of(factory: Callable[..., Any]) -> Callable[..., Any]:
    """The function that is called in the end."""
    return function_of(factory.func) if isinstance(factory, Bound) else factory


def described(factory: Callable[..., Any]) -> dict[str, Any]:
    """{"function": its dotted name, "keywords": its values}: equal only for factories that do the same.

    Raises BadInput for a function without a name of its own (a lambda, one defined inside another, an object).
    """
    function = function_of(factory)
    name = getattr(function, "__qualname__", "<object>")
    if "<" in name:
        raise BadInput(
            f"{function!r} cannot be told from others of its kind: use a function or class of a module, with "
            "functools.partial or symlab.search.Tunable for its values"
        )
    return {"function": f"{function.__module__}.{name}", "keywords": plain(keywords_of(factory))}


def plain(value: Any) -> Any:
    """Numbers, text, lists and mappings, as JSON holds them; functions by name. Raises BadInput for other values."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Path():
            return str(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    if callable(value):
        return described(value)
    raise BadInput(f"a comparison cannot tell values of type {type(value).__name__} apart, got {value!r}")


def foreign_code(factories: Iterable[Callable[..., Any]]) -> str:
    """Names of the modules outside of symlab that the factories' functions come from, each with a digest of its file.

    Only these files: what they import may change unseen.
    """
    modules = {function_of(factory).__module__ for factory in factories}
    digests = []
    for name in sorted(modules):
        file = getattr(sys.modules.get(name), "__file__", None)
        if name.partition(".")[0] != "symlab" and file is not None:
            digests.append(f"{name} {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:8]}")
    return ", ".join(digests)


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of the optimizer, and values of the schedule (`schedule.final` -> final), without the schedule's name."""
    own = {key: value for key, value in settings.items() if key.partition(".")[0] != SCHEDULE}
    of_schedule = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{SCHEDULE}.")}
    return own, of_schedule


def with_values(factory: Callable[..., Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    """The factory with these keywords in place of its own."""
    return functools.partial(factory, **values) if values else factory
