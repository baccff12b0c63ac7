"""The bar on the terminal."""

import sys
from typing import NoReturn

from tqdm import tqdm


def progress_bar(total: int, done: int, wanted: bool) -> "tqdm[NoReturn]":
    """A bar over steps on stderr that starts at `done`; silent when not `wanted` or when stderr is no terminal."""
    return tqdm(total=total, initial=done, unit="step", disable=not (wanted and sys.stderr.isatty()))
