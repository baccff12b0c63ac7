"""Mini-batches from images on disk, loaded ahead by other processes; exact to resume at any step.

N training rows, B rows of a batch, R processes.
"""

import itertools
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from symlab.data.streamed import BadImageError, StreamedDataset, StreamedSplit
from symlab.rundir import BadInput
from symlab.training.order import WHOLE, Order, Share, mix
from symlab.training.signals import STOPPING

Key = tuple[int, int | None]
"""Row number, and what the random part of loading it is drawn from (None: nothing random)."""

StartMethod = Literal["fork", "forkserver", "spawn"]

AHEAD = 2
"""Batches that each worker may load before they are asked for."""


@dataclass
class StreamedBatches:
    """This process's share of the batch of update number t, in the order that `symlab.training.order.Order` gives.

    What is random in loading row i for update t is drawn from a mix of (seed, t, i): a pure function, so neither the
    number of workers nor that of processes nor a restart changes a batch. `dataset.workers` processes load ahead, from
    the first call of `at` until `close` (or the end of a `with` block); they outlive the epochs, ignore the signals
    that stop a run, and end when this process does. `start_method` None is Python's own choice on this platform.

    Raises BadInput without a `batch_size`, for one below 1 or above N, and for one too small for the number of
    processes; BadImageError from `at`, with the path, for a file that cannot be read.
    """

    dataset: StreamedDataset
    batch_size: int | None
    seed: int
    drop_last: bool = False
    share: Share = WHOLE
    start_method: StartMethod | None = None
    order: Order = field(init=False, repr=False)
    _batches: Iterator["_Batch"] | None = field(default=None, init=False, repr=False)
    _next: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_size is None:
            raise BadInput(
                f"batch_size=null (the full batch) needs rows in memory, and data {self.dataset.name} is read from"
                f" disk as it is needed: give a batch_size of 1 to {self.dataset.num_train}"
            )
        self.order = Order(self.dataset.num_train, self.batch_size, self.seed, self.drop_last)
        self.order.check_share(self.share)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch, at least 1."""
        return self.order.steps_per_epoch

    @property
    def ahead(self) -> int:
        """How many batches the workers may load before they are asked for."""
        return AHEAD * self.dataset.workers

    def rows_in(self, step: int) -> int:
        """Number of rows of the global batch of update number `step`."""
        return self.order.rows_in(step)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this process's rows of the batch of update number `step`; fast in order of steps, while
        any other step starts the loading anew."""
        if self._batches is None or step != self._next:
            self.close()
            keys = _TrainingKeys(self.order, self.share, step)
            self._batches = iter(_loader(self.dataset, self.dataset.train, keys, self.start_method))
            self._next = step
        batch = next(self._batches)
        self._next += 1
        return _finished(self.dataset, batch)

    def close(self) -> None:
        """End the workers; a later `at` starts them again."""
        self._batches = None  # the last reference: torch ends and joins them

    def __enter__(self) -> "StreamedBatches":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def evaluation_batches(
    dataset: StreamedDataset,
    split: StreamedSplit,
    batch_size: int,
    *,
    share: Share = WHOLE,
    rows: int | None = None,
    start_method: StartMethod | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The first `rows` rows (None: all) of `split`, those of `share` alone, as evaluation sees them, in order: pairs of
    at most `batch_size` rows. Without padding: over all shares every row comes once.

    Raises BadImageError, with the path, for a file that cannot be read.
    """
    count = len(split) if rows is None else min(rows, len(split))
    own = range(share.rank, count, share.world)
    parts = [own[first : first + batch_size] for first in range(0, len(own), batch_size)]
    keys: list[list[Key]] = [[(index, None) for index in part] for part in parts]
    for batch in _loader(dataset, split, keys, start_method, at_most=len(keys)):
        yield _finished(dataset, batch)


@dataclass(frozen=True)
class _TrainingKeys:
    """The keys of batch after batch from number `first` on, without end, so that no epoch's end empties the queue."""

    order: Order
    share: Share
    first: int

    def __iter__(self) -> Iterator[list[Key]]:
        for step in itertools.count(self.first):
            seed = self.order.augmentation_seed(step)
            yield [(row, mix(seed, row)) for row in self.share.of(self.order.rows_at(step)).tolist()]


_Item = tuple[Tensor, Tensor] | str
"""Image [C, H, W] and label [], or what is wrong with the file: an exception would arrive wrapped in a traceback."""

_Batch = tuple[Tensor, Tensor] | str


@dataclass(frozen=True)
class _Images(Dataset[_Item]):
    split: StreamedSplit

    def __getitem__(self, key: Key) -> _Item:
        index, seed = key
        try:
            return self.split.load(index, seed), self.split.labels[index]
        except BadImageError as error:
            return str(error)


def _collate(items: list[_Item]) -> _Batch:
    for item in items:
        if isinstance(item, str):
            return item
    images, labels = zip(*items, strict=True)
    return torch.stack(images), torch.stack(labels)  # [B, C, H, W], [B]


def _loader(
    dataset: StreamedDataset,
    split: StreamedSplit,
    keys: Iterable[list[Key]],
    start_method: StartMethod | None,
    at_most: int | None = None,
) -> Iterable[_Batch]:
    workers = dataset.workers if at_most is None else min(dataset.workers, at_most)
    return DataLoader(
        _Images(split),
        batch_sampler=keys,  # rows with their seeds are the indices
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        collate_fn=_collate,
        pin_memory=dataset.device.type == "cuda",
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # the global one must not depend on when the workers started
        multiprocessing_context=start_method if workers else None,
    )


def _start_worker(number: int) -> None:
    """A signal to the whole process group is for the main process, which ends the workers when it is done."""
    for signal_number in STOPPING:
        signal.signal(signal_number, signal.SIG_IGN)


def _finished(dataset: StreamedDataset, batch: _Batch) -> tuple[Tensor, Tensor]:
    if isinstance(batch, str):
        raise BadImageError(batch)
    images, labels = (tensor.to(dataset.device, non_blocking=True) for tensor in batch)
    return dataset.finish(images, dataset.dtype), labels
