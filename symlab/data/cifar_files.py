"""CIFAR's Python batches, read through torchvision, which checks their MD5 sums before it unpickles them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from symlab.data.image_files import downloaded
from symlab.data.preparation import Split

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10


def read_cifar(title: str, source: type[CIFAR10], root: Path, download: bool, remedy: str = "") -> tuple[Split, Split]:
    """Train and test split, images uint8 [N, 3, 32, 32], labels int64 [N]; `source` is torchvision's class,
    `remedy` what to do when its files are not as they should be (default: where to get them).

    Raises FileNotFoundError when the folder is not there, ValueError when a file in it is missing or damaged,
    OSError when the download fails.
    """
    if download:
        downloaded(title, root, lambda: source(str(root), download=True))
    folder = root / source.base_folder
    remedy = remedy or f"set data.root to the folder that holds {source.base_folder}, or data.download=true to fetch it"
    if not folder.is_dir():
        raise FileNotFoundError(f"{title} is not there: no folder {folder}; {remedy}")
    try:
        parts = [source(str(root), train=train, download=False) for train in (True, False)]
    except RuntimeError as error:
        raise ValueError(f"{title}: files in {folder} are missing or fail their MD5 check; {remedy}") from error
    train, test = (
        (torch.from_numpy(part.data).permute(0, 3, 1, 2), torch.tensor(part.targets, dtype=torch.int64))
        for part in parts
    )
    return train, test
