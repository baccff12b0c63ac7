"""Training as scripts usually do it: images as PIL objects, torchvision's transforms in the worker processes of a
DataLoader, float32 in the usual memory layout, a loop of five lines. What symlab's speed is measured against.

Shapes: N rows, B rows of a batch, C channels, H x W pixels.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms

from symlab.data.dataset import Dataset
from symlab.rundir import BadInput
from symlab.training.factories import Loss

PADDING = 4
"""Pixels of the frame around an image before it is cropped; that of symlab's own augmentation."""


class PlainImages(TorchDataset[tuple[Tensor, int]]):
    """Row i: the image as PIL, cropped at random from a frame of `PADDING`, flipped with probability 1/2, as a tensor
    [C, H, W] in [0, 1], standardised per channel; and its label.

    Without the random part that is row i of `dataset`, rounded to 256 steps between the least and the largest value of
    its channel, from which the pixels are made.

    Raises BadInput unless the data are images of one or three channels with class labels.
    """

    def __init__(self, dataset: Dataset, *, augment: bool = True) -> None:
        inputs = dataset.train_inputs.detach().cpu().float()  # [N, C, H, W]
        if inputs.ndim != 4 or inputs.shape[1] not in (1, 3) or dataset.num_classes is None:
            raise BadInput(
                f"data {dataset.name}: rows of shape {list(inputs.shape[1:])} are no labelled images with one or three"
                " channels: choose such data, e.g. data=digits data.size=32 data.channels=3"
            )
        low, high = inputs.amin((0, 2, 3)), inputs.amax((0, 2, 3))  # [C]
        span = torch.where(high > low, high - low, torch.ones_like(high))
        scaled = inputs.sub(low[:, None, None]).mul_(255 / span[:, None, None]).round_()
        whole = scaled.to(torch.uint8).permute(0, 2, 3, 1)  # [N, H, W, C]
        self.pixels = (whole[..., 0] if len(low) == 1 else whole).contiguous().numpy()
        self.labels: list[int] = dataset.train_targets.tolist()
        size = (inputs.shape[2], inputs.shape[3])
        random = [transforms.RandomCrop(size, padding=PADDING), transforms.RandomHorizontalFlip()] if augment else []
        standard = transforms.Normalize((-low / span).tolist(), (1 / span).tolist())
        self.transform = transforms.Compose([*random, transforms.ToTensor(), standard])

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


@contextmanager
def plain_batches(
    dataset: Dataset, batch_size: int, seed: int, *, workers: int, device: torch.device
) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """Inputs [B, C, H, W] and targets [B] on `device`, without end, so that no epoch's start empties the queue of the
    `workers` processes (0: none), each of which keeps two batches ready. They end with the block.

    Raises BadInput as `PlainImages`.
    """
    images = PlainImages(dataset)
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        images,
        batch_size,
        sampler=RandomSampler(images, num_samples=2**40 // len(images) * len(images), generator=generator),
        num_workers=workers,
        drop_last=True,
        pin_memory=device.type == "cuda",
        generator=generator,
    )
    batches = _on(device, loader)
    try:
        yield batches
    finally:
        batches.close()  # drops the last reference to the loader's iterator: torch ends and joins the workers


def _on(device: torch.device, loader: Iterable[tuple[Tensor, Tensor]]) -> Generator[tuple[Tensor, Tensor], None, None]:
    for inputs, targets in loader:
        yield inputs.to(device), targets.to(device)


def plain_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, inputs: Tensor, targets: Tensor
) -> float:
    """One step, and the loss of the batch before it."""
    optimizer.zero_grad()
    value = loss(model(inputs), targets)
    value.backward()
    optimizer.step()
    return value.item()
