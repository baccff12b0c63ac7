"""The usual folder tree of images: root/train/<class>/*, root/val/<class>/*, as torchvision's ImageFolder reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
NAMED = 5  # classes that a message lists


@dataclass(frozen=True)
class Listing:
    """The images below `folder`: `names`, paths relative to it in one array of bytes (so that processes which load
    images share it), and `labels` int64 [N]."""

    folder: str
    names: np.ndarray
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """Path of image number `index`."""
        return os.path.join(self.folder, os.fsdecode(self.names[index].item()))

    def take(self, rows: Tensor) -> Listing:
        """The images with these numbers, in this order."""
        return Listing(self.folder, self.names[rows.numpy()], self.labels[rows])


def read_tree(title: str, root: Path) -> tuple[list[str], Listing, Listing]:
    """Classes (the sorted names of the folders in root/train, numbered from 0), training images, validation images.

    The labels of both splits are numbered by the training folders. As with ImageFolder a class's images may lie at any
    depth and links are followed; unlike it, names that begin with a dot are passed over.

    Raises FileNotFoundError for a folder that is not there, ValueError for classes that only one split has, for a class
    without images and for a link to a folder above it.
    """
    folders = {split: root / split for split in ("train", "val")}
    for folder in folders.values():
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{title} is not there: no folder {folder}; set data.root to the folder that holds train/<class>/*"
                " and val/<class>/*"
            )
    train, val = (_classes(folder) for folder in folders.values())
    _compare(root, train, val)
    return train, _images(folders["train"], train), _images(folders["val"], train)


def _classes(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        found = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not found:
        raise ValueError(f"{folder}: holds no class folders; the images must lie in {folder}/<class>/*")
    return found


def _compare(root: Path, train: list[str], val: list[str]) -> None:
    for split, missing, other in (
        ("val", sorted(set(train) - set(val)), "train"),
        ("train", sorted(set(val) - set(train)), "val"),
    ):
        if missing:
            raise ValueError(
                f"{root / split} lacks {len(missing)} of the classes that {root / other} has ({_listed(missing)}):"
                f" train has {len(train)} classes, val {len(val)}, and both must have the same"
            )


def _images(folder: Path, classes: list[str]) -> Listing:
    names: list[bytes] = []
    labels: list[int] = []
    empty = []
    for label, name in enumerate(classes):
        found = list(_files(folder, name))
        names += found
        labels += [label] * len(found)
        if not found:
            empty.append(name)
    if empty:
        raise ValueError(
            f"{folder}: no images in {len(empty)} of the class folders ({_listed(empty)}); images end in"
            f" {', '.join(EXTENSIONS)}"
        )
    return Listing(str(folder), np.array(names), torch.tensor(labels, dtype=torch.int64))


def _files(folder: Path, name: str) -> Iterator[bytes]:
    """Paths relative to `folder` of the images of one class, sorted by directory, then by name."""
    visible = []
    for directory, below, files in os.walk(folder / name, followlinks=True):
        below[:] = [entry for entry in below if not entry.startswith(".")]
        _refuse_loops(directory, below)
        visible.append((directory, files))
    for directory, files in sorted(visible):
        place = os.path.relpath(directory, folder)
        for file in sorted(files):
            if file.lower().endswith(EXTENSIONS) and not file.startswith("."):
                yield os.fsencode(os.path.join(place, file))


def _refuse_loops(directory: str, below: list[str]) -> None:
    """A link to a folder above it would count images many times, and those of other classes as this one's."""
    real = Path(directory).resolve()
    for entry in below:
        link = Path(directory, entry)
        if link.is_symlink() and real.is_relative_to(link.resolve()):
            raise ValueError(f"{link} links to {link.resolve()}, the folder that it lies in or one above: remove it")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
