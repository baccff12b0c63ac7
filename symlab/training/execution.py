"""How loss and gradients of a training run are computed: precision, memory layout, pieces, processes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from symlab.rundir import BadInput
from symlab.training.factories import Loss
from symlab.training.loss_scale import LossScale
from symlab.training.processes import ALONE, Processes

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}

Evaluator = Callable[[nn.Module, Loss, Tensor, Tensor], tuple[Tensor, Tensor]]


def outputs_and_loss(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """f(X) [B, C] and L(f(X), Y) []."""
    outputs = model(inputs)
    return outputs, loss(outputs, targets)


@dataclass(frozen=True)
class Execution:
    """What `update` and `evaluate` do around model and loss, for training and test alike; the default is nothing.

    `autocast`: products and convolutions in this dtype, sums, norms and losses in float32 (torch.autocast); weights,
    gradients and the optimizer stay as they are. `scale`: the loss scale that float16 needs. `channels_last`: image
    batches [B, C, H, W] in memory as [B, H, W, C], which convolutions prefer.

    Of updates alone: the batch goes through the model in `accumulate` pieces, one after the other, in each of the
    `processes`; where the 2-norm of all gradients together is above `clip_norm`, they are scaled down to it.
    """

    autocast: torch.dtype | None = None
    scale: LossScale | None = None
    channels_last: bool = False
    accumulate: int = 1
    clip_norm: float | None = None
    processes: Processes = ALONE
    evaluator: Evaluator = outputs_and_loss

    def outputs_and_loss(self, model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """f(X) and L(f(X), Y) in the precision and memory layout asked for."""
        if self.channels_last and inputs.ndim == 4:
            inputs = inputs.to(memory_format=torch.channels_last)  # contiguous() leaves the strides of one channel
        with self._precision(inputs.device):
            return self.evaluator(model, loss, inputs, targets)

    def _precision(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)

    def pieces(self, inputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The batch in `accumulate` pieces whose rows differ by one at most; no piece is empty."""
        count = min(self.accumulate, len(inputs))
        return list(zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True))

    def lay_out(self, model: nn.Module) -> None:
        """The model's weights in the memory layout asked for, in place."""
        if self.channels_last:
            model.to(memory_format=torch.channels_last)


PLAIN = Execution()


def make_execution(
    precision: torch.dtype | None,
    channels_last: bool,
    compiled: bool,
    accumulate: int = 1,
    clip_norm: float | None = None,
    processes: Processes = ALONE,
) -> Execution:
    """The `Execution` of a run: float16 gets a loss scale, `compiled` an evaluator compiled by torch.

    Raises BadInput for a clip_norm that is not positive and finite.
    """
    if clip_norm is not None and not 0 < clip_norm < float("inf"):
        raise BadInput(f"clip_norm must be positive and finite, or null, got {clip_norm}")
    scale = LossScale() if precision == torch.float16 else None
    evaluator = compiled_evaluator() if compiled else outputs_and_loss
    return Execution(precision, scale, channels_last, accumulate, clip_norm, processes, evaluator)


def compiled_evaluator() -> Evaluator:
    """f(X) and L(f(X), Y) as one compiled function, once for every shape of batch: what it gives depends on the shape
    and not on the shapes that came before, so a resumed run computes what an uninterrupted one does."""
    torch.compiler.reset()  # what other runs of this process compiled counts against torch's limit of variants
    evaluator: Evaluator = torch.compile(outputs_and_loss, dynamic=False)
    return evaluator


def find_precision(amp: str | None, device: torch.device, dtype: torch.dtype) -> torch.dtype | None:
    """The dtype for autocast called `amp` (None, bf16 or fp16).

    Raises BadInput for another name, a dtype that autocast does not lower, and fp16 on the CPU.
    """
    if amp is None:
        return None
    if amp not in AUTOCAST:
        raise BadInput(f"amp must be bf16, fp16 or null, got {amp!r}")
    if dtype != torch.float32:
        raise BadInput(f"amp={amp} lowers float32 to {amp}; use dtype=float32, got {dtype}")
    if amp == "fp16" and device.type == "cpu":
        raise BadInput("amp=fp16 needs a CUDA device: the CPU computes it many times slower; use amp=bf16")
    return AUTOCAST[amp]
