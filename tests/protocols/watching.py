"""A watch for tests of protocols: never stops, or stops at its nth question; keeps what is saved."""

from __future__ import annotations

from typing import Any


class Calm:
    """`stopped` says True from question number `stop_at` on (None: never); `save` keeps the state in memory."""

    def __init__(self, stop_at: int | None = None, kept: dict[str, Any] | None = None, due: bool = False) -> None:
        self.stop_at, self.kept, self.always_due, self.asked = stop_at, kept, due, 0

    def stopped(self) -> bool:
        self.asked += 1
        return self.stop_at is not None and self.asked >= self.stop_at

    def saved(self) -> dict[str, Any] | None:
        return self.kept

    def due(self) -> bool:
        return self.always_due

    def save(self, state: dict[str, Any]) -> None:
        self.kept = dict(state)

    def say(self, text: str) -> None:
        pass
