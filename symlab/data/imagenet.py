"""ImageNet, or any images in the same folder tree, read from disk as they are needed."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from symlab.data.image_files import data_root
from symlab.data.image_tree import Listing, read_tree
from symlab.data.image_views import ImageViews
from symlab.data.ranges import whole_number
from symlab.data.streamed import StreamedDataset, StreamedSplit
from symlab.data.subsets import subset_rows

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's channels, the values in general use


def imagenet(
    *,
    root: Path | str = "data/imagenet",
    size: int = 224,
    resize: int = 256,
    workers: int = 4,
    seed: int = 0,
    num_train: int | None = None,
    num_test: int | None = None,
    augment: bool = True,
) -> StreamedDataset:
    """Images [3, size, size], standardised with ImageNet's mean and deviation of each channel, from
    `<root>/train/<class>/*` and `<root>/val/<class>/*`; the classes are numbered in the order of their names.

    Training: random crops resized to `size`, and flips; evaluation (and training with `augment` false): the shorter
    side resized to `resize`, then the middle; see `symlab.data.image_views.ImageViews`. `workers` processes load the
    images (0: the main one). `seed` shuffles the rows of both splits; `num_train` and `num_test` (null: all) keep the
    first so many. Nothing is written.

    Raises FileNotFoundError without the folders, ValueError for classes that differ between them or have no images and
    for numbers out of range. Files are opened only when they are needed: a damaged one ends the run then, by its path.
    """
    place = data_root(root)
    return image_tree_dataset(
        "imagenet",
        place,
        size=size,
        resize=resize,
        workers=workers,
        seed=seed,
        num_train=num_train,
        num_test=num_test,
        augment=augment,
    )


def image_tree_dataset(
    name: str,
    root: Path,
    *,
    size: int,
    resize: int,
    workers: int,
    seed: int,
    num_train: int | None,
    num_test: int | None,
    augment: bool,
) -> StreamedDataset:
    """The data set called `name` from the folder tree in `root`; see `imagenet`."""
    whole_number("size", size, least=1)
    if whole_number("resize", resize, least=1) < size:
        raise ValueError(f"resize must be at least size={size}, whose middle is taken from it, got {resize}")
    whole_number("workers", workers, least=0)
    generator = torch.Generator().manual_seed(whole_number("seed", seed, least=0))
    classes, train, val = read_tree(name, root)
    train = train.take(subset_rows("num_train", len(train.labels), num_train, generator))
    val = val.take(subset_rows("num_test", len(val.labels), num_test, generator))
    logging.getLogger("symlab").info(
        "%s from %s: %d classes, %d training and %d test images", name, root, len(classes), len(train), len(val)
    )

    def split(files: Listing) -> StreamedSplit:
        return StreamedSplit(files.labels, ImageViews(files, size, resize, augment))

    shape = (3, size, size)
    return StreamedDataset(name, split(train), split(val), len(classes), shape, MEAN, STD, workers)
