"""The order of rows in training, and which of them one process of several takes: pure functions of (seed, step).

N training rows, B rows of a batch, R processes.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from symlab.rundir import BadInput

AUGMENTATION_STREAM = 0x6175676D
"""Apart from the epochs, whose numbers are the streams of the orders."""


@dataclass(frozen=True)
class Share:
    """Rows r, r + R, r + 2R, ... of each global batch: what process number r of R takes.

    The global batches do not depend on R. Raises ValueError unless 0 <= rank < world.
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank must be at least 0 and below world={self.world}, got {self.rank}")

    def of(self, rows: Tensor) -> Tensor:
        """This process's part [ceil((N - r) / R), ...] of `rows` [N, ...], a view."""
        return rows[self.rank :: self.world]

    def count(self, rows: int) -> int:
        """Number of rows that this process has of `rows`."""
        return len(range(self.rank, rows, self.world))


WHOLE = Share()
"""Of a single process."""


class BatchSource(Protocol):
    """Where a training loop gets its batches from; `order` and `share` say which rows they hold."""

    @property
    def order(self) -> "Order": ...

    @property
    def share(self) -> Share: ...

    @property
    def steps_per_epoch(self) -> int: ...

    @property
    def ahead(self) -> int:
        """How many batches may be loaded before they are asked for."""
        ...

    def rows_in(self, step: int) -> int:
        """Rows of the global batch of update number `step`."""
        ...

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this process's share of that batch."""
        ...


@dataclass
class Order:
    """Rows of the batch of update number t: part k of the order of epoch e, (e, k) = divmod(t, steps per epoch).

    The order of epoch e is `torch.randperm` from a generator seeded with a mix of `seed` and e, so any step can be
    repeated without a sampler's state. With `batch_size=None` each batch is the whole set in its own order.

    The last batch of an epoch is short and is kept, or with `drop_last` left out. A last batch of one row would train
    batch norm on the statistics of a single sample: that row joins the batch before it (B + 1 rows), for every model
    and optimizer alike; with `drop_last` it is left out; with `batch_size=1` nothing changes.

    Raises BadInput for a `batch_size` below 1 or above N.
    """

    rows: int
    batch_size: int | None
    seed: int
    drop_last: bool = False
    _epoch: int = field(default=-1, init=False, repr=False)
    _permutation: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_size is not None and not 1 <= self.batch_size <= self.rows:
            raise BadInput(
                f"batch_size={self.batch_size} does not fit the {self.rows} training rows: use 1 to {self.rows},"
                " or null for the full batch"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch, at least 1."""
        if self.batch_size is None:
            return 1
        full, rest = divmod(self.rows, self.batch_size)
        short_batch = rest > 0 and not self.drop_last and rest != 1
        return full + short_batch

    @property
    def least_rows(self) -> int:
        """Rows of the smallest batch of an epoch."""
        return min(self.rows_in(0), self.rows_in(self.steps_per_epoch - 1))

    def rows_in(self, step: int) -> int:
        """Number of rows of the batch of update number `step`."""
        first, end = self._bounds(step)
        return end - first

    def rows_at(self, step: int) -> Tensor:
        """Row numbers [B] of the batch of update number `step`, on the CPU; for the full batch 0..N-1."""
        if self.batch_size is None:
            return torch.arange(self.rows)
        epoch = step // self.steps_per_epoch
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mix(self.seed, epoch))
            self._permutation = torch.randperm(self.rows, generator=generator)  # [N]
            self._epoch = epoch
        first, end = self._bounds(step)
        return self._permutation[first:end]

    def augmentation_seed(self, step: int) -> int:
        """What the augmentation of the batch of update number `step` draws from."""
        return mix(mix(self.seed, AUGMENTATION_STREAM), step)

    def check_share(self, share: Share) -> None:
        """Raises BadInput when a process would have no row of some batch."""
        if self.least_rows < share.world:
            raise BadInput(
                f"batch_size={self.batch_size}: the smallest batch of an epoch has {self.least_rows} of the"
                f" {self.rows} training rows, too few for {share.world} processes: use a batch_size that leaves no"
                " such rest, drop_last=true, or fewer processes"
            )

    def _bounds(self, step: int) -> tuple[int, int]:
        """First position in the epoch's order, and the one after the last."""
        if self.batch_size is None:
            return 0, self.rows
        part = step % self.steps_per_epoch
        first = part * self.batch_size
        last_of_epoch = part == self.steps_per_epoch - 1
        return first, self.rows if last_of_epoch and not self.drop_last else first + self.batch_size


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
