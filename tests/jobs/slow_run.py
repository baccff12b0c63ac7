"""python -m tests.jobs.slow_run RUN_DIR [--pause SECONDS]: a small job in a process of its own, for signals.

Dropout and batch norm, batches of 4 of 10 rows, 30 updates, a row and a checkpoint at every update; each update waits.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from symlab.rundir import Outcome, RunDir
from symlab.training.losses import auto
from tests.training.problems import run_job, small_net


def slow_loss(outputs: Tensor, targets: Tensor, pause: float) -> Tensor:
    if torch.is_grad_enabled():
        time.sleep(pause)
    return auto(outputs, targets)


def slow_run(run: RunDir, pause: float = 0.0) -> Outcome:
    return run_job(
        run,
        model=partial(small_net, dropout=0.4, batch_norm=True),
        loss=partial(slow_loss, pause=pause),
        batch_size=4,
        eval_every=1,
        epochs=10,
        checkpoint_every_s=0.0,
        threads=1,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--pause", type=float, default=0.0)
    arguments = parser.parse_args()
    return slow_run(RunDir(arguments.run), arguments.pause).exit_code


if __name__ == "__main__":
    sys.exit(main())
