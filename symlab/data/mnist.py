"""MNIST: 60,000 + 10,000 images of handwritten digits, 28 x 28, from files that torchvision lays down."""

from __future__ import annotations

from pathlib import Path

from symlab.data.dataset import Dataset
from symlab.data.idx_files import missing_idx_files, read_idx_folder
from symlab.data.image_files import complete_idx_folder, data_root, downloaded, image_dataset


def mnist(
    *,
    root: Path | str = "data",
    download: bool = False,
    seed: int = 0,
    num_train: int | None = None,
    num_test: int | None = None,
    size: int | None = None,
    channels: int = 1,
    standardise: bool = True,
    augment: bool = False,
) -> Dataset:
    """Images [N, 1, 28, 28], float32, standardised with the training rows' mean and deviation; labels
    0..9. `size` and `channels` make them [N, channels, size, size] (see `resizing.resized`).
    `standardise` false divides by 255 instead; `augment` crops (padding 4) and flips training batches.

    Reads the four IDX files, plain or .gz, in `<root>/MNIST/raw`, torchvision's place for them;
    `download` lets torchvision fetch those that are not there. `seed` shuffles the rows of both splits;
    `num_train` and `num_test` (null: all) keep the first so many.

    Raises FileNotFoundError without the files, OSError when the download fails, ValueError for a damaged
    file.
    """
    place = data_root(root)
    raw = place / "MNIST" / "raw"
    if download and missing_idx_files(raw):
        from torchvision.datasets import MNIST

        downloaded("MNIST", place, lambda: MNIST(place, download=True))
    remedy = "set data.root to the folder that holds MNIST/raw, or data.download=true to fetch the files"
    folder = complete_idx_folder("MNIST", [raw], remedy)
    train, test = read_idx_folder(folder)
    return image_dataset(
        "mnist",
        10,
        train,
        test,
        seed=seed,
        num_train=num_train,
        num_test=num_test,
        size=size,
        channels=channels,
        standardise=standardise,
        augment=augment,
    )
