"""Small files in the format of CIFAR's Python batches, read like the real ones.

N images, 32 x 32 pixels.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from symlab.data.cifar_files import read_cifar
from symlab.data.preparation import Split
from symlab.data.ranges import whole_number
from symlab.data.synthetic_images import balanced_labels, complete_folder, striped_images

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

SUMS = "md5_sums.json"
FINE_PER_COARSE = 5  # classes in each of CIFAR-100's groups


def synthetic_cifar(
    name: str, source: type[CIFAR10], root: Path, *, classes: int, rows: int, test_rows: int, label_key: str
) -> tuple[Split, Split]:
    """Train and test split in the files that torchvision's class `source` reads, with its names and keys; its check of
    their MD5 sums is made with the sums noted when they were written.

    `root` gets a folder of its own for each number of rows, written when it is not there.

    Raises ValueError for fewer training rows than files or no test rows, and for files that were changed; OSError where
    nothing can be written.
    """
    counts = {
        "rows": whole_number("rows", rows, least=len(source.train_list)),
        "test_rows": whole_number("test_rows", test_rows, least=1),
    }

    def write(folder: Path) -> None:
        batches = folder / source.base_folder
        batches.mkdir()
        sums = {
            "train": _write_split(batches, source.train_list, rows, classes, label_key, seed=0),
            "test": _write_split(batches, source.test_list, test_rows, classes, label_key, seed=1),
            "meta": _write(batches / source.meta["filename"], _names(source.meta["key"], classes)),
        }
        (folder / SUMS).write_text(json.dumps(sums, indent=1))

    folder = complete_folder(root, name, counts, write)
    sums = json.loads((folder / SUMS).read_text())
    own = {"train_list": sums["train"], "test_list": sums["test"], "meta": source.meta | {"md5": sums["meta"]}}
    remedy = f"they were made by symlab: delete {folder}, and they are made again"
    return read_cifar(name, type(source.__name__, (source,), own), folder, download=False, remedy=remedy)


def _write_split(
    folder: Path, listed: list[list[str]], rows: int, classes: int, label_key: str, *, seed: int
) -> list[list[str]]:
    """The files that torchvision lists, with about as many rows each; returns their names and sums."""
    rng = np.random.default_rng(seed)
    labels = balanced_labels(rows, classes, rng)  # [N]
    images = striped_images(labels, classes, 32, 32, rng).transpose(0, 3, 1, 2).reshape(rows, 3072)
    sums = []
    for (name, _), part in zip(listed, np.array_split(np.arange(rows), len(listed)), strict=True):
        batch = {
            "batch_label": f"synthetic {name}",
            label_key: labels[part].tolist(),
            "data": images[part],
            "filenames": [f"synthetic_{row:06d}.png" for row in part],
        }
        if label_key == "fine_labels":
            batch["coarse_labels"] = (labels[part] // FINE_PER_COARSE).tolist()
        sums.append([name, _write(folder / name, batch)])
    return sums


def _names(key: str, classes: int) -> dict[str, list[str]]:
    names = {key: [f"class {label}" for label in range(classes)]}
    if key == "fine_label_names":
        names["coarse_label_names"] = [f"group {group}" for group in range(classes // FINE_PER_COARSE)]
    return names


def _write(path: Path, content: dict[str, Any]) -> str:
    """The pickle of protocol 2 that CIFAR's files are; returns its MD5 sum."""
    data = pickle.dumps(content, protocol=2)
    path.write_bytes(data)
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
