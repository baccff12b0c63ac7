"""From the images of two splits to a Dataset: scaled, and augmented in training if wanted.

Shapes: N rows, C channels, H x W pixels.
"""

from __future__ import annotations

from torch import Tensor

from symlab.data.augmentation import CropAndFlip
from symlab.data.dataset import Dataset
from symlab.data.standardisation import standard_scale, unit_scale

Split = tuple[Tensor, Tensor]  # images [N, C, H, W], labels int64 [N]


def prepared(
    name: str, num_classes: int, train: Split, test: Split, *, standardise: bool, augment: bool, white: float = 255.0
) -> Dataset:
    """Both splits standardised per channel with the training rows' mean and deviation, or divided by `white`, the
    brightest value; with `augment` training batches are cropped and flipped, black being 0 before the scaling.

    Raises ValueError for a channel that is constant on the training rows, when they are to be standardised.
    """
    (train_images, train_labels), (test_images, test_labels) = train, test
    scale = standard_scale(train_images) if standardise else unit_scale(white, train_images.shape[1])
    return Dataset(
        name=name,
        train_inputs=scale.apply(train_images),
        train_targets=train_labels,
        test_inputs=scale.apply(test_images),
        test_targets=test_labels,
        num_classes=num_classes,
        augmentation=CropAndFlip(scale.black) if augment else None,
    )
