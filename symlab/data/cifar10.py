"""CIFAR-10: 50,000 + 10,000 colour images in 10 classes, 32 x 32, from files that torchvision lays down."""

from __future__ import annotations

from pathlib import Path

from symlab.data.cifar_files import read_cifar
from symlab.data.dataset import Dataset
from symlab.data.image_files import data_root, image_dataset


def cifar10(
    *,
    root: Path | str = "data",
    download: bool = False,
    seed: int = 0,
    num_train: int | None = None,
    num_test: int | None = None,
    standardise: bool = True,
    augment: bool = False,
) -> Dataset:
    """Images [N, 3, 32, 32], float32, standardised per channel with the training rows' mean and
    deviation; `standardise` false divides by 255 instead. `augment` crops (padding 4) and flips training
    batches.

    Reads `<root>/cifar-10-batches-py` through torchvision; `download` fetches it if it is not there.
    Labels are 0..9. `seed` shuffles the rows of both splits; `num_train` and `num_test` (null: all) keep
    the first so many.

    Raises FileNotFoundError without the files, OSError when the download fails, ValueError for a damaged
    file.
    """
    from torchvision.datasets import CIFAR10

    train, test = read_cifar("CIFAR-10", CIFAR10, data_root(root), download)
    return image_dataset(
        "cifar10",
        10,
        train,
        test,
        seed=seed,
        num_train=num_train,
        num_test=num_test,
        standardise=standardise,
        augment=augment,
    )
