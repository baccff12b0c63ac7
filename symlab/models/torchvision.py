"""Any classification net of torchvision, untrained."""

from __future__ import annotations

import difflib

import torch
from torch import nn
from torchvision import models as architectures

SHOWN = 4  # near names in an error message
WITHOUT_AUXILIARY = {"googlenet", "inception_v3"}  # nets that would return further outputs in training


def torchvision(
    input_shape: tuple[int, ...], output_size: int, generator: torch.Generator, *, name: str = "resnet18"
) -> nn.Module:
    """The net `torchvision.models.<name>` with `output_size` classes, its own random initial weights, float32, CPU.

    Images [3, H, W]: the nets are made for colour images (data=digits data.channels=3 repeats a grey channel). Vision
    transformers are built for the size of the images, which must be square and a multiple of their patch. All random
    numbers come from `generator`; the global one is left as it was. GoogLeNet and Inception lack their auxiliary
    outputs.

    Raises ValueError for a name that torchvision does not have, and for images that the net cannot take.
    """
    names = architectures.list_models(module=architectures)
    if name not in names:
        near = difflib.get_close_matches(str(name), names, SHOWN, cutoff=0.4) or names[:SHOWN]
        raise ValueError(
            f"name must be one of torchvision's {len(names)} classification nets, such as"
            f" {', '.join(near)}; got {name!r}"
        )
    if len(input_shape) != 3 or input_shape[0] != 3:
        raise ValueError(
            f"torchvision's nets take colour images, input_shape [3, H, W], got {list(input_shape)}: choose such data,"
            " or repeat the grey channel with data.channels=3"
        )
    options: dict[str, int | bool] = {"num_classes": output_size}
    if name.startswith("vit_"):
        options["image_size"] = input_shape[1]
    if name in WITHOUT_AUXILIARY:
        options |= {"aux_logits": False, "init_weights": True}
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            return architectures.get_model(name, weights=None, **options)
        except AssertionError as error:  # how torchvision says that patches do not fit the image
            raise ValueError(f"{name} does not fit images of {list(input_shape)}: {error}") from error
