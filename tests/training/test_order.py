"""Shares of several processes, and augmentation that neither their number nor a restart changes."""

import pytest
import torch

from symlab.data.augmentation import CropAndFlip
from symlab.data.dataset import Dataset
from symlab.rundir import BadInput
from symlab.training.batches import Batches
from symlab.training.evaluate import evaluate, totals
from symlab.training.losses import cross_entropy
from symlab.training.order import Order, Share, mix
from symlab.training.sources import dataset_batches, in_memory, training_batches
from tests.training.problems import classification, small_net


def images(rows: int = 22, augmented: bool = True) -> Dataset:
    """Rows of 2 x 6 x 6 random pixels, in float64."""
    inputs = torch.randn(rows + 7, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(rows + 7) % 3
    augmentation = CropAndFlip(torch.tensor([-9.0, -8.0]), padding=2) if augmented else None
    splits = inputs[:rows], labels[:rows], inputs[rows:], labels[rows:]
    return Dataset("toy images", *splits, num_classes=3, augmentation=augmentation)


@pytest.mark.parametrize("batch_size", [4, 5, None])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("augmented", [False, True])
def test_shares_put_together_are_the_batch_of_one_process(batch_size, world, augmented):
    data = images(23, augmented)
    with training_batches(data, batch_size, 4, drop_last=True) as whole:
        for step in range(2 * whole.steps_per_epoch):
            inputs, targets = whole.at(step)
            together_inputs, together_targets = torch.empty_like(inputs), torch.empty_like(targets)
            for rank in range(world):
                share = Share(rank, world)
                with training_batches(data, batch_size, 4, drop_last=True, share=share) as part:
                    together_inputs[rank::world], together_targets[rank::world] = part.at(step)
                    assert share.count(len(inputs)) == len(part.at(step)[0])
                    assert part.rows_in(step) == len(inputs)
            assert torch.equal(together_inputs, inputs)
            assert torch.equal(together_targets, targets)


def test_augmentation_is_a_function_of_seed_and_step_alone():
    data = images()
    rows = data.train_inputs, data.train_targets
    first, again = (Batches(*rows, 4, 7, augmentation=data.augmentation) for _ in range(2))
    state = torch.get_rng_state()
    ahead = [first.at(step)[0] for step in range(12)]
    back = [again.at(step)[0] for step in reversed(range(12))]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(ahead, reversed(back), strict=True))
    plain = Batches(*rows, 4, 7)
    assert not any(torch.equal(ahead[step], plain.at(step)[0]) for step in range(12))
    full = Batches(*rows, None, 7, augmentation=data.augmentation)
    assert not torch.equal(full.at(0)[0], full.at(1)[0])
    other = Batches(*rows, None, 8, augmentation=data.augmentation)
    assert not torch.equal(full.at(0)[0], other.at(0)[0])


def test_each_row_is_changed_by_its_own_draw():
    data = images()
    batches = Batches(data.train_inputs, data.train_targets, 6, 7, augmentation=data.augmentation)
    inputs, _ = batches.at(5)
    generator = torch.Generator().manual_seed(batches.order.augmentation_seed(5))
    assert torch.equal(inputs, data.augmentation(data.train_inputs[batches.rows_at(5)], generator))


def test_streams_of_orders_and_augmentations_do_not_meet():
    order = Order(50, 5, 3)
    seeds = {order.augmentation_seed(step) for step in range(2000)}
    assert len(seeds) == 2000
    assert not seeds & {mix(3, epoch) for epoch in range(2000)}


def test_moved_to_another_dtype_the_augmentation_comes_along():
    data = images().to("cpu", torch.float32)
    with training_batches(data, 4, 0) as batches:
        assert batches.at(0)[0].dtype == torch.float32
        assert float(torch.stack([batches.at(step)[0].min() for step in range(5)]).min()) == -9


@pytest.mark.parametrize(("rows", "size", "last"), [(10, 4, 2), (9, 4, 5), (8, 4, 4), (10, None, 10)])
def test_numbers_of_rows(rows, size, last):
    order = Order(rows, size, 0)
    for step in range(2 * order.steps_per_epoch):
        assert order.rows_in(step) == len(order.rows_at(step))
    assert order.rows_in(order.steps_per_epoch - 1) == last
    assert order.least_rows == min(size or rows, last)


def test_a_batch_too_small_for_the_processes_is_refused():
    data = images(22)
    with pytest.raises(
        BadInput, match=r"batch_size=4.*smallest batch.*2 of the 22.*too few for 3 processes.*drop_last"
    ):
        Batches(data.train_inputs, data.train_targets, 4, 0, share=Share(0, 3))
    Batches(data.train_inputs, data.train_targets, 4, 0, True, share=Share(0, 3))
    with pytest.raises(ValueError, match=r"rank must be at least 0 and below world=2, got 2"):
        Share(2, 2)


@pytest.mark.parametrize("world", [1, 2, 3, 9])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_evaluation_in_shares_counts_every_row_once(world, batch_size):
    data = classification()
    model = small_net((4,), 3, torch.Generator().manual_seed(0)).double()
    expected = evaluate(model, data.test_inputs, data.test_targets, cross_entropy, batch_size=8)
    parts = []
    for rank in range(world):  # with 9 processes one has none of the 8 rows
        own = dataset_batches(data, "test", batch_size, share=Share(rank, world))
        parts.append(totals(model, own, cross_entropy))
    assert sum(part.rows for part in parts) == 8
    assert sum(part.loss for part in parts) / 8 == pytest.approx(expected.loss, rel=1e-12)
    assert sum(part.correct for part in parts) / 8 == expected.accuracy


def test_evaluation_is_on_plain_rows_and_on_as_many_as_asked():
    data = images()
    inputs = torch.cat([inputs for inputs, _ in dataset_batches(data, "train", 4, rows=10)])
    assert torch.equal(inputs, data.train_inputs[:10])
    assert len(list(dataset_batches(data, "train", 4, rows=1000))) == 6


def test_in_memory_hands_rows_through():
    data = images()
    assert in_memory(data) is data
    assert (data.num_train, data.num_test) == (22, 7)
    assert torch.equal(data.head(3)[0], data.train_inputs[:3])
