"""Made-up images in exactly CIFAR-100's files, for tests and dry runs."""

from __future__ import annotations

from pathlib import Path

from symlab.data.dataset import Dataset
from symlab.data.image_files import data_root, image_dataset
from symlab.data.synthetic_cifar import synthetic_cifar


def cifar100_synthetic(
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
    """Images [N, 3, 32, 32] of 100 classes (see `symlab.data.synthetic_images.striped_images`), scaled and augmented
    like `symlab.data.cifar100`.

    `<root>/cifar100_synthetic-<mark>` gets the files, `rows` and `test_rows` images in all, unless it is there; real
    data are never touched. The other keys are those of cifar100.

    Raises ValueError for numbers out of range or files that were changed, OSError where nothing can be written.
    """
    from torchvision.datasets import CIFAR100

    counts = {"rows": rows, "test_rows": test_rows}
    name = "cifar100_synthetic"
    train, test = synthetic_cifar(name, CIFAR100, data_root(root), classes=100, label_key="fine_labels", **counts)
    return image_dataset(
        name,
        100,
        train,
        test,
        seed=seed,
        num_train=num_train,
        num_test=num_test,
        standardise=standardise,
        augment=augment,
    )
