"""When checkpoints are written, and how a run picks up from the last one."""

import time

from symlab.rundir import RunDir
from symlab.training.best import Best
from symlab.training.checkpoint import capture, capture_best, restore
from symlab.training.state import Training


class Keeper:
    """Writes the checkpoints `last` (everything) and `best` (the best weights) of a run.

    `best` is written first: whatever `last` says about the best value, the file `best` holds it, or one that the
    continued run will reach again. Of several processes rank 0 writes and reads; the others are given what it read.
    """

    def __init__(
        self, run: RunDir, training: Training, best: Best, *, seed: int, steps_per_epoch: int, every_s: float
    ) -> None:
        self.run, self.training, self.best = run, training, best
        self.seed, self.steps_per_epoch, self.every_s = seed, steps_per_epoch, every_s
        self._saved_at = time.monotonic()

    def resume(self) -> bool:
        """Continue from `last` if there is one; rows that it does not know of go, for they are made again."""
        there = self._writes and self.run.has_checkpoint("last")
        state = self.training.how.processes.first(self.run.load_checkpoint("last") if there else None)
        if state is not None:
            restore(state, self.training, self.best, self.seed, self.steps_per_epoch)
        self.run.truncate_rows(self.training.evaluated)
        return state is not None

    @property
    def _writes(self) -> bool:
        return self.training.how.processes.writes

    def save_when_due(self) -> None:
        """Save if the last save is at least `every_s` seconds ago."""
        if time.monotonic() - self._saved_at >= self.every_s:
            self.save()

    def save(self) -> None:
        """Write `best` if it is new, then `last`."""
        if not self._writes:
            return
        if self.best.unsaved_weights is not None:
            self.run.save_checkpoint("best", capture_best(self.best, self.seed))
            self.best.unsaved_weights = None
        self.run.save_checkpoint("last", capture(self.training, self.best, self.seed, self.steps_per_epoch))
        self._saved_at = time.monotonic()
