"""The rescaled pooling: its matrix against loops, its singular values, gradients, and what it refuses."""

import pytest
import torch
from torch.func import jacrev, vmap

from symlab.models.shortcuts import RescaledPooling, shortcut_pooling
from tests.reference_residual import rescaled_pooling_matrix

CASES = [
    (channels, out, stride, size)
    for stride, sizes in {1: [(3, 4)], 2: [(4, 6), (5, 7), (4, 1), (1, 1)], 3: [(6, 3), (7, 8), (5, 6), (1, 2)]}.items()
    for size in sizes
    for channels, out in [(2, 2), (2, 4), (2, 7)]
]


def dense(pool, channels, height, width):
    """The matrix, column by column from unit vectors."""
    units = torch.eye(channels * height * width, dtype=torch.float64).reshape(-1, channels, height, width)
    return pool(units).flatten(1).T


@pytest.mark.parametrize(("channels", "out", "stride", "size"), CASES)
def test_the_matrix_is_that_of_the_loops_and_its_singular_values_are_one(channels, out, stride, size):
    matrix = dense(RescaledPooling(channels, out, stride), channels, *size)
    torch.testing.assert_close(matrix, rescaled_pooling_matrix(channels, out, stride, *size), rtol=0, atol=1e-15)
    values = torch.linalg.svdvals(matrix)
    rank = channels * -(-size[0] // stride) * -(-size[1] // stride)  # the other rows are the zero channels
    torch.testing.assert_close(values[:rank], torch.ones_like(values[:rank]), rtol=0, atol=1e-14)
    assert float(values[rank:].abs().sum()) < 1e-14


def test_where_the_stride_divides_it_is_stride_times_the_mean():
    x = torch.randn(2, 5, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = RescaledPooling(5, 20, 3)(x)
    assert y.shape == (2, 20, 4, 4)
    assert not y[:, :7].any()
    assert not y[:, 12:].any()
    means = x.reshape(2, 5, 4, 3, 4, 3).mean((3, 5))
    torch.testing.assert_close(y[:, 7:12], 3 * means, rtol=1e-13, atol=0)


@pytest.mark.parametrize("size", [6, 7])
def test_it_can_be_differentiated_and_batched(size):
    pool = RescaledPooling(2, 3, 2)
    x = torch.randn(2, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jacobian = jacrev(lambda x: pool(x[None])[0])(x)
    expected = rescaled_pooling_matrix(2, 3, 2, size, size)
    torch.testing.assert_close(jacobian.reshape(expected.shape), expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(vmap(lambda x: pool(x[None])[0])(x[None]), pool(x[None]), rtol=0, atol=0)


@pytest.mark.parametrize("size", [8, 9])
def test_low_precision_and_memory_format_are_kept(size):
    pool = RescaledPooling(4, 8, 2)
    x = torch.randn(2, 4, size, size, generator=torch.Generator().manual_seed(0))
    y = pool(x.bfloat16())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), pool(x), rtol=0.02, atol=0.02)
    last = pool(x.contiguous(memory_format=torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, pool(x), rtol=1e-6, atol=1e-6)


def test_only_shortcuts_that_change_the_shape_have_one():
    assert shortcut_pooling(4, 4, 1, "avgpool_conv") is None
    assert shortcut_pooling(4, 8, 2, "conv") is None
    assert shortcut_pooling(4, 8, 2, "avgpool_conv").stride == 2
    assert shortcut_pooling(4, 16, 1, "avgpool_conv").before == 6


@pytest.mark.parametrize(("sizes", "words"), [((4, 3, 2), "got 4 and 3"), ((0, 3, 2), "got 0"), ((2, 4, 0), "stride")])
def test_sizes_that_cannot_be_are_refused(sizes, words):
    with pytest.raises(ValueError, match=words):
        RescaledPooling(*sizes)
