"""Made-up images in ImageNet's folder tree, for tests and dry runs.

N images, K classes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from symlab.data.image_files import data_root
from symlab.data.imagenet import image_tree_dataset
from symlab.data.ranges import whole_number
from symlab.data.streamed import StreamedDataset
from symlab.data.synthetic_images import balanced_labels, complete_folder, striped_images


def imagenet_synthetic(
    *,
    root: Path | str = "data/synthetic",
    rows: int = 512,
    test_rows: int = 64,
    classes: int = 8,
    pixels: int = 64,
    size: int = 224,
    resize: int = 256,
    workers: int = 2,
    seed: int = 0,
    num_train: int | None = None,
    num_test: int | None = None,
    augment: bool = True,
) -> StreamedDataset:
    """JPEG images of K classes (see `symlab.data.synthetic_images.striped_images`), read like `symlab.data.imagenet`.

    `<root>/imagenet_synthetic-<mark>` gets the files unless it is there: `rows` and `test_rows` images whose sides are
    `pixels` to 1.5 `pixels` long; real data are never touched. The other keys are those of imagenet.

    Raises ValueError for numbers out of range and fewer images than classes, OSError where nothing can be written.
    """
    whole_number("classes", classes, least=1)
    keys = {
        "rows": whole_number("rows", rows, least=classes),
        "test_rows": whole_number("test_rows", test_rows, least=classes),
        "classes": classes,
        "pixels": whole_number("pixels", pixels, least=8),
    }

    def write(folder: Path) -> None:
        _write_split(folder / "train", rows, classes, pixels, "n{label:08d}_{row}", seed=0)
        _write_split(folder / "val", test_rows, classes, pixels, "ILSVRC2012_val_{row:08d}", seed=1)

    folder = complete_folder(data_root(root), "imagenet_synthetic", keys, write)
    return image_tree_dataset(
        "imagenet_synthetic",
        folder,
        size=size,
        resize=resize,
        workers=workers,
        seed=seed,
        num_train=num_train,
        num_test=num_test,
        augment=augment,
    )


def _write_split(folder: Path, rows: int, classes: int, pixels: int, name: str, *, seed: int) -> None:
    """One JPEG file per image, in folders named like ImageNet's."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    for row, label in enumerate(balanced_labels(rows, classes, rng).tolist()):
        height, width = rng.integers(pixels, pixels * 3 // 2, 2, endpoint=True).tolist()
        image = striped_images(np.array([label]), classes, height, width, rng)[0]  # [H, W, 3]
        place = folder / f"n{label:08d}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{name.format(label=label, row=row)}.JPEG", quality=90)
