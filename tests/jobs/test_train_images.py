"""The job on images that are read from disk while it runs."""

from functools import partial

import pytest

from symlab.data.imagenet import imagenet
from symlab.data.streamed import BadImageError
from symlab.models.mlp import mlp
from symlab.rundir import RunDir
from symlab.training.build import SAMPLE_ROWS
from symlab.training.order import Order
from tests.data.image_trees import write_tree
from tests.training.problems import rows_without_time, run_job


def images(root):
    return imagenet(root=str(root), size=8, resize=9, workers=0)


def test_a_damaged_image_keeps_what_was_done_and_a_sound_one_continues_it_exactly(tmp_path):
    root = write_tree(tmp_path / "tree", {"a": 6, "b": 6}, {"a": 2, "b": 2})
    keys = {"model": partial(mlp, hidden=(3,)), "data": partial(images, root), "batch_size": 3, "epochs": 2}
    keys |= {"eval_train_size": 0}
    whole, stopped = RunDir.create(tmp_path / "runs"), RunDir.create(tmp_path / "runs")
    run_job(whole, **keys)

    order = Order(12, 3, 0)
    step, row = next((step, row) for step in range(1, 4) for row in order.rows_at(step).tolist() if row >= SAMPLE_ROWS)
    path = images(root).train.load.files.path(row)
    with open(path, "rb") as file:
        sound = file.read()
    with open(path, "wb") as file:
        file.write(sound[:-100])
    with pytest.raises(BadImageError, match=f"^{path}: not readable"):
        run_job(stopped, **keys)
    assert stopped.load_checkpoint("last")["step"] == step
    with open(path, "wb") as file:
        file.write(sound)
    assert run_job(stopped, **keys).status == "completed"
    assert rows_without_time(stopped) == rows_without_time(whole)
