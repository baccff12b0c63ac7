"""Mini-batches from tensors in memory; order and augmentation are pure functions of (seed, step).

N training rows, B rows of a batch.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from symlab.data.dataset import Augmentation
from symlab.training.order import WHOLE, Order, Share


@dataclass
class Batches:
    """This process's share of the batch of update number t, in the order that `symlab.training.order.Order` gives.

    `inputs` [N, ...] and `targets` [N, ...] stay where they are; a batch is a gather on their device. `augmentation`
    changes the inputs of a batch, drawing from a generator that the seed and the number of the update fix; it sees the
    global batch whatever the share, so what it does to a row does not depend on the number of processes.

    Raises BadInput for a `batch_size` below 1 or above N, or too small for the number of processes.
    """

    inputs: Tensor
    targets: Tensor
    batch_size: int | None
    seed: int
    drop_last: bool = False
    share: Share = WHOLE
    augmentation: Augmentation | None = None
    order: Order = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.order = Order(len(self.inputs), self.batch_size, self.seed, self.drop_last)
        self.order.check_share(self.share)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch, at least 1."""
        return self.order.steps_per_epoch

    @property
    def ahead(self) -> int:
        """No batch is made before it is asked for."""
        return 0

    def rows_in(self, step: int) -> int:
        """Number of rows of the global batch of update number `step`."""
        return self.order.rows_in(step)

    def rows_at(self, step: int) -> Tensor:
        """Row numbers [B] of the global batch of update number `step`, on the CPU; for the full batch 0..N-1."""
        return self.order.rows_at(step)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this process's rows of the batch of update number `step`."""
        if self.augmentation is not None:
            return self._augmented(self.augmentation, step)
        if self.batch_size is None:
            return self.share.of(self.inputs), self.share.of(self.targets)
        chosen = self.share.of(self.order.rows_at(step)).to(self.inputs.device)  # [B / R]
        return self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)

    def _augmented(self, augmentation: Augmentation, step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.inputs, self.targets
        if self.batch_size is not None:
            chosen = self.order.rows_at(step).to(inputs.device)  # [B]
            inputs, targets = inputs.index_select(0, chosen), targets.index_select(0, chosen)
        generator = torch.Generator().manual_seed(self.order.augmentation_seed(step))
        return self.share.of(augmentation(inputs, generator)), self.share.of(targets)
