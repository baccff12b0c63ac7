"""Shell completion: symlab completes the job, Hydra what stands behind it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from symlab.cli.listing import jobs

COMMON_FLAGS = ("--help", "--version", "-sc")


def is_query(words: Sequence[str]) -> bool:
    return any(word.startswith("query=") for word in words)


def split_line(line: str) -> tuple[str | None, str]:
    """The job in a line that is being typed, and the line without it.

    None while the job itself is being typed: no space behind it yet.
    """
    command, _, rest = line.lstrip().partition(" ")
    word, space, behind = rest.lstrip().partition(" ")
    if not space or word not in jobs():
        return None, line
    return word, f"{command} {behind}"


def complete_job(line: str) -> list[str]:
    """The jobs that the last word of the line may become."""
    words = line.split()
    typed = words[-1] if len(words) > 1 and not line.endswith(" ") else ""
    if len(words) > 2 or (len(words) == 2 and not typed):
        return []
    names = [*jobs(), *(COMMON_FLAGS if typed.startswith("-") else ())]
    return [name for name in names if name.startswith(typed)]


def without_spaces(candidates: str) -> str:
    """Hydra's candidates, by blanks or line breaks, without the ranges for a search."""
    separator = "\n" if "\n" in candidates.strip() else " "
    kept = [word for word in candidates.strip().split(separator) if "._tune_" not in word]
    return separator.join(kept) + "\n"


def line_being_typed() -> str:
    """COMP_LINE up to the cursor."""
    line = os.environ.get("COMP_LINE", "")
    point = os.environ.get("COMP_POINT", "")
    return line[: int(point)] if point.isdigit() else line
