"""Checks one value of the config against the annotation of the argument that it becomes."""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import os
import re
import types
import typing
from pathlib import Path
from typing import Any

from symlab.cli.arguments import pasteable, value_text
from symlab.rundir import BadInput

SEQUENCES = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
MAPPINGS = (dict, collections.abc.Mapping)
ANYTHING = (Any, inspect.Parameter.empty, object)


class Mismatch(ValueError):
    """The value does not fit; the text says what would."""


def convert(key: str, value: Any, annotation: Any, cwd: Path) -> Any:
    """The value as the argument wants it: int to float, text to an absolute Path (relative to `cwd`), list to tuple.

    Raises BadInput with the key, the value and what would be right.
    """
    try:
        return _convert(value, annotation, cwd)
    except Mismatch as mismatch:
        hint = _hint(key, value, annotation)
        shown = f'"{value}"' if _looks_like_number(value) else value_text(value)
        raise BadInput(f"{key}={shown}: expected {mismatch}, got {_kind(value)}{hint}") from None


def _convert(value: Any, annotation: Any, cwd: Path) -> Any:
    if annotation in ANYTHING:
        return value
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _convert(value, typing.get_args(annotation)[0], cwd)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, annotation, cwd)
    if origin is typing.Literal:
        choices = typing.get_args(annotation)
        if any(value == choice and type(value) is type(choice) for choice in choices):
            return value
        raise Mismatch(f"one of {', '.join(map(value_text, choices))}")
    if (origin or annotation) is tuple:
        return _convert_tuple(value, typing.get_args(annotation), cwd)
    if (origin or annotation) in SEQUENCES:
        return _convert_list(value, typing.get_args(annotation), cwd)
    if (origin or annotation) in MAPPINGS:
        return _convert_mapping(value, typing.get_args(annotation), cwd)
    return _convert_scalar(value, annotation, cwd)


def _convert_scalar(value: Any, annotation: Any, cwd: Path) -> Any:
    if annotation is float and type(value) in (int, float):
        return float(value)
    if annotation in (int, bool, str, float) and type(value) is annotation:
        return value
    if annotation in (None, type(None)) and value is None:
        return None
    if annotation is Path and type(value) is str:
        return Path(os.path.abspath(cwd / os.path.expanduser(value)))
    raise Mismatch(describe(annotation))


def _convert_union(value: Any, annotation: Any, cwd: Path) -> Any:
    members = typing.get_args(annotation)
    for member in sorted(members, key=lambda member: member is float):  # an int stays one where it may
        with contextlib.suppress(Mismatch):
            return _convert(value, member, cwd)
    raise Mismatch(describe(annotation))


def _convert_list(value: Any, item: tuple[Any, ...], cwd: Path) -> list[Any]:
    if not isinstance(value, list):
        raise Mismatch(f"a list of {describe(item[0])}" if item else "a list")
    return [_convert(entry, item[0] if item else Any, cwd) for entry in value]


def _convert_tuple(value: Any, items: tuple[Any, ...], cwd: Path) -> tuple[Any, ...]:
    if not items or items[-1] is Ellipsis:
        return tuple(_convert_list(value, items[:1], cwd))
    if not isinstance(value, list) or len(value) != len(items):
        raise Mismatch(f"a list of {len(items)}: {', '.join(map(describe, items))}")
    return tuple(_convert(entry, item, cwd) for entry, item in zip(value, items, strict=True))


def _convert_mapping(value: Any, items: tuple[Any, ...], cwd: Path) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise Mismatch("a mapping")
    return {name: _convert(entry, items[1] if items else Any, cwd) for name, entry in value.items()}


def describe(annotation: Any) -> str:
    """The annotation in words."""
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        Path: "a path",
        type(None): "null",
        None: "null",
    }
    if annotation in words:
        return words[annotation]
    origin, items = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(item) for item in items)
    if (origin or annotation) in (*SEQUENCES, tuple):
        return f"a list of {describe(items[0])}" if items else "a list"
    if (origin or annotation) in MAPPINGS:
        return f"a mapping {{name: {describe(items[1])}}}" if items else "a mapping"
    if origin is typing.Literal:
        return f"one of {', '.join(map(value_text, items))}"
    if origin is collections.abc.Callable or callable(annotation):
        return "an option of the group"
    return str(annotation)


def _kind(value: Any) -> str:
    kinds = {dict: "a mapping", list: "a list", float: "a decimal number"}
    return kinds.get(type(value)) or describe(type(value))


def _looks_like_number(value: Any) -> bool:
    """Text that one takes for a number unless it stands in quotes."""
    return isinstance(value, str) and re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", value) is not None


def _hint(key: str, value: Any, annotation: Any) -> str:
    """Numbers, true and null meant as text need quotes."""
    wants_text = annotation is str or str in typing.get_args(annotation)
    if wants_text and not isinstance(value, (str, list, dict)):
        return f" (as text: '{key}=\"{value_text(value)}\"')"
    if isinstance(value, list) and wants_text:
        return f" (as text: {pasteable(key, value_text(value))})"
    return ""
