"""How a run ended: the value that a job returns, and the exception for input that cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COMPLETED, FAILED, BAD_INPUT, DIVERGED = 0, 1, 2, 3  # exit codes; a signal's is 128 + its number

STATUSES = ("completed", "diverged", "interrupted", "failed")


class BadInput(ValueError):
    """The user's input cannot work: one message that names the key, its value and what would be right."""


@dataclass(frozen=True)
class Outcome:
    """What a job returns.

    status: "completed", "diverged" (a non-finite loss ended the run), "interrupted" (a signal did; the
    run can be resumed) or "failed" (the job came to its end, but a part of what it was to do is missing).
    exit_code: 0 completed, 1 failed, 3 diverged, 128 + signal number when interrupted (130 SIGINT, 143
    SIGTERM, 138 SIGUSR1). summary: the key figures, plain JSON values.

    Raises ValueError for an unknown status.
    """

    status: str = "completed"
    exit_code: int = COMPLETED
    summary: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")
