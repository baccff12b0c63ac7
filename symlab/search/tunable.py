"""A factory with the space in which its settings are searched, for use from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tunable:
    """f(*args, **{**keywords, **kwargs}), like functools.partial, with a `space` for the search.

    `space` is a plain mapping of keywords of `func` to `{low, high, scale}` or `{choices}`, as `Space.of` reads it.
    """

    func: Callable[..., Any]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **{**self.keywords, **kwargs})

    @property
    def __name__(self) -> str:
        return self.func.__name__
