"""Images of another size or number of channels."""

import numpy as np
import pytest
import torch

from symlab.data.digits import digits
from symlab.data.resizing import resized


def interpolated(image, size):
    """Bilinear interpolation between pixel centres, by loops; the border continues its pixels."""
    old = len(image)
    out = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            y, x = (min(max((k + 0.5) * old / size - 0.5, 0), old - 1) for k in (i, j))
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, old - 1), min(x0 + 1, old - 1)
            top = (1 - (x - x0)) * image[y0, x0] + (x - x0) * image[y0, x1]
            bottom = (1 - (x - x0)) * image[y1, x0] + (x - x0) * image[y1, x1]
            out[i, j] = (1 - (y - y0)) * top + (y - y0) * bottom
    return out


@pytest.mark.parametrize("size", [8, 11, 16])
def test_enlarged_images_are_interpolated(size):
    images = torch.randint(0, 256, (3, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    result = resized(images, size, 3)
    assert result.shape == (3, 3, size, size)
    for channel in range(3):
        expected = np.stack([interpolated(image[0].double().numpy(), size) for image in images])
        np.testing.assert_allclose(result[:, channel].double().numpy(), expected, rtol=1e-5, atol=1e-3)


def test_nothing_asked_nothing_done():
    images = torch.ones(2, 3, 4, 4, dtype=torch.uint8)
    assert resized(images, None, None) is images
    assert resized(images, 4, 3) is images


def test_bad_values_are_named():
    images = torch.ones(2, 3, 4, 4)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        resized(images, 0, None)
    with pytest.raises(ValueError, match="channels must be 3 for images of 3 channels"):
        resized(images, None, 1)
    with pytest.raises(TypeError, match="channels must be a whole number"):
        resized(images, None, 1.5)


def test_digits_of_another_form_are_the_same_rows_standardised():
    pytest.importorskip("sklearn")
    plain, large = digits(num_train=50), digits(num_train=50, size=16, channels=3)
    assert large.input_shape == (3, 16, 16)
    assert torch.equal(large.train_targets, plain.train_targets)
    assert float(large.train_inputs.double().mean()) == pytest.approx(0, abs=1e-6)
    assert float(large.train_inputs.double().std(correction=0)) == pytest.approx(1, abs=1e-6)
