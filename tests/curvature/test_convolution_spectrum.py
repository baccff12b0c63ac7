"""The FFT's singular values against those of the dense matrix, and against torch's own circular convolution."""

import numpy as np
import pytest
import torch
from torch import nn

from symlab.curvature.convolution_spectrum import convolution_singular_values
from symlab.curvature.jacobian_spectrum import singular_values
from symlab.curvature.jacobian_stretch import Stretch
from tests.reference_spectrum import circular_convolution


@pytest.mark.parametrize(
    ("shape", "size", "stride"),
    [
        *[((3, 2, 3, 3), (5, 4), 1), ((2, 3, 3, 2), (4, 4), 1), ((3, 2, 3, 3), (4, 6), 2)],
        *[((9, 2, 3, 3), (6, 6), 2), ((2, 2, 1, 1), (6, 3), 3), ((1, 1, 2, 2), (2, 2), 1)],
    ],
)
def test_against_the_dense_matrix(shape, size, stride):
    kernel = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = convolution_singular_values(kernel, *size, stride)
    truth = np.linalg.svd(circular_convolution(kernel.numpy(), *size, stride), compute_uv=False)
    np.testing.assert_allclose(found.numpy(), np.sort(truth), atol=1e-12)


@pytest.mark.parametrize("stride", [1, 2])
def test_against_the_jacobian_of_a_layer(stride):
    layer = nn.Conv2d(2, 3, 3, stride, padding=1, padding_mode="circular", bias=False).double()
    inputs = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = singular_values(Stretch.of(nn.Sequential(layer), inputs, "0", "0"), method="svd")
    exact = convolution_singular_values(layer.weight, 6, 6, stride)
    torch.testing.assert_close(found.values, exact.repeat_interleave(2), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "size", "stride", "message"),
    [
        ((2, 2, 3), (4, 4), 1, "must be"),
        ((2, 2, 5, 5), (4, 4), 1, "larger than the image 4 x 4"),
        ((2, 2, 3, 3), (4, 4), 0, "got 0"),
        ((2, 2, 3, 3), (4, 5), 2, "divide 4 x 5, got 2"),
    ],
)
def test_what_cannot_be(shape, size, stride, message):
    with pytest.raises(ValueError, match=message):
        convolution_singular_values(torch.ones(shape), *size, stride)
