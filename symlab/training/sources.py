"""The batches of either kind of data set: rows in memory, or images read from disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import Tensor

from symlab.data.dataset import Dataset
from symlab.data.streamed import AnyDataset
from symlab.rundir import BadInput
from symlab.training.batches import Batches
from symlab.training.evaluate import pairs
from symlab.training.order import WHOLE, BatchSource, Share
from symlab.training.streamed_batches import StreamedBatches, evaluation_batches


@contextmanager
def training_batches(
    dataset: AnyDataset, batch_size: int | None, seed: int, *, drop_last: bool = False, share: Share = WHOLE
) -> Iterator[BatchSource]:
    """The training rows, augmented, in `Batches` or `StreamedBatches`; processes that load images end with the block.

    Raises BadInput as they do.
    """
    if isinstance(dataset, Dataset):
        rows = dataset.train_inputs, dataset.train_targets
        yield Batches(*rows, batch_size, seed, drop_last, share, dataset.augmentation)
    else:
        with StreamedBatches(dataset, batch_size, seed, drop_last, share) as batches:
            yield batches


def dataset_batches(
    dataset: AnyDataset,
    split: Literal["train", "test"],
    batch_size: int,
    *,
    share: Share = WHOLE,
    rows: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The first `rows` rows (None: all) of a split without augmentation, in order, as (inputs, targets) of at most
    `batch_size` rows each; of several processes each has the rows of its `share`.

    Nothing is padded: over all shares every row comes exactly once (and a share may be empty).
    """
    if not isinstance(dataset, Dataset):
        chosen = dataset.train if split == "train" else dataset.test
        return evaluation_batches(dataset, chosen, batch_size, share=share, rows=rows)
    inputs, targets = dataset.train_inputs, dataset.train_targets
    if split == "test":
        inputs, targets = dataset.test_inputs, dataset.test_targets
    return pairs(share.of(inputs[:rows]), share.of(targets[:rows]), batch_size)


def in_memory(dataset: AnyDataset) -> Dataset:
    """`dataset`, for a job that needs all rows at once.

    Raises BadInput for a data set that is read from disk as it is needed.
    """
    if not isinstance(dataset, Dataset):
        raise BadInput(
            f"data={dataset.name}: this job needs all rows in memory, and these images are read from disk as they are"
            " needed: choose a data set that is kept in memory, e.g. data=cifar10 or data=digits"
        )
    return dataset
