"""Mini-batches from tensors in memory; the order is a pure function of (seed, epoch).

N training rows, B rows of a batch.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from symlab.rundir import BadInput


@dataclass
class Batches:
    """The batch of update number t: part k of the order of epoch e, where (e, k) = divmod(t, steps per epoch).

    `inputs` [N, ...] and `targets` [N, ...] stay where they are; a batch is a gather on their device. The order of
    epoch e is `torch.randperm` from a generator seeded with a mix of `seed` and e, so any step can be repeated without
    a sampler's state. With `batch_size=None` each batch is the whole set in its own order.

    The last batch of an epoch is short and is kept, or with `drop_last` left out. A last batch of one row would train
    batch norm on the statistics of a single sample: that row joins the batch before it (B + 1 rows), for every model
    and optimizer alike; with `drop_last` it is left out; with `batch_size=1` nothing changes.

    Raises BadInput for a `batch_size` below 1 or above N.
    """

    inputs: Tensor
    targets: Tensor
    batch_size: int | None
    seed: int
    drop_last: bool = False
    _epoch: int = field(default=-1, init=False, repr=False)
    _order: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64), init=False, repr=False)

    def __post_init__(self) -> None:
        rows = len(self.inputs)
        if self.batch_size is not None and not 1 <= self.batch_size <= rows:
            raise BadInput(
                f"batch_size={self.batch_size} does not fit the {rows} training rows: use 1 to {rows},"
                " or null for the full batch"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch, at least 1."""
        if self.batch_size is None:
            return 1
        full, rest = divmod(len(self.inputs), self.batch_size)
        short_batch = rest > 0 and not self.drop_last and not self._joins(rest)
        return full + short_batch

    def _joins(self, rest: int) -> bool:
        return rest == 1 and not self.drop_last

    def rows_at(self, step: int) -> Tensor:
        """Row numbers [B] of the batch of update number `step`, on the CPU; for the full batch 0..N-1."""
        rows = len(self.inputs)
        if self.batch_size is None:
            return torch.arange(rows)
        epoch, part = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mix(self.seed, epoch))
            self._order = torch.randperm(rows, generator=generator)  # [N]
            self._epoch = epoch
        first = part * self.batch_size
        last_of_epoch = part == self.steps_per_epoch - 1
        end = rows if last_of_epoch and not self.drop_last else first + self.batch_size
        return self._order[first:end]

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the batch of update number `step`."""
        if self.batch_size is None:
            return self.inputs, self.targets
        chosen = self.rows_at(step).to(self.inputs.device)  # [B]
        return self.inputs[chosen], self.targets[chosen]


def mix(seed: int, stream: int) -> int:
    """A 63-bit seed from two integers: two rounds of splitmix64 (Steele, Lea and Flood, 2014).

    Neighbouring seeds and neighbouring streams give unrelated numbers, and (a, b) is not (b, a).
    """
    return _splitmix(_splitmix(seed) + stream) >> 1


def _splitmix(value: int) -> int:
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)
