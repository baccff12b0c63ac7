"""The Dataset value: what it accepts, what it says about the rest, and how it moves."""

import dataclasses
import math

import pytest
import torch

from symlab.data.dataset import Dataset


def regression(**changes) -> Dataset:
    values = {
        "name": "toy",
        "train_inputs": torch.zeros(4, 3),
        "train_targets": torch.zeros(4, 2),
        "test_inputs": torch.zeros(5, 3),
        "test_targets": torch.zeros(5, 2),
    }
    return Dataset(**(values | changes))


def classification(**changes) -> Dataset:
    labels = {"train_targets": torch.tensor([0, 1, 2, 2]), "test_targets": torch.tensor([2, 1, 0, 0, 1])}
    return regression(**({"num_classes": 3} | labels | changes))


def test_shapes_and_sizes():
    assert (regression().input_shape, regression().output_size) == ((3,), 2)
    images = classification(train_inputs=torch.zeros(4, 1, 6, 7), test_inputs=torch.zeros(5, 1, 6, 7))
    assert (images.input_shape, images.output_size) == ((1, 6, 7), 3)
    assert regression().references == {}


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        regression().name = "other"  # type: ignore[misc]


def test_to_casts_floating_tensors_only():
    moved = classification(references={"chance": math.log(3)}).to("cpu", torch.float64)
    assert moved.train_inputs.dtype == moved.test_inputs.dtype == torch.float64
    assert moved.train_targets.dtype == moved.test_targets.dtype == torch.int64
    assert (moved.name, moved.num_classes, moved.references) == ("toy", 3, {"chance": math.log(3)})
    half = regression().to("cpu", torch.bfloat16)
    assert half.train_targets.dtype == half.test_inputs.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="int64"):
        regression().to("cpu", torch.int64)


def with_value(tensor: torch.Tensor, index: tuple[int, ...], value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[index] = value
    return changed


BAD_VALUES = [
    # (make, changes, words of the message)
    (classification, {"train_targets": torch.tensor([0, 1, -1, 2])}, ["train", "0..2", "-1", "row 2"]),
    (classification, {"test_targets": torch.tensor([0, -100, 1, 2, 0])}, ["test", "0..2", "-100", "row 1"]),
    (classification, {"train_targets": torch.tensor([0, 3, 7, 2])}, ["3 classes", "got 3", "row 1", "2 of 4"]),
    (classification, {"num_classes": 0}, ["num_classes", "0"]),
    (classification, {"train_targets": torch.zeros(4, 1, dtype=torch.int64)}, ["[4, 1]"]),
    (regression, {"train_inputs": with_value(torch.zeros(4, 3), (1, 2), math.nan)}, ["train", "finite", "row 1"]),
    (regression, {"test_inputs": with_value(torch.zeros(5, 3), (4, 0), math.inf)}, ["test", "finite", "row 4"]),
    (regression, {"test_targets": with_value(torch.zeros(5, 2), (3, 0), -math.inf)}, ["targets", "row 3"]),
    (regression, {"train_inputs": torch.zeros(3, 3)}, ["train", "3 input rows", "4 target rows"]),
    (regression, {"train_inputs": torch.zeros(0, 3), "train_targets": torch.zeros(0, 2)}, ["train", "[0, 3]"]),
    (regression, {"test_inputs": torch.zeros(0, 3), "test_targets": torch.zeros(0, 2)}, ["test", "[0, 3]"]),
    (regression, {"test_inputs": torch.zeros(5, 6)}, ["inputs", "[3]", "[6]"]),
    (regression, {"test_targets": torch.zeros(5, 4)}, ["targets", "[2]", "[4]"]),
    (regression, {"train_targets": torch.zeros(4)}, ["[N, C]", "[4]"]),
    (regression, {"train_targets": torch.zeros(4, 0), "test_targets": torch.zeros(5, 0)}, ["[4, 0]"]),
    (regression, {"train_inputs": torch.zeros(4)}, ["[N, *input_shape]", "[4]"]),
]


@pytest.mark.parametrize(("make", "changes", "words"), BAD_VALUES)
def test_bad_values_are_named(make, changes, words):
    with pytest.raises(ValueError, match=r".") as caught:
        make(**changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("make", "changes", "word"),
    [
        (regression, {"train_inputs": torch.zeros(4, 3, dtype=torch.uint8)}, "uint8"),
        (regression, {"train_targets": torch.zeros(4, 2, dtype=torch.int64)}, "int64"),
        (classification, {"train_targets": torch.zeros(4, dtype=torch.int32)}, "int32"),
        (classification, {"train_targets": torch.zeros(4)}, "float32"),
        (regression, {"test_inputs": torch.zeros(5, 3, dtype=torch.float64)}, "float64"),
    ],
)
def test_wrong_types_are_named(make, changes, word):
    with pytest.raises(TypeError, match=word):
        make(**changes)
