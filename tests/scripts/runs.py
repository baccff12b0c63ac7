"""What two runs have in common, and a toy problem for the real `symlab train`."""

from __future__ import annotations

from pathlib import Path

from symlab.rundir import RunDir
from tests.training.problems import assert_same_state

TOY = (
    *("data.num_train=12", "data.num_test=6", "data.input_size=5", "data.hidden=[4]", "data.output_size=3"),
    *("model.hidden=[4]", "batch_size=4", "epochs=4", "eval_every=1", "device=cpu"),
)  # 12 updates


def assert_same_runs(one: Path, other: Path) -> None:
    """Rows but for time_s, weights and everything else that the last checkpoint holds, bit for bit."""
    left, right = RunDir.open(one), RunDir.open(other)
    assert _rows(left) == _rows(right)
    assert_same_state(_checkpoint(left), _checkpoint(right))


def _rows(run: RunDir) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "time_s"} for row in run.read_rows()]


def _checkpoint(run: RunDir) -> dict[str, object]:
    return {key: value for key, value in run.load_checkpoint("last").items() if key != "seconds"}
