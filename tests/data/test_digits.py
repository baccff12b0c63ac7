"""scikit-learn's digits: split, standardisation, subsets."""

import sys

import pytest
import torch

from symlab.data.digits import digits

sklearn_datasets = pytest.importorskip("sklearn.datasets")


def test_shapes_and_counts():
    data = digits()
    assert data.train_inputs.shape == (1438, 1, 8, 8)
    assert data.test_inputs.shape == (359, 1, 8, 8)
    assert (data.num_classes, data.output_size, data.input_shape) == (10, 10, (1, 8, 8))
    assert data.train_inputs.dtype == torch.float32


def test_split_is_stratified():
    data = digits(test_fraction=0.25)
    totals = torch.as_tensor(sklearn_datasets.load_digits().target).bincount(minlength=10)
    test = data.test_targets.bincount(minlength=10)
    assert torch.equal(test, (totals * 0.25).round().to(torch.int64))
    assert torch.equal(test + data.train_targets.bincount(minlength=10), totals)


def raw_images(data, inputs: torch.Tensor) -> torch.Tensor:
    """Undo the standardisation, whose two numbers follow from the true range 0..16 of the pixels."""
    low, high = (
        min(data.train_inputs.min(), data.test_inputs.min()),
        max(data.train_inputs.max(), data.test_inputs.max()),
    )
    return ((inputs - low) / (high - low) * 16).round().to(torch.int64)


def test_rows_are_the_real_images_each_once_with_their_labels():
    data = digits(seed=3)
    bunch = sklearn_datasets.load_digits()
    expected = sorted((*map(int, image.ravel()), int(t)) for image, t in zip(bunch.images, bunch.target, strict=True))
    images = raw_images(data, torch.cat([data.train_inputs, data.test_inputs])).flatten(1)
    labels = torch.cat([data.train_targets, data.test_targets])
    assert sorted((*image, label) for image, label in zip(images.tolist(), labels.tolist(), strict=True)) == expected


def test_standardised_with_the_training_rows():
    data = digits(test_fraction=0.7)
    assert float(data.train_inputs.double().mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(data.train_inputs.double().std(correction=0)) == pytest.approx(1.0, abs=1e-6)
    assert abs(float(data.test_inputs.double().mean())) > 1e-4, "the test rows took part in the statistics"


def test_the_seed_fixes_split_and_order():
    first, same, other = digits(seed=1), digits(seed=1), digits(seed=2)
    assert torch.equal(first.train_inputs, same.train_inputs)
    assert torch.equal(first.test_targets, same.test_targets)
    assert not torch.equal(first.test_targets, other.test_targets)


def test_order_is_mixed_and_subsets_are_its_beginning():
    whole, part = digits(), digits(num_train=100, num_test=20)
    assert (len(part.train_inputs), len(part.test_inputs)) == (100, 20)
    assert torch.equal(part.train_targets, whole.train_targets[:100])
    assert torch.equal(part.test_targets, whole.test_targets[:20])
    assert part.train_targets.unique().numel() == 10, "a class is missing from 100 mixed rows"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"test_fraction": 0.0}, ["test_fraction", "0.0"]),
        ({"test_fraction": 1.0}, ["test_fraction", "1.0"]),
        ({"num_train": 1439}, ["num_train", "1438", "1439"]),
        ({"num_test": 0}, ["num_test", "0"]),
        ({"seed": -2}, ["seed", "-2"]),
    ],
)
def test_bad_values_are_named(keys, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        digits(**keys)
    assert all(word in str(caught.value) for word in words)


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'symlab\[digits\]'"):
        digits()
