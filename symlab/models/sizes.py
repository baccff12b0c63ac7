"""Whole numbers that a net is made of."""

from __future__ import annotations


def checked_size(key: str, value: int) -> int:
    """The value, if it is a whole number of at least 1; otherwise TypeError or ValueError that names the key."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{key} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{key} must be at least 1, got {value}")
    return value


def checked_width(key: str, width: int) -> int:
    """The same for one of the widths that a key lists."""
    if isinstance(width, bool) or not isinstance(width, int):
        raise TypeError(f"{key} must hold whole numbers, got {width!r}")
    if width < 1:
        raise ValueError(f"{key} must hold widths of at least 1, got {width}")
    return width
