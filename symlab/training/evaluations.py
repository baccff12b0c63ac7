"""What a metrics row holds: loss and accuracy on the training and the test rows."""

from dataclasses import dataclass
from typing import Any, Literal

from symlab.data.streamed import AnyDataset
from symlab.training.evaluate import Evaluation, Totals, totals
from symlab.training.factories import Loss, Stop
from symlab.training.sources import dataset_batches
from symlab.training.state import Training

Row = dict[str, Any]


@dataclass(frozen=True)
class Evaluations:
    """Loss (and accuracy) on the first `train_rows` training rows and on all test rows: what a metrics row holds.

    Of several processes each evaluates its share of the rows, without padding; the sums are added up.
    """

    dataset: AnyDataset
    loss: Loss
    every: int  # steps
    batch_size: int
    train_rows: int

    def measure(self, training: Training, steps_per_epoch: int, stop: Stop) -> Row | None:
        """The metrics row of the current weights; None when stopped on the way."""
        training.how.processes.align(training.evaluated_model.buffers())
        train = None
        if self.train_rows > 0:
            train = self._on("train", min(self.train_rows, self.dataset.num_train), training, stop)
            if train is None:
                return None
        test = self._on("test", self.dataset.num_test, training, stop)
        return None if test is None else _row(training, steps_per_epoch, train, test)

    def _on(self, split: Literal["train", "test"], rows: int, training: Training, stop: Stop) -> Evaluation | None:
        processes = training.how.processes
        batches = dataset_batches(self.dataset, split, self.batch_size, share=processes.share, rows=rows)
        own = totals(training.evaluated_model, batches, self.loss, stop=stop, how=training.how)
        if own is None:
            return None
        # every process asks for a stop as often as rank 0, which has the most rows
        most, mine = (-(-share // self.batch_size) for share in (-(-rows // processes.share.world), own.rows))
        if any(stop() for _ in range(most - mine)):
            return None
        loss, correct, count = processes.sum([own.loss, own.correct, own.rows])
        return Totals(loss, int(correct), int(count)).mean(labelled=self.dataset.num_classes is not None)


def _row(training: Training, steps_per_epoch: int, train: Evaluation | None, test: Evaluation) -> Row:
    updated = training.step > 0
    row = {
        "step": training.step,
        "epoch": training.step / steps_per_epoch,
        "lr": training.optimizer.param_groups[0]["lr"] if updated else None,  # the rate that the last update used
        "train_loss": train.loss if train else None,
        "test_loss": test.loss,
    }
    if test.accuracy is not None:
        row |= {"train_accuracy": train.accuracy if train else None, "test_accuracy": test.accuracy}
    batch_loss = training.loss_sum / training.loss_count if training.loss_count else None
    return row | {"batch_loss": batch_loss, "time_s": training.seconds}
