"""Fashion-MNIST: 60,000 + 10,000 images of clothes, 28 x 28, from torchvision's files or Debian's package."""

from __future__ import annotations

import logging
from pathlib import Path

from symlab.data.dataset import Dataset
from symlab.data.idx_files import missing_idx_files, read_idx_folder
from symlab.data.image_files import complete_idx_folder, data_root, downloaded, image_dataset

REMEDY = (
    "set data.root to the folder that holds FashionMNIST/raw, or fetch the files with data.download=true, "
    "or on Debian and Ubuntu with `apt-get install dataset-fashion-mnist`"
)


def fashion_mnist(
    *,
    root: Path | str = "data",
    download: bool = False,
    package: Path | str = "/usr/share/datasets/fashion-mnist",
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

    Reads the four IDX files, plain or .gz, in `<root>/FashionMNIST/raw`, torchvision's place for them,
    or, if there are none, in `package`, where Debian's dataset-fashion-mnist puts them; the log says
    which. Nothing is written, unless `download` lets torchvision fetch files into `root`. `seed` shuffles
    the rows of both splits; `num_train` and `num_test` (null: all) keep the first so many.

    Raises FileNotFoundError without the files, OSError when the download fails, ValueError for a damaged
    file.
    """
    place = data_root(root)
    raw = place / "FashionMNIST" / "raw"
    if download and missing_idx_files(raw):
        from torchvision.datasets import FashionMNIST

        downloaded("Fashion-MNIST", place, lambda: FashionMNIST(place, download=True))
    folders = [raw, Path(package)]
    folder = complete_idx_folder("Fashion-MNIST", folders, REMEDY)
    logging.getLogger("symlab").info("Fashion-MNIST from %s", folder)
    train, test = read_idx_folder(folder)
    return image_dataset(
        "fashion_mnist",
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
