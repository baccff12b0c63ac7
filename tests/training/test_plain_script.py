"""The plain script that symlab's speed is measured against: the same images, the same distribution, the same step."""

import multiprocessing

import pytest
import torch
from torch import nn

from symlab.data.dataset import Dataset
from symlab.data.digits import digits
from symlab.rundir import BadInput
from symlab.training.execution import PLAIN
from symlab.training.losses import auto
from symlab.training.plain_script import PlainImages, plain_batches, plain_step
from symlab.training.update import update

CPU = torch.device("cpu")


def images(channels=3, classes=10, augmentation=None):
    """Four rows of 256 values from -1 to 2 each, exactly representable in 256 steps."""
    steps = torch.stack([torch.randperm(256, generator=torch.Generator().manual_seed(i)) for i in range(4 * channels)])
    inputs = (steps.reshape(4, channels, 16, 16) / 255 * 3 - 1).float()
    labels = torch.tensor([3, 1, 0, 2])
    return Dataset("steps", inputs, labels, inputs, labels, classes, augmentation=augmentation)


@pytest.mark.parametrize("channels", [1, 3])
def test_without_the_random_part_the_rows_are_the_datas(channels):
    dataset = images(channels)
    plain = PlainImages(dataset, augment=False)
    assert len(plain) == 4
    rows = [plain[i] for i in range(4)]
    torch.testing.assert_close(torch.stack([x for x, _ in rows]), dataset.train_inputs, rtol=0, atol=1e-6)
    assert [label for _, label in rows] == [3, 1, 0, 2]


def test_the_random_part_moves_an_image_by_up_to_four_pixels_and_flips_it():
    dataset = images()
    plain = PlainImages(dataset)
    torch.manual_seed(0)
    frame = torch.full((3, 24, 24), -1.0)  # black is the least value
    frame[:, 4:20, 4:20] = dataset.train_inputs[1]
    places = {}
    for i in range(9):
        for j in range(9):
            crop = frame[:, i : i + 16, j : j + 16]
            places |= {tuple(crop.mul(1000).round().int().flatten().tolist()): (i, j, 0)}
            places |= {tuple(crop.flip(2).mul(1000).round().int().flatten().tolist()): (i, j, 1)}
    found = [places[tuple(plain[1][0].mul(1000).round().int().flatten().tolist())] for _ in range(400)]
    assert {flip for *_, flip in found} == {0, 1}
    assert {i for i, *_ in found} == {j for _, j, _ in found} == set(range(9))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_have_no_end_and_workers_end_with_the_block(workers):
    before = multiprocessing.active_children()
    with plain_batches(images(), 3, 0, workers=workers, device=CPU) as batches:
        found = [next(batches) for _ in range(4)]
        assert len(multiprocessing.active_children()) == len(before) + workers
    assert multiprocessing.active_children() == before
    assert all((inputs.shape, targets.shape) == ((3, 3, 16, 16), (3,)) for inputs, targets in found)
    assert sorted(torch.cat([targets for _, targets in found]).tolist()) == sorted([3, 1, 0, 2] * 3)


def test_a_step_is_the_one_of_symlab():
    dataset = digits(num_train=20, num_test=5)
    nets, losses = [], []
    for step in (plain_step, lambda *rest: update(*rest, 0, PLAIN)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses.append([step(net, optimizer, auto, dataset.train_inputs, dataset.train_targets) for _ in range(2)])
        nets.append(net[1].weight)
    assert losses[0] == losses[1]
    assert losses[0][1] < losses[0][0]
    assert torch.equal(*nets)


@pytest.mark.parametrize("inputs", [torch.rand(4, 5), torch.rand(4, 2, 8, 8)])
def test_other_data_than_images_are_refused(inputs):
    labels = torch.tensor([0, 1, 0, 1])
    with pytest.raises(BadInput, match="no labelled images with one or three channels: choose such data"):
        PlainImages(Dataset("rows", inputs, labels, inputs, labels, 2))
