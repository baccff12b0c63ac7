"""A factory without PyTorch."""

import os  # noqa: F401 - a config must not reach it through this module


def plain(start: float, *, lr: float) -> float:
    if not lr > 0:
        raise ValueError(f"lr must be positive, got {lr}")
    return start * lr


def _private(start: float) -> float:
    return start
