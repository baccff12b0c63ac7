"""How the forward pass of a training run is computed: precision and memory layout."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from symlab.rundir import BadInput
from symlab.training.loss_scale import LossScale

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Execution:
    """What `update` and `evaluate` do around model and loss, for training and test alike; the default is nothing.

    `autocast`: products and convolutions in this dtype, sums, norms and losses in float32 (torch.autocast); weights,
    gradients and the optimizer stay as they are. `scale`: the loss scale that float16 needs. `channels_last`: image
    batches [B, C, H, W] in memory as [B, H, W, C], which convolutions prefer.
    """

    autocast: torch.dtype | None = None
    scale: LossScale | None = None
    channels_last: bool = False

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        """The context in which model and loss are evaluated."""
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)

    def arranged(self, inputs: Tensor) -> Tensor:
        """The batch in the memory layout asked for."""
        if self.channels_last and inputs.ndim == 4:
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs


PLAIN = Execution()


def find_execution(
    amp: str | None, channels_last: bool, model: nn.Module, device: torch.device, dtype: torch.dtype
) -> Execution:
    """The execution called `amp` (None, bf16 or fp16); with `channels_last` the model's weights are rearranged too.

    Raises BadInput for another name, a dtype that autocast does not lower, and fp16 on the CPU.
    """
    if amp is not None and amp not in AUTOCAST:
        raise BadInput(f"amp must be bf16, fp16 or null, got {amp!r}")
    if amp is not None and dtype != torch.float32:
        raise BadInput(f"amp={amp} lowers float32 to {amp}; use dtype=float32, got {dtype}")
    if amp == "fp16" and device.type == "cpu":
        raise BadInput("amp=fp16 needs a CUDA device: the CPU computes it many times slower; use amp=bf16")
    if channels_last:
        model.to(memory_format=torch.channels_last)
    scale = LossScale() if amp == "fp16" else None
    return Execution(None if amp is None else AUTOCAST[amp], scale, channels_last)
