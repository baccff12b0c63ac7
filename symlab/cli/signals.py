"""SIGINT, SIGTERM and SIGUSR1 before and after the job, which installs its own handlers while it runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_received: list[int] = []  # handlers belong to the process, and so does what they saw

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop; not an Exception, so that no library takes it for a failed job."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number


@contextmanager
def stop_on_signal() -> Iterator[None]:
    """Raise Stopped at the first signal and ignore further ones, so that the run can be marked in peace."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received.clear()
    before = {number: signal.signal(number, _stop) for number in WATCHED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def received() -> Stopped | None:
    """The signal that arrived, if one did. A library may turn Stopped into an error of its own on the way out."""
    return Stopped(_received[0]) if _received else None


def _stop(number: int, frame: FrameType | None) -> None:
    for watched in WATCHED:
        signal.signal(watched, signal.SIG_IGN)
    _received.append(number)
    raise Stopped(number)
