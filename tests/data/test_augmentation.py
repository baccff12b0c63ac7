"""The augmentation on the device against torchvision's transforms of single PIL images, and its distribution."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import chisquare
from torchvision.transforms import functional

from symlab.data.augmentation import CropAndFlip
from symlab.data.digits import digits
from symlab.data.fashion_mnist import fashion_mnist
from symlab.data.standardisation import standard_scale, unit_scale
from tests.data.image_folders import write_idx_folder

EVERY = [(i, j, flip) for i in range(9) for j in range(9) for flip in (False, True)]  # 162


def pixels(rows: int, size: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, 3, size, size), dtype=np.uint8)


def pil_crop_and_flip(image: np.ndarray, i: int, j: int, flip: bool) -> Image.Image:
    """What RandomCrop(32, padding=4) and RandomHorizontalFlip do to one image [3, H, W] with these draws."""
    picture = functional.pad(Image.fromarray(image.transpose(1, 2, 0)), 4, fill=0)
    picture = functional.crop(picture, i, j, image.shape[1], image.shape[2])
    return functional.hflip(picture) if flip else picture


def reference(images: np.ndarray, finish: Callable[[Image.Image], torch.Tensor]) -> torch.Tensor:
    """Every one of the 162 changes, of one image each."""
    pictures = [pil_crop_and_flip(image, *change) for image, change in zip(images, EVERY, strict=True)]
    return torch.stack([finish(picture) for picture in pictures])


def all_changes() -> tuple[torch.Tensor, torch.Tensor]:
    offsets = torch.tensor([change[:2] for change in EVERY]).T  # [2, 162]
    return offsets, torch.tensor([change[2] for change in EVERY])


def test_every_offset_and_flip_moves_the_pixels_as_torchvision_does():
    images = pixels(162)
    found = CropAndFlip(torch.zeros(3)).moved(torch.from_numpy(images), *all_changes())
    assert torch.equal(found, reference(images, functional.pil_to_tensor))


def test_in_unit_scale_the_arrays_equal_to_tensor_bit_for_bit():
    images = pixels(162, seed=1)
    scale = unit_scale(255.0, 3)
    found = CropAndFlip(scale.black).moved(scale.apply(torch.from_numpy(images)), *all_changes())
    assert torch.equal(found, reference(images, functional.to_tensor))


def test_standardised_the_arrays_equal_to_tensor_and_normalize():
    images = pixels(162, seed=2) // 2 + np.arange(3, dtype=np.uint8)[:, None, None] * 40
    mean = (images.mean(axis=(0, 2, 3)) / 255).tolist()
    std = (images.std(axis=(0, 2, 3)) / 255).tolist()
    scale = standard_scale(torch.from_numpy(images))
    found = CropAndFlip(scale.black).moved(scale.apply(torch.from_numpy(images)), *all_changes())
    expected = reference(images, lambda picture: functional.normalize(functional.to_tensor(picture), mean, std))
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    corner = found[0, :, 0, 0]  # of the frame
    torch.testing.assert_close(corner.double(), -torch.tensor(mean).double() / torch.tensor(std).double())


def draws(rows: int, seed: int) -> np.ndarray:
    """The (i, j, flip) of `rows` rows, read off an image whose pixels hold their own coordinates."""
    line, column = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    images = torch.stack([line, column]).expand(rows, 2, 8, 8)
    moved = CropAndFlip(torch.full((2,), -100.0))(images, torch.Generator().manual_seed(seed))
    found = []
    for row in moved:
        y, x = (row[0] > -100).nonzero()[0].tolist()  # first pixel of the image; at least 4 x 4 are to be seen
        value, flip = int(row[1, y, x]), bool(row[1, y, x + 1] < row[1, y, x])
        found.append((int(row[0, y, x]) - y + 4, value - (7 - x if flip else x) + 4, flip))
    return np.array(found, dtype=int)


def test_offsets_and_flips_are_uniform_and_independent():
    found = draws(16_200, seed=5)
    assert found.min(axis=0).tolist() == [0, 0, 0]
    assert found.max(axis=0).tolist() == [8, 8, 1]
    cells = np.ravel_multi_index(tuple(found.T), (9, 9, 2))
    counts = np.bincount(cells, minlength=162)  # 100 expected in each of the joint cells
    assert 1e-3 < chisquare(counts).pvalue < 1 - 1e-3
    pairs = np.ravel_multi_index((cells[:-1] // 18, cells[1:] // 18), (9, 9))  # neighbouring rows
    assert 1e-3 < chisquare(np.bincount(pairs, minlength=81)).pvalue < 1 - 1e-3


def test_only_the_given_generator_is_used():
    images = torch.from_numpy(pixels(20)).float()
    change = CropAndFlip(torch.zeros(3))
    state = torch.get_rng_state()
    first = change(images, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, change(images, torch.Generator().manual_seed(3)))
    assert not torch.equal(first, change(images, torch.Generator().manual_seed(4)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_does_not_matter():
    images = torch.from_numpy(pixels(40)).float()
    change = CropAndFlip(torch.tensor([1.0, 2.0, 3.0]))
    here = change(images, torch.Generator().manual_seed(3))
    there = change(images.cuda(), torch.Generator().manual_seed(3))
    assert torch.equal(here, there.cpu())


def test_without_padding_only_flips_are_left_and_less_is_refused():
    images = torch.from_numpy(pixels(50)).float()
    found = CropAndFlip(torch.zeros(3), padding=0)(images, torch.Generator().manual_seed(0))
    flipped = [torch.equal(one, image.flip(2)) for one, image in zip(found, images, strict=True)]
    same = [torch.equal(one, image) for one, image in zip(found, images, strict=True)]
    assert [a != b for a, b in zip(flipped, same, strict=True)] == [True] * 50
    assert 10 < sum(flipped) < 40
    with pytest.raises(ValueError, match="padding must be at least 0, got -1"):
        CropAndFlip(torch.zeros(3), padding=-1)


def test_keys_of_the_data_sets(tmp_path):
    content = write_idx_folder(tmp_path / "FashionMNIST" / "raw", {"train": 30, "test": 12})
    plain, moved = (fashion_mnist(root=str(tmp_path), augment=augment) for augment in (False, True))
    assert plain.augmentation is None
    assert torch.equal(plain.train_inputs, moved.train_inputs)
    mean, std = content["train"][0].mean(), content["train"][0].std()
    assert isinstance(moved.augmentation, CropAndFlip)
    assert float(moved.augmentation.fill) == pytest.approx(-mean / std, rel=1e-5)
    raw = fashion_mnist(root=str(tmp_path), standardise=False)
    images = np.stack(sorted(content["test"][0].tolist()))
    found = np.stack(sorted((raw.test_inputs[:, 0] * 255).round().int().tolist()))
    assert (found == images).all()
    assert float(raw.train_inputs.max()) <= 1


def test_digits_in_the_unit_range_and_padded_with_black():
    data = digits(standardise=False, augment=True)
    assert (float(data.train_inputs.min()), float(data.train_inputs.max())) == (0, 1)
    assert isinstance(data.augmentation, CropAndFlip)
    assert data.augmentation.fill.tolist() == [0]
    assert digits(augment=True).augmentation.fill.item() == pytest.approx(float(digits().train_inputs.min()))
