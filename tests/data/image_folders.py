"""Writes small image sets in the very formats that torchvision lays down."""

import gzip
import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np

IDX_NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def random_images(rows: int, shape: tuple[int, ...], classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images [rows, *shape] and labels [rows], every class from 0 on in turn."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, *shape), dtype=np.uint8), np.arange(rows) % classes


def idx_bytes(array: np.ndarray) -> bytes:
    """IDX file of unsigned bytes: 0, 0, type 8, number of axes, sizes in big-endian order, data."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_idx_folder(folder: Path, rows: dict[str, int], *, zipped: bool = False) -> dict[str, tuple]:
    """The four files in `folder`; returns split -> (images, labels)."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {}
    for seed, (split, count) in enumerate(rows.items()):
        content[split] = random_images(count, (28, 28), 10, seed)
        for name, array in zip(IDX_NAMES[split], content[split], strict=True):
            data = idx_bytes(array)
            path = folder / (f"{name}.gz" if zipped else name)
            path.write_bytes(gzip.compress(data) if zipped else data)
    return content


def write_cifar(root: Path, base: str, files: dict[str, int], classes: int, label_key: str) -> dict[str, tuple]:
    """Pickled batches with data [N, 3072] and a list of labels; returns file -> (images [N, 3, 32, 32], labels)."""
    folder = root / base
    folder.mkdir(parents=True)
    content = {}
    for seed, (name, rows) in enumerate(files.items()):
        images, labels = random_images(rows, (3, 32, 32), classes, seed)
        content[name] = (images, labels)
        batch = {"data": images.reshape(rows, 3072), label_key: labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return content


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
