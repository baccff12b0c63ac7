"""python -m tests.training.several_runs FOLDER NAME ...: one process of several, as RANK and WORLD_SIZE say.

Runs the named settings one after the other, each in FOLDER/NAME, which only rank 0 writes. Every process leaves the
weights and statistics that it ends with in FOLDER/NAME-RANK.pt.
"""

import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from symlab.constraint.options.shift import shift
from symlab.data.dataset import Dataset
from symlab.rundir import BadInput, RunDir
from symlab.training.losses import auto
from tests.training.problems import OPTIMIZERS, classification, regression, run_job, small_net

RANK = int(os.environ.get("RANK", "0"))


class At:
    """auto, but the `call`-th loss of the updates in process `rank` first does something."""

    def __init__(self, call: int, rank: int, action: str) -> None:
        self.left, self.rank, self.action = call, rank, action

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        value = auto(outputs, targets)
        if torch.is_grad_enabled() and self.rank == RANK:
            self.left -= 1
            if self.left == 0:
                match self.action:
                    case "term":
                        signal.raise_signal(signal.SIGTERM)
                    case "nan":
                        return value * float("nan")
                    case "error":
                        raise RuntimeError("this process fails")
                    case "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
        return value


def images() -> Dataset:
    """10 and 5 rows of 3 x 6 x 6 pixels in three classes."""
    inputs = torch.randn(15, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(15) % 3
    return Dataset("pixels", inputs[:10], labels[:10], inputs[10:], labels[10:], num_classes=3, references={})


def convolutions(input_shape: tuple[int, ...], output_size: int, generator: torch.Generator) -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, output_size))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


BATCHES = {"batch_size": 4, "epochs": 3, "eval_batch_size": 3, "eval_every": 2}
"""10 rows: batches of 4, 4 and 2; 7 test rows, of which one process has four and the other three."""

SETTINGS: dict[str, dict[str, Any]] = {
    "full": {"data": partial(regression, rows=9)},
    "batches": BATCHES,
    "symo": BATCHES | {"optimizer": OPTIMIZERS["symo"]},
    "pieces": BATCHES | {"accumulate": 2, "data": partial(regression, rows=13), "batch_size": 8, "drop_last": True},
    "clipped": BATCHES | {"clip_norm": 0.1, "ema": 0.5},
    "classes": BATCHES | {"data": classification, "optimizer": OPTIMIZERS["sgd"]},
    "shifted": BATCHES | {"constraint": partial(shift, sigma=0.5), "optimizer": OPTIMIZERS["sgd"]},
    "images": BATCHES
    | {"data": images, "model": convolutions, "channels_last": True, "amp": "bf16", "dtype": "float32"},
    "batch_norm": BATCHES | {"model": partial(small_net, batch_norm=True), "drop_last": True},
    "dropout": BATCHES | {"model": partial(small_net, dropout=0.4, batch_norm=True), "drop_last": True},
    "nan": BATCHES | {"loss": At(3, 1, "nan")},
    "stopped": BATCHES
    | {"model": partial(small_net, dropout=0.4, batch_norm=True), "drop_last": True, "loss": At(3, 1, "term")},
    "error": BATCHES | {"loss": At(3, 1, "error")},
    "killed": BATCHES | {"loss": At(3, 1, "kill")},
    "too_small": BATCHES | {"batch_size": 1},
}


def settings(name: str) -> dict[str, Any]:
    """Those of NAME, and of NAME+again without the interruption."""
    plain, _, again = name.partition("+")
    return SETTINGS[plain] | ({"loss": auto} if again else {})


def kept(kept_in: dict[str, Any], name: str, factory: Any) -> Any:
    """The factory, which leaves what it makes under that name."""

    def make(*args: Any, **kwargs: Any) -> Any:
        kept_in[name] = factory(*args, **kwargs)
        return kept_in[name]

    return make


def main() -> int:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    code = 0
    for name in names:
        path = folder / name.partition("+")[0] if RANK == 0 else Path(tempfile.mkdtemp(dir=folder, prefix="rank-"))
        path.mkdir(exist_ok=True)
        made: dict[str, Any] = {}
        chosen = {"model": small_net, "optimizer": OPTIMIZERS["adam"]} | settings(name)
        chosen |= {key: kept(made, key, chosen[key]) for key in ("model", "optimizer")}
        try:
            outcome = run_job(RunDir(path), threads=1, **chosen)
        except BadInput as error:
            print(f"refused: {error}", flush=True)
            return 2
        code = outcome.exit_code
        state = {key: value.state_dict() for key, value in made.items()}
        torch.save(state | {"status": outcome.status, "code": code}, folder / f"{name}-{RANK}.pt")
    return code


if __name__ == "__main__":
    sys.exit(main())
