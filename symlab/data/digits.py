"""The 1,797 real 8 x 8 images of handwritten digits that scikit-learn ships (no download)."""

from __future__ import annotations

import torch
from torch import Tensor

from symlab.data.dataset import Dataset
from symlab.data.preparation import prepared
from symlab.data.ranges import finite_number, whole_number
from symlab.data.resizing import resized
from symlab.data.subsets import subset

NUM_CLASSES = 10
WHITE = 16.0


def digits(
    *,
    seed: int = 0,
    test_fraction: float = 0.2,
    num_train: int | None = None,
    num_test: int | None = None,
    size: int | None = None,
    channels: int = 1,
    standardise: bool = True,
    augment: bool = False,
) -> Dataset:
    """Images [N, 1, 8, 8], float32, standardised with the training rows' mean and standard deviation;
    labels 0..9. `size` and `channels` make them [N, channels, size, size] (see `resizing.resized`).
    `standardise` false divides by 16 instead; `augment` crops (padding 4) and flips training batches.

    The split is stratified and fixed by `seed`: of the n_k images of class k, a random
    round(test_fraction * n_k) are test rows. The rows of both splits are then shuffled with the same
    seed; `num_train` and `num_test` (null: all) keep the first so many.

    Raises ModuleNotFoundError without scikit-learn, ValueError or TypeError for a number out of range.
    """
    whole_number("seed", seed, least=0)
    if not 0 < finite_number("test_fraction", test_fraction) < 1:
        raise ValueError(f"test_fraction must lie strictly between 0 and 1, got {test_fraction}")
    images, labels = _load()
    generator = torch.Generator().manual_seed(seed)
    train_rows, test_rows = _stratified(labels, test_fraction, generator)
    train_images, train_labels = subset("num_train", images[train_rows], labels[train_rows], num_train, generator)
    test_images, test_labels = subset("num_test", images[test_rows], labels[test_rows], num_test, generator)
    train_images, test_images = (resized(images, size, channels) for images in (train_images, test_images))
    splits = (train_images, train_labels), (test_images, test_labels)
    return prepared("digits", NUM_CLASSES, *splits, standardise=standardise, augment=augment, white=WHITE)


def _load() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "data=digits reads the images that scikit-learn ships, and scikit-learn is not installed; "
            "to install it: pip install 'symlab[digits]'"
        ) from error
    bunch = load_digits()
    images = torch.as_tensor(bunch.images, dtype=torch.float64).unsqueeze(1)  # [1797, 1, 8, 8]
    return images, torch.as_tensor(bunch.target, dtype=torch.int64)  # [1797]


def _stratified(labels: Tensor, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Row numbers of the two splits; each class keeps at least one row on both sides."""
    train, test = [], []
    for label in range(NUM_CLASSES):
        rows = (labels == label).nonzero().flatten()  # [n_k]
        rows = rows[torch.randperm(len(rows), generator=generator)]
        count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        test.append(rows[:count])
        train.append(rows[count:])
    return torch.cat(train), torch.cat(test)
