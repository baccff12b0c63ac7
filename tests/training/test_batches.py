"""Order and size of the mini-batches."""

import pytest
import torch

from symlab.rundir import BadInput
from symlab.training.batches import Batches
from symlab.training.order import mix


def batches(rows, batch_size, **options):
    inputs = torch.arange(rows, dtype=torch.float64).unsqueeze(1)  # row i holds the number i
    return Batches(inputs, inputs.clone(), batch_size, options.pop("seed", 0), **options)


def epoch_rows(loader, epoch):
    first = epoch * loader.steps_per_epoch
    return [loader.rows_at(step).tolist() for step in range(first, first + loader.steps_per_epoch)]


@pytest.mark.parametrize(
    ("rows", "size", "drop_last", "sizes"),
    [
        (10, 4, False, [4, 4, 2]),  # short last batch kept
        (10, 4, True, [4, 4]),
        (9, 4, False, [4, 5]),  # a rest of one joins the batch before
        (9, 8, False, [9]),
        (9, 8, True, [8]),
        (9, 4, True, [4, 4]),
        (8, 4, False, [4, 4]),
        (3, 1, False, [1, 1, 1]),
        (1, 1, False, [1]),
        (5, 5, False, [5]),
        (5, None, False, [5]),
        (5, None, True, [5]),
    ],
)
def test_sizes_of_an_epoch(rows, size, drop_last, sizes):
    loader = batches(rows, size, drop_last=drop_last)
    for epoch in range(3):
        parts = epoch_rows(loader, epoch)
        assert [len(part) for part in parts] == sizes
        seen = [row for part in parts for row in part]
        assert len(set(seen)) == len(seen) == sum(sizes)
        assert drop_last or sorted(seen) == list(range(rows))


def test_order_is_a_function_of_seed_and_epoch_alone():
    forwards, backwards = batches(20, 6), batches(20, 6)
    steps = range(3 * forwards.steps_per_epoch)
    ahead = {step: forwards.rows_at(step).tolist() for step in steps}
    back = {step: backwards.rows_at(step).tolist() for step in reversed(steps)}
    assert ahead == back
    assert epoch_rows(forwards, 0) != epoch_rows(forwards, 1)
    assert epoch_rows(forwards, 0) != epoch_rows(batches(20, 6, seed=1), 0)


def test_the_global_generator_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    batches(20, 6).at(0)
    assert torch.equal(torch.rand(2), expected)


def test_batch_holds_the_rows_it_names():
    loader = batches(10, 4)
    inputs, targets = loader.at(4)
    assert inputs.flatten().tolist() == targets.flatten().tolist() == loader.rows_at(4).tolist()


@pytest.mark.parametrize("size", [0, -1, 4])
def test_a_batch_that_does_not_fit_is_refused_with_both_numbers(size):
    with pytest.raises(BadInput, match=rf"batch_size={size} does not fit the 3 training rows"):
        batches(3, size)


def test_mixed_seeds_do_not_collide():
    seeds = {mix(seed, epoch) for seed in range(60) for epoch in range(60)}
    assert len(seeds) == 3600
    assert all(0 <= seed < 2**63 for seed in seeds)
