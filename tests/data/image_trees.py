"""Writes small ImageNet trees, with sound and with damaged files."""

from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, height: int = 40, width: int = 52) -> Image.Image:
    """Smooth random colours, so that JPEG and resizing keep them apart."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def write_tree(root: Path, train: dict[str, int], val: dict[str, int]) -> Path:
    """`train` and `val`: class -> number of JPEG images, all different and of different sizes."""
    seed = 0
    for split, classes in (("train", train), ("val", val)):
        for name, count in classes.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                seed += 1
                image = picture(seed, height=30 + seed % 17, width=30 + seed % 23)
                image.save(folder / f"{name}_{number}.JPEG", quality=95)
    return root


def damage(folder: Path, kind: str) -> Path:
    """One file that is no image (any more), in `folder`."""
    path = folder / f"{kind}.JPEG"
    picture(99).save(path)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "truncated": whole[:-100],
            "half": whole[: len(whole) // 2],
            "empty": b"",
            "text": b"not an image",
            "header": whole[:3],
        }[kind]
    )
    return path
