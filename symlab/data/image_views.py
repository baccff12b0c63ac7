"""One image file as training and as evaluation see it: cropped and resized to S x S pixels, as uint8.

C channels (always 3), S x S pixels.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from dataclasses import dataclass

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torchvision.transforms import functional

from symlab.data.image_tree import Listing
from symlab.data.streamed import BadImageError

AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
TRIES = 10
DAMAGED = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What Pillow raises for files that it cannot decode."""


@dataclass(frozen=True)
class ImageViews:
    """`load` of a split (see `symlab.data.streamed.StreamedSplit`): uint8 [3, size, size].

    With a seed: a crop of 8 to 100 % of the area and an aspect ratio of 3/4 to 4/3 (Szegedy et al., 2015), resized to
    `size`, then flipped with probability 1/2: what torchvision's RandomResizedCrop(size) and RandomHorizontalFlip()
    draw after torch.manual_seed(seed). Without: the shorter side resized to `resize`, then the middle.

    Grey, CMYK, palette and transparent images become RGB; an orientation that EXIF asks for is left alone, as
    torchvision leaves it.
    """

    files: Listing
    size: int
    resize: int
    augment: bool

    def __call__(self, index: int, seed: int | None) -> Tensor:
        """Raises BadImageError, with the path, for a file that cannot be read."""
        image = read_image(self.files.path(index))
        if seed is None or not self.augment:
            image = functional.center_crop(functional.resize(image, self.resize), [self.size, self.size])
        else:
            generator = torch.Generator().manual_seed(seed)
            box = random_box(image.height, image.width, generator)
            image = functional.resized_crop(image, *box, size=[self.size, self.size])
            if torch.rand(1, generator=generator).item() < 0.5:
                image = functional.hflip(image)
        return functional.pil_to_tensor(image)


def read_image(path: str) -> Image.Image:
    """The RGB image in the file. Raises BadImageError, with the path, when it cannot be read to its end."""
    try:
        with open(path, "rb") as file:
            return Image.open(file).convert("RGB")
    except DAMAGED as error:
        raise BadImageError(f"{path}: not readable as an image: {_reason(path, error)}") from error


def random_box(height: int, width: int, generator: torch.Generator) -> tuple[int, int, int, int]:
    """Top, left, height and width of a crop: area a H W, a uniform in [0.08, 1], aspect ratio r log-uniform in
    [3/4, 4/3], place uniform; the first of ten draws that fits, else the largest middle part of a ratio in that range.
    """
    low, high = torch.tensor(RATIO).log().tolist()
    for _ in range(TRIES):
        area = height * width * torch.empty(1).uniform_(*AREA, generator=generator).item()
        ratio = torch.empty(1).uniform_(low, high, generator=generator).exp().item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, (1,), generator=generator))
            left = int(torch.randint(0, width - w + 1, (1,), generator=generator))
            return top, left, h, w
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, h, w


def _reason(path: str, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"no image format that Pillow knows ({os.path.getsize(path)} bytes)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
