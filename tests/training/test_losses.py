"""The losses against numbers by hand."""

import math

import pytest
import torch

from symlab.training.losses import auto, cross_entropy, half_mean_squared_error


def test_half_mean_squared_error_by_hand():
    outputs = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.0]], dtype=torch.float64)
    targets = torch.tensor([[0.0, 0.0], [0.0, 1.0], [3.0, 3.0]], dtype=torch.float64)
    # squares 1 4 0 4 0 9, over 2 * 3 rows
    assert half_mean_squared_error(outputs, targets).item() == 18 / 6
    assert auto(outputs, targets).item() == 3


def test_half_mean_squared_error_of_labels_is_against_one_hot_rows():
    outputs = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    # rows minus one-hot: (1, 1, 0) and (-1, 0, 0)
    assert half_mean_squared_error(outputs, torch.tensor([1, 0])).item() == 3 / 4


def test_cross_entropy_by_hand():
    outputs = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], dtype=torch.float64)
    expected = (-math.log(3 / 4) - math.log(1 / 2)) / 2
    assert cross_entropy(outputs, torch.tensor([1, 0])).item() == pytest.approx(expected, rel=1e-15)
    assert auto(outputs, torch.tensor([1, 0])).item() == pytest.approx(expected, rel=1e-15)


def test_bfloat16_outputs_are_measured_in_float32():
    outputs = torch.full((7, 3), 1.0039, dtype=torch.bfloat16)  # rounds to 1.0
    loss = half_mean_squared_error(outputs, torch.zeros(7, 3, dtype=torch.bfloat16))
    assert loss.dtype == torch.float32
    assert loss.item() == 1.5


def test_mismatches_are_named():
    outputs = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"\[4, 3\] and \[4, 1\]"):
        half_mean_squared_error(outputs, torch.zeros(4, 1))
    with pytest.raises(ValueError, match="loss=half_mean_squared_error"):
        cross_entropy(outputs, torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"got \[4, 3\] and \[5\]"):
        cross_entropy(outputs, torch.zeros(5, dtype=torch.int64))
