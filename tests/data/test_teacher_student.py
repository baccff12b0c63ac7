"""The teacher-student generator against its definition and the published loss of the linear fit."""

import math
import statistics

import numpy as np
import pytest
import torch

from symlab.data.teacher_student import TEACHER_ACTIVATIONS, least_squares_test_loss, teacher_student

LINEAR_FIT = "linear least squares"
SMALL = {"num_train": 40, "num_test": 30, "input_size": 6, "hidden": [5], "output_size": 3}


def test_published_loss_of_the_linear_fit():
    """Median .0067 over ten seeds, range [.0055, .0080], for 100-70-40 tanh with 5,000 rows."""
    losses = [teacher_student(seed=seed).references[LINEAR_FIT] for seed in range(10)]
    assert statistics.median(losses) == pytest.approx(0.0067, abs=0.0005)
    assert min(losses) > 0.005
    assert max(losses) < 0.009


def test_linear_teacher_is_fitted_exactly():
    assert teacher_student(activation="identity").references[LINEAR_FIT] < 1e-25


def test_reference_equals_numpys_least_squares():
    data = teacher_student(**SMALL, noise_std=0.3)
    weights = np.linalg.pinv(data.train_inputs.numpy()) @ data.train_targets.numpy()
    residual = data.test_inputs.numpy() @ weights - data.test_targets.numpy()
    assert data.references[LINEAR_FIT] == pytest.approx((residual**2).sum() / (2 * 30), rel=1e-9)


def test_reference_has_an_intercept_with_biases_only():
    with_bias = teacher_student(**SMALL, activation="identity", bias_std=1.0)
    splits = (with_bias.train_inputs, with_bias.train_targets, with_bias.test_inputs, with_bias.test_targets)
    assert with_bias.references[LINEAR_FIT] < 1e-25
    assert least_squares_test_loss(*splits, intercept=False) > 1e-3


def test_input_covariance_has_the_spectrum():
    """Eigenvalues of the covariance are logspace(start, stop), up to sampling error sqrt(2 / n) of each."""
    data = teacher_student(num_train=20_000, num_test=1, input_size=6, spectrum_start=1.0, spectrum_stop=-2.0)
    x = data.train_inputs
    eigenvalues = torch.linalg.eigvalsh(x.T @ x / len(x)).flip(0)
    expected = torch.logspace(1, -2, 6, dtype=torch.float64)
    torch.testing.assert_close(eigenvalues, expected, rtol=0.05, atol=0)
    assert (x.mean(dim=0).abs() < 4 * math.sqrt(10 / 20_000)).all()


def test_train_and_test_share_teacher_and_eigenvectors():
    """A linear teacher fitted on the training rows predicts the test rows; their covariances share eigenvectors."""
    data = teacher_student(num_train=4000, num_test=4000, input_size=4, spectrum_stop=-3.0, activation="identity")
    assert data.references[LINEAR_FIT] < 1e-25
    vectors = torch.linalg.eigh(data.train_inputs.T @ data.train_inputs / 4000).eigenvectors
    rotated = vectors.T @ (data.test_inputs.T @ data.test_inputs / 4000) @ vectors
    scale = rotated.diagonal().sqrt()
    correlation = rotated / scale[:, None] / scale
    assert (correlation - torch.eye(4)).abs().max() < 0.15


def test_eigenvectors_are_not_the_axes():
    x = teacher_student(num_train=2000, num_test=1, input_size=5).train_inputs
    correlation = torch.corrcoef(x.T) - torch.eye(5)
    assert correlation.abs().max() > 0.3


def test_scale_of_the_targets():
    """A linear teacher without hidden layers: E ||y||^2 = C sum(lambda) / d, for weights N(0, 1/d)."""
    data = teacher_student(num_train=2000, num_test=1, input_size=60, hidden=[], output_size=200)
    expected = 200 * float(torch.logspace(0, -5, 60, dtype=torch.float64).sum()) / 60
    assert float(data.train_targets.square().sum(dim=1).mean()) == pytest.approx(expected, rel=0.15)


def test_noise_on_both_splits():
    quiet = teacher_student(num_train=3000, num_test=3000, input_size=6, hidden=[5], output_size=3)
    noisy = teacher_student(num_train=3000, num_test=3000, input_size=6, hidden=[5], output_size=3, noise_std=0.5)
    assert torch.equal(quiet.train_inputs, noisy.train_inputs)
    for split in ("train_targets", "test_targets"):
        noise = getattr(noisy, split) - getattr(quiet, split)
        assert float(noise.std()) == pytest.approx(0.5, rel=0.05)


def test_same_seed_same_data_whatever_the_global_state():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = teacher_student(**SMALL, seed=4)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second, other = teacher_student(**SMALL, seed=4), teacher_student(**SMALL, seed=5)
    for name in ("train_inputs", "train_targets", "test_inputs", "test_targets"):
        assert torch.equal(getattr(first, name), getattr(second, name))
        assert not torch.equal(getattr(first, name), getattr(other, name))
    assert not torch.equal(first.train_inputs[:30], first.test_inputs)


def test_more_training_rows_leave_the_test_rows_alone():
    few, many = teacher_student(**SMALL), teacher_student(**(SMALL | {"num_train": 77}))
    assert torch.equal(few.test_inputs, many.test_inputs)
    assert torch.equal(few.test_targets, many.test_targets)


@pytest.mark.parametrize("activation", TEACHER_ACTIVATIONS)
def test_shapes_and_type(activation):
    data = teacher_student(**SMALL, activation=activation)
    assert data.train_inputs.shape == (40, 6)
    assert data.test_targets.shape == (30, 3)
    assert (data.input_shape, data.output_size, data.num_classes) == ((6,), 3, None)
    assert data.train_inputs.dtype == data.train_targets.dtype == torch.float64


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_train": 0}, ["num_train", "1", "0"]),
        ({"num_test": -5}, ["num_test", "-5"]),
        ({"input_size": 0}, ["input_size", "0"]),
        ({"hidden": [4, 0]}, ["hidden", "0"]),
        ({"noise_std": -0.1}, ["noise_std", "-0.1"]),
        ({"bias_std": math.nan}, ["bias_std", "nan"]),
        ({"spectrum_stop": math.inf}, ["spectrum_stop", "inf"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"activation": "rleu"}, ["activation", "rleu", "relu"]),
    ],
)
def test_bad_values_are_named(keys, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        teacher_student(**(SMALL | keys))
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("keys", [{"num_train": 2.5}, {"num_train": True}, {"noise_std": "1"}, {"seed": "0"}])
def test_wrong_types_are_named(keys):
    with pytest.raises(TypeError, match=next(iter(keys))):
        teacher_student(**(SMALL | keys))


def test_narrow_teacher_has_weights_smaller_by_the_root_of_fan_in():
    """A linear teacher with narrow weights is the normal one with each layer divided by sqrt(fan_in)."""
    normal = teacher_student(**SMALL, activation="identity")
    narrow = teacher_student(**SMALL, activation="identity", init="narrow_normal")
    torch.testing.assert_close(narrow.train_targets, normal.train_targets / math.sqrt(6 * 5))
    torch.testing.assert_close(narrow.train_inputs, normal.train_inputs)
    with pytest.raises(ValueError, match="init must be one of normal, narrow_normal, got 'wide'"):
        teacher_student(**SMALL, init="wide")
