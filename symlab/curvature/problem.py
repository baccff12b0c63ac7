"""The function whose curvature is meant: the mean loss over all rows of a data set, as a function of the weights.

Legend: n  rows of the data set;  C  outputs;  B  rows of one batch;  P  number of trainable weights.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, replace_all_batch_norm_modules_

from symlab.curvature.linear_layers import LinearLayer, linear_layers
from symlab.curvature.mean_loss import Loss, check_loss, differentiable
from symlab.curvature.replay import Replays


@dataclass(frozen=True, eq=False)
class Problem:
    """L(theta) = (1/n) sum_r loss(f(x_r; theta), y_r), for weights theta that are given from outside; see `of`."""

    model: nn.Module  # a copy of the template, whose own weights are never used
    inputs: Tensor  # [n, ...]
    targets: Tensor  # [n, C] floating, or [n] integer
    loss: Loss
    training: bool
    row_batch: int | None
    seed: int
    shapes: Mapping[str, tuple[int, ...]]  # trainable parameters, in the order of named_parameters
    num_outputs: int  # C
    coupled: bool  # whether a row's outputs depend on the other rows (batch norm with the batch's statistics)
    layers: tuple[LinearLayer, ...] | None  # where all weights belong to linear layers
    replays: Replays = field(default_factory=Replays, repr=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        loss: Loss,
        *,
        training: bool = False,
        row_batch: int | None = None,
        seed: int = 0,
    ) -> "Problem":
        """The problem of a model (a template: only its form, buffers and frozen parameters matter) on all rows.

        The template is copied and left exactly as it is: weights, `.grad`, buffers, flags, hooks. Parameters that do
        not require a gradient are constants, with the template's values, and are no part of any matrix.

        Args:
            inputs, targets: [n, ...] and [n, ...], of one device; all rows count the same. The copy is moved to their
                device and, for floating inputs, cast to their precision: float64 for exact matrices.
            loss: the mean over rows of a function of one row.
            training: False: eval mode, that is batch norm with its running statistics and no dropout. True: training
                mode, that is batch norm with the statistics of all n rows (the running ones are neither used nor
                changed) and dropout on, its masks drawn from `seed` anew for every call, another one per model.
            row_batch: rows that are in memory at once; no result depends on it. None: all.

        Raises:
            ValueError: no row, no trainable parameter, outputs that are not [n, C], a loss that is not a mean over
                rows, a row_batch below 1, or one together with rows that depend on each other.
        """
        if len(inputs) == 0 or len(inputs) != len(targets):
            raise ValueError(
                f"inputs and targets must have equally many rows, at least 1, got {len(inputs)} and {len(targets)}"
            )
        if row_batch is not None and not row_batch >= 1:
            raise ValueError(f"row_batch must be at least 1, got {row_batch}")
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
        if not shapes:
            raise ValueError("the model has no trainable parameter: it has no curvature")
        own = copy.deepcopy(model).train(training)
        own.to(inputs.device, inputs.dtype if inputs.is_floating_point() else None)
        for parameter in own.parameters():
            parameter.grad = None
        if training:
            replace_all_batch_norm_modules_(own)
        own.requires_grad_(False)
        num_outputs, mixing = _try_out(own, inputs, seed)
        coupled = training or mixing
        if coupled and row_batch is not None:
            cause = "training=True" if training else "rows depend on each other (batch norm without running statistics)"
            raise ValueError(f"row_batch={row_batch} would change the result, for {cause}: row_batch must be None")
        loss = differentiable(loss)
        check_loss(loss, targets, num_outputs)
        trainable = {name: p for name, p in own.named_parameters() if name in shapes}
        layers = None if coupled else linear_layers(own, trainable, inputs[:2])
        inputs, targets = _rows_last(inputs), _rows_last(targets)
        return cls(own, inputs, targets, loss, training, row_batch, seed, shapes, num_outputs, coupled, layers)

    @property
    def names(self) -> tuple[str, ...]:
        """Trainable parameters, in the order of named_parameters, which is that of every matrix."""
        return tuple(self.shapes)

    @property
    def num_parameters(self) -> int:
        """P."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Number of weights of each parameter."""
        return [torch.Size(shape).numel() for shape in self.shapes.values()]

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the parameters."""
        return next(p.dtype for name, p in self.model.named_parameters() if name in self.shapes)

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.inputs)

    @property
    def num_batches(self) -> int:
        """Of `row_batch` rows."""
        return -(-self.num_rows // (self.row_batch or self.num_rows))

    def batches(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Inputs and targets of at most `row_batch` rows, in order, and their share B / n of all rows."""
        n = self.num_rows
        size = self.row_batch or n
        for start in range(0, n, size):
            inputs = self.inputs[start : start + size]
            yield inputs, self.targets[start : start + size], len(inputs) / n

    def outputs(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """f(inputs; parameters) [B, C], of one model."""
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        return functional_call(self.model, (dict(parameters), buffers), (inputs,))

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """One vector [P] from the parameters [*shape] of one model; [..., P] from [..., *shape]."""
        first = self.names[0]
        lead = parameters[first].ndim - len(self.shapes[first])
        return torch.cat([parameters[name].flatten(lead) if self.shapes[name] else parameters[name].unsqueeze(-1)
                          for name in self.shapes], dim=-1)  # fmt: skip

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """The inverse of `flatten`."""
        lead = vector.shape[:-1]
        parts = vector.split(self.sizes, dim=-1)
        return {name: part.reshape((*lead, *self.shapes[name])) for name, part in zip(self.shapes, parts, strict=True)}

    def randomness(self) -> str:
        """What torch.func.vmap is to do about random operations."""
        return "different" if self.training else "error"


def _rows_last(x: Tensor) -> Tensor:
    """The same [n, d] with the rows of the data last in memory, which is how batches of models are computed."""
    return x.mT.contiguous().mT if x.ndim == 2 else x


@contextmanager
def seeded(problem: Problem) -> Iterator[None]:
    """Torch's global random state set to the problem's seed, and back to what it was afterwards."""
    device = problem.inputs.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.random.default_generator.manual_seed(problem.seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(problem.seed)
        yield


@torch.no_grad()
def _try_out(model: nn.Module, inputs: Tensor, seed: int) -> tuple[int, bool]:
    """C, and whether the first row's outputs change with the rows beside it (in eval mode)."""
    devices = [inputs.device] if inputs.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.random.default_generator.manual_seed(seed)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        outputs = functional_call(model, buffers, (inputs[:3],))
        rows = len(inputs[:3])
        if outputs.ndim != 2 or len(outputs) != rows:
            raise ValueError(f"the model's outputs for {rows} rows must be [{rows}, C], got {list(outputs.shape)}")
        if model.training:
            return outputs.shape[1], True
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        alone = functional_call(model, buffers, (torch.cat([inputs[:1], inputs[:1]]),))
    scale = float(outputs.abs().max()) + torch.finfo(outputs.dtype).tiny
    mixing = float((outputs[0] - alone[0]).abs().max()) > 1e3 * torch.finfo(outputs.dtype).eps * scale
    return outputs.shape[1], mixing
