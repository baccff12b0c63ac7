"""Counts, writes a row per epoch, and can fail, sleep or be stopped at will."""

import json
import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from symlab.rundir import BadInput, Outcome, RunDir

RESUMABLE_CHANGES = ("epochs", "sleep_s")
KEY_FIGURES = ("final.value",)

logger = logging.getLogger("symlab")


def toy(
    run: RunDir,
    *,
    optimizer: Callable[[float], float],
    seed: int = 0,
    epochs: int = 3,
    rate: float = 1.0,
    names: Sequence[str] = (),
    root: Path | None = None,
    optional: int | None = None,
    sleep_s: float = 0.0,
    fail_at: int | None = None,
    note: str = "",
) -> Outcome:
    stopped: list[int] = []
    before = {number: signal.signal(number, lambda n, _: stopped.append(n)) for number in (2, 10, 15)}
    try:
        return _count(run, optimizer(rate), epochs, sleep_s, fail_at, root, stopped)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _count(run, value, epochs, sleep_s, fail_at, root, stopped):
    if root is not None and not root.is_dir():
        raise BadInput(f"root={root}: there is no such directory")
    state = run.path / "checkpoints" / "last.pt"
    state.parent.mkdir(exist_ok=True)
    start = json.loads(state.read_text()) if run.has_checkpoint("last") else 0
    run.truncate_rows(start - 1)
    for step in range(start, epochs):
        if step == fail_at:
            raise RuntimeError("failed as asked")
        run.append_rows([{"step": step, "value": value * step}])
        logger.info("step %d", step)
        state.write_text(json.dumps(step + 1))
        time.sleep(sleep_s)
        if stopped:
            return Outcome("interrupted", 128 + stopped[0], {"step": step})
    return Outcome(summary={"final": {"value": value * (epochs - 1)}, "cwd_files": len(list(Path().iterdir()))})
