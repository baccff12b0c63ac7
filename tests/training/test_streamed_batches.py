"""Batches of images read from disk: exact to resume, the same for any number of workers and processes."""

import multiprocessing
import os
import signal
import time
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import nn

from symlab.data.imagenet import imagenet
from symlab.data.streamed import BadImageError, StreamedDataset
from symlab.rundir import BadInput
from symlab.training.evaluate import totals
from symlab.training.losses import cross_entropy
from symlab.training.order import Share, mix
from symlab.training.signals import stop_on_signals
from symlab.training.sources import dataset_batches, training_batches
from symlab.training.streamed_batches import StreamedBatches
from tests.data.image_trees import damage, write_tree

STEPS = 9  # of 4 or 5 rows: more than two epochs of 13


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree"), {"a": 6, "b": 7}, {"a": 4, "b": 3})


def dataset(root: Path, workers: int = 0) -> StreamedDataset:
    return imagenet(root=str(root), size=8, resize=9, workers=workers)


def batches(root: Path, workers: int = 0, **keys) -> StreamedBatches:
    return StreamedBatches(dataset(root, workers), keys.pop("batch_size", 4), keys.pop("seed", 3), **keys)


def walk(source: StreamedBatches, first: int = 0, end: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    with source:
        return [source.at(step) for step in range(first, end)]


def assert_same(found: list, expected: list) -> None:
    assert len(found) == len(expected)
    for (inputs, targets), (other_inputs, other_targets) in zip(found, expected, strict=True):
        assert torch.equal(inputs, other_inputs)
        assert torch.equal(targets, other_targets)


def test_a_batch_holds_the_rows_of_the_order_changed_by_their_own_draws(tree):
    source = batches(tree)
    seen = []
    for step, (inputs, targets) in enumerate(walk(source)):
        rows = source.order.rows_at(step)
        assert source.rows_in(step) == len(rows) == len(inputs)
        assert targets.tolist() == source.dataset.train.labels[rows].tolist()
        seeds = [mix(source.order.augmentation_seed(step), row) for row in rows.tolist()]
        own = [source.dataset.train.load(row, seed) for row, seed in zip(rows.tolist(), seeds, strict=True)]
        assert torch.equal(inputs, source.dataset.finish(torch.stack(own), torch.float32))
        seen.append(inputs)
    plain = torch.stack([source.dataset.train.load(int(row), None) for row in source.order.rows_at(0)])
    assert not torch.equal(source.dataset.finish(plain, torch.float32), seen[0])
    epochs = [step // source.steps_per_epoch for step in range(STEPS)]
    assert set(epochs) >= {0, 1, 2}
    everything = torch.cat(seen[: 2 * source.steps_per_epoch]).flatten(1)
    assert len(everything.unique(dim=0)) > 13  # an image is not cropped alike in the second epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_in_the_middle_of_an_epoch_it_goes_on_bit_for_bit(workers, tree):
    whole = walk(batches(tree))
    assert_same(walk(batches(tree, workers)), whole)
    assert_same(walk(batches(tree, workers), 5), whole[5:])


def test_any_step_can_be_asked_for(tree):
    whole = walk(batches(tree))
    with batches(tree, workers=2) as source:
        for step in (4, 5, 1, 2, 8, 8):
            assert_same([source.at(step)], [whole[step]])


def test_the_global_generator_is_left_alone(tree):
    state = torch.get_rng_state()
    walk(batches(tree, workers=1), 0, 2)
    list(dataset_batches(dataset(tree, 1), "test", 4))
    assert torch.equal(torch.get_rng_state(), state)


def test_seeds_differ(tree):
    (inputs, _), (other, _) = walk(batches(tree), 0, 1)[0], walk(batches(tree, seed=4), 0, 1)[0]
    assert not torch.equal(inputs, other)


@pytest.mark.parametrize("world", [2, 3])
def test_shares_put_together_are_the_batch_of_one_process(world, tree):
    whole = walk(batches(tree, drop_last=True))
    parts = [walk(batches(tree, drop_last=True, share=Share(rank, world))) for rank in range(world)]
    for step, (inputs, targets) in enumerate(whole):
        for rank in range(world):
            assert torch.equal(parts[rank][step][0], inputs[rank::world])
            assert torch.equal(parts[rank][step][1], targets[rank::world])


def test_either_kind_of_data_set_gives_a_source(tree):
    with training_batches(dataset(tree), 4, 3) as source:
        assert isinstance(source, StreamedBatches)
        assert_same([source.at(step) for step in range(STEPS)], walk(batches(tree)))
        assert source.steps_per_epoch == 3
    with pytest.raises(BadInput, match=r"batch_size=null.*imagenet.*1 to 13"), training_batches(dataset(tree), None, 3):
        pass
    with pytest.raises(BadInput, match=r"batch_size=14 does not fit the 13 training rows"):
        batches(tree, batch_size=14)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_depends_neither_on_batch_size_nor_on_workers_nor_on_shares(workers, world, tree):
    data = dataset(tree, workers)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).double()
    images = torch.stack([data.test.load(row, None) for row in range(7)])
    outputs = model(data.finish(images, torch.float64))
    expected = nn.functional.cross_entropy(outputs, data.test.labels).item()
    for batch_size in (1, 3, 10):
        own = [
            dataset_batches(data.to("cpu", torch.float64), "test", batch_size, share=Share(r, world))
            for r in range(world)
        ]
        found = [totals(model, part, cross_entropy) for part in own]
        assert sum(part.rows for part in found) == 7
        assert sum(part.loss for part in found) / 7 == pytest.approx(expected, rel=1e-12)
        assert sum(part.correct for part in found) == int((outputs.argmax(1) == data.test.labels).sum())


def test_evaluation_of_training_rows_is_plain(tree):
    data = dataset(tree)
    inputs = torch.cat([inputs for inputs, _ in dataset_batches(data, "train", 4, rows=6)])
    assert torch.equal(inputs, data.head(6)[0])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_damaged_file_ends_it_with_one_message_that_names_the_path(workers, split, tmp_path):
    root = write_tree(tmp_path, {"a": 3, "b": 3}, {"a": 3, "b": 3})
    path = damage(root / split / "b", "truncated")
    data = dataset(root, workers)
    with training_batches(data, 3, 0) as source, pytest.raises(BadImageError) as caught:
        list(map(source.at, range(3)) if split == "train" else dataset_batches(data, "test", 3))
    assert str(caught.value).startswith(f"{path}: not readable as an image: image file is truncated")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("end", ["normal", "error"])
def test_no_worker_outlives_its_block(end, tree):
    def use() -> None:
        with StreamedBatches(dataset(tree, 2), 4, 0) as source:
            source.at(0)
            assert len(multiprocessing.active_children()) == 2
            if end == "error":
                raise ValueError("stop here")

    with pytest.raises(ValueError, match="stop here") if end == "error" else nullcontext():
        use()
    assert multiprocessing.active_children() == []


def test_no_worker_outlives_half_an_evaluation(tree):
    pairs = dataset_batches(dataset(tree, 2), "test", 2)
    next(pairs)
    assert len(multiprocessing.active_children()) == 2
    pairs.close()
    assert multiprocessing.active_children() == []


def run_until_stopped(root: str, method: str, say: Connection) -> None:
    """What a run does, in a process group of its own; says its workers' ids, and at its end who is left of them."""
    os.setsid()
    with stop_on_signals() as stop, StreamedBatches(dataset(Path(root), 2), 4, 0, start_method=method) as source:
        step = 0
        while not stop():
            source.at(step)
            step += 1
            if step == 5:
                say.send([child.pid for child in multiprocessing.active_children()])
            time.sleep(0.005)
        for later in range(step, step + 20):  # more than what is loaded ahead: the workers go on after the signal
            source.at(later)
    say.send([child.pid for child in multiprocessing.active_children()])


def gone(pids: list[int], seconds: float) -> bool:
    """Whether all these processes end within so many seconds (a zombie has ended)."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("number", "method"),
    [
        (signal.SIGTERM, "fork"),
        (signal.SIGUSR1, "fork"),
        (signal.SIGINT, "fork"),
        pytest.param(signal.SIGKILL, "fork", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "spawn", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "spawn", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_whole_group_leaves_no_worker_behind(number, method, tree):
    context = multiprocessing.get_context(method)
    hear, say = context.Pipe()
    process = context.Process(target=run_until_stopped, args=(str(tree), method, say))
    process.start()
    try:
        assert hear.poll(300)
        workers = hear.recv()
        assert len(workers) == 2
        if number == signal.SIGKILL:
            process.kill()  # the main process alone, as the system does when memory runs out
            process.join(10)
            assert gone(workers, 20)  # torch's workers look for their parent every 5 s
        else:
            os.killpg(process.pid, number)
            assert hear.poll(10)
            assert hear.recv() == []
            process.join(10)
            assert process.exitcode == 0
            assert gone(workers, 1)
    finally:
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
            process.join()


@pytest.mark.slow
def test_spawned_workers_give_the_same_batches(tree):
    assert_same(walk(batches(tree, 2, start_method="spawn"), 3, 6), walk(batches(tree))[3:6])
