"""The IDX files of MNIST and its kin: 4 bytes of magic number, big-endian sizes, then unsigned bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

IMAGES_AND_LABELS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
Split = tuple[Tensor, Tensor]  # images uint8 [N, 1, H, W], labels int64 [N]


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The uint8 array with `dimensions` axes in the IDX file `path`; a name that ends in .gz is
    decompressed.

    Raises ValueError, with the path, when the file is damaged, is no IDX file of unsigned bytes with that
    many axes, or is shorter or longer than its header says.
    """
    content = _content(path)
    magic = bytes([0, 0, 0x08, dimensions])
    if content[:4] != magic:
        raise ValueError(f"{path}: expected the magic number {magic.hex()}, found {content[:4].hex()!r}")
    offset = 4 + 4 * dimensions
    if len(content) < offset:
        raise ValueError(f"{path}: truncated, {len(content)} bytes where the header alone has {offset}")
    shape = struct.unpack(f">{dimensions}I", content[4:offset])
    expected = offset + math.prod(shape)
    if len(content) != expected:
        raise ValueError(
            f"{path}: the header says {' x '.join(map(str, shape))}, which makes {expected} bytes, "
            f"but there are {len(content)}"
        )
    if expected == offset:
        raise ValueError(f"{path}: holds no rows, its header says {' x '.join(map(str, shape))}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=offset).reshape(shape)


def find_idx_files(folder: Path) -> dict[str, Path]:
    """The four files of MNIST's naming in `folder`, plain or .gz, by name without .gz; absent ones left
    out.
    """
    names = [name for pair in IMAGES_AND_LABELS.values() for name in pair]
    candidates = {name: (folder / name, folder / f"{name}.gz") for name in names}
    return {
        name: next(path for path in paths if path.is_file())
        for name, paths in candidates.items()
        if any(path.is_file() for path in paths)
    }


def missing_idx_files(folder: Path) -> list[str]:
    """Names (without .gz) of those of the four files that `folder` does not hold."""
    found = find_idx_files(folder)
    return [name for pair in IMAGES_AND_LABELS.values() for name in pair if name not in found]


def read_idx_folder(folder: Path) -> tuple[Split, Split]:
    """Train and test split from the four files in `folder`, all of which must be there.

    Raises ValueError as `read_idx`, or when images and labels differ in number.
    """
    files = find_idx_files(folder)
    train, test = (_read_split(files[images], files[labels]) for images, labels in IMAGES_AND_LABELS.values())
    return train, test


def _read_split(image_path: Path, label_path: Path) -> Split:
    images = read_idx(image_path, 3).unsqueeze(1)  # [N, 1, H, W]
    labels = read_idx(label_path, 1).to(torch.int64)  # [N]
    if len(images) != len(labels):
        raise ValueError(f"{image_path} holds {len(images)} images, {label_path} {len(labels)} labels")
    return images, labels


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: truncated or damaged gzip file ({error})") from error
