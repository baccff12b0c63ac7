"""Made-up images in exactly CIFAR-10's files, for tests and dry runs."""

from __future__ import annotations

from pathlib import Path

from symlab.data.dataset import Dataset
from symlab.data.image_files import data_root, image_dataset
from symlab.data.synthetic_cifar import synthetic_cifar


def cifar10_synthetic(
    *,
    root: Path | str = "data/synthetic",
    rows: int = 1000,
    test_rows: int = 200,
    seed: int = 0,
    num_train: int | None = None,
    num_test: int | None = None,
    standardise: bool = True,
    augment: bool = False,
) -> Dataset:
    """Images [N, 3, 32, 32] of 10 classes (see `symlab.data.synthetic_images.striped_images`), scaled and augmented
    like `symlab.data.cifar10`.

    `<root>/cifar10_synthetic-<mark>` gets the files, `rows` and `test_rows` images in all, unless it is there; real
    data are never touched. The other keys are those of cifar10.

    Raises ValueError for numbers out of range or files that were changed, OSError where nothing can be written.
    """
    from torchvision.datasets import CIFAR10

    counts = {"rows": rows, "test_rows": test_rows}
    name = "cifar10_synthetic"
    train, test = synthetic_cifar(name, CIFAR10, data_root(root), classes=10, label_key="labels", **counts)
    return image_dataset(
        name,
        10,
        train,
        test,
        seed=seed,
        num_train=num_train,
        num_test=num_test,
        standardise=standardise,
        augment=augment,
    )
