"""Signals that ask a run to stop: remembered, not obeyed at once, so that the run can save first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Callable as the `stop` of `fit`; `signal_number` is that of the first signal, None while there was none."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._interrupts = 0

    def __call__(self) -> bool:
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """128 + signal number: 143 SIGTERM, 130 SIGINT, 138 SIGUSR1; 0 while there was none."""
        return 0 if self.signal_number is None else 128 + self.signal_number

    @property
    def forced(self) -> bool:
        """Whether a second SIGINT asked to stop at once."""
        return self._interrupts > 1

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        """The handler. A second SIGINT raises KeyboardInterrupt at once."""
        self._interrupts += number == signal.SIGINT
        if self.forced:
            raise KeyboardInterrupt
        if self.signal_number is None:
            self.signal_number = int(number)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Catch SIGTERM, SIGINT and SIGUSR1 inside the block and put the former handlers back after it.

    Python lets only the main thread set handlers; in another thread nothing is caught.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    former = {number: signal.signal(number, request.receive) for number in STOPPING}
    try:
        yield request
    except Exception as error:
        if request.forced:  # a library may turn KeyboardInterrupt into an error of its own on the way out
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
