"""What the image data sets share: where files lie, what to say when they do not, the Dataset made of them.

Shapes: N rows, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from symlab.data.dataset import Dataset
from symlab.data.idx_files import find_idx_files, missing_idx_files
from symlab.data.preparation import Split, prepared
from symlab.data.ranges import whole_number
from symlab.data.resizing import resized
from symlab.data.subsets import subset


def data_root(root: Path | str) -> Path:
    """`root` as an absolute path: ~ is the home directory, a relative path starts at the working
    directory.
    """
    if not str(root):
        raise ValueError("root must be the path of a directory, got an empty string")
    return Path(root).expanduser().absolute()


def image_dataset(
    name: str,
    num_classes: int,
    train: Split,
    test: Split,
    *,
    seed: int,
    num_train: int | None,
    num_test: int | None,
    size: int | None = None,
    channels: int | None = None,
    standardise: bool,
    augment: bool,
) -> Dataset:
    """Shuffle both splits with `seed`, keep the first `num_train` and `num_test` rows (None: all),
    resize (see `resizing.resized`), scale (see `preparation.prepared`).

    Mean and standard deviation per channel are those of the training rows that are kept.
    """
    generator = torch.Generator().manual_seed(whole_number("seed", seed, least=0))
    train_images, train_labels = subset("num_train", *train, num_train, generator)
    test_images, test_labels = subset("num_test", *test, num_test, generator)
    train_images, test_images = (resized(images, size, channels) for images in (train_images, test_images))
    splits = (train_images, train_labels), (test_images, test_labels)
    return prepared(name, num_classes, *splits, standardise=standardise, augment=augment)


def downloaded(title: str, root: Path, fetch: Callable[[], object]) -> None:
    """Call `fetch`, which is to put the files of `title` under `root`; OSError that says what failed
    otherwise.
    """
    try:
        fetch()
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())  # torchvision's messages have several lines
        raise OSError(f"download=true: could not download {title} to {root}: {reason}") from error


def complete_idx_folder(title: str, folders: list[Path], remedy: str) -> Path:
    """The first of `folders` that holds MNIST's four files, plain or .gz.

    Raises FileNotFoundError when a folder before it holds some of them only, or none holds any: it names the
    files, the folders and the `remedy`.
    """
    for folder in folders:
        missing = missing_idx_files(folder)
        if not missing:
            return folder
        if find_idx_files(folder):
            raise FileNotFoundError(f"{title} is not complete: {folder} lacks {', '.join(missing)}; {remedy}")
    places = " or ".join(str(folder) for folder in folders)
    raise FileNotFoundError(f"{title} is not there: no train-images-idx3-ubyte[.gz] in {places}; {remedy}")
