"""Made-up images whose class can be learned, and a folder for them that is either complete or not there.

N images, H x W pixels, K classes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

HUES = 10
NOISE = 25.0  # standard deviation, of 255
VERSION = 1
"""Part of a folder's name: to be raised when the images change."""


def balanced_labels(rows: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Labels [N] 0..K-1, each class as often as the others (to one), in random order."""
    return rng.permutation(np.arange(rows) % classes)


def striped_images(
    labels: np.ndarray, classes: int, height: int, width: int, rng: np.random.Generator
) -> np.ndarray:  # [N, H, W, 3]
    """128 + 55 c_h (1 + cos(2 pi (s u / H + phi))) + noise, rounded and clipped to 0..255, as uint8 [N, H, W, 3].

    Class k has hue h = k mod 10 (its colour c_h, entries in [-1, 1]) and s = 1 + floor(k / 10) stripes across the H
    lines u; phi and the brightness are random for each image, the noise for each pixel. So mirror images and crops keep
    the class, and of up to ten classes the mean colour alone tells it.
    """
    hues = (labels % HUES) / min(classes, HUES)  # [N]
    colours = np.cos(2 * np.pi * (hues[:, None] + np.array([0, 1, 2]) / 3))  # [N, 3]
    stripes, phases = 1 + labels // HUES, rng.random(len(labels))  # [N], [N]
    waves = np.cos(2 * np.pi * (stripes[:, None] * np.arange(height) / height + phases[:, None]))  # [N, H]
    images = 55 * colours[:, None, None, :] * (1 + waves[:, :, None, None])  # [N, H, 1, 3]
    images = images + rng.normal(128, 8, (len(labels), 1, 1, 1))
    images = images + NOISE * rng.standard_normal((len(labels), height, width, 3), dtype=np.float32)
    return np.clip(np.rint(images), 0, 255).astype(np.uint8)


def complete_folder(root: Path, name: str, keys: Mapping[str, int], write: Callable[[Path], None]) -> Path:
    """`<root>/<name>-<mark of keys>` with what `write` puts into a folder.

    A folder that is there is used as it is; else the files are written beside it and moved there in one step, so that
    processes which start together all find a complete one, and nothing is ever written over.

    Raises OSError, naming the key, where nothing can be written.
    """
    mark = hashlib.sha256(json.dumps([VERSION, name, dict(keys)]).encode()).hexdigest()[:10]
    folder = root / f"{name}-{mark}"
    if folder.is_dir():
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=root))
        try:
            write(draft)
            draft.chmod(root.stat().st_mode & 0o777)  # mkdtemp's is for its owner alone
            _move(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise OSError(
            f"data.root={root}: the synthetic images cannot be written there: {error}; set data.root to a folder that"
            " can be written"
        ) from error
    return folder


def _move(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster, and its files are the same
            raise
