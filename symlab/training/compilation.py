"""A first compilation by torch.compile, before the run begins."""

import torch

from symlab.rundir import BadInput
from symlab.training.factories import Loss
from symlab.training.order import BatchSource
from symlab.training.state import Training
from symlab.training.update import Moved, differentiate


def try_compiled(training: Training, batches: BatchSource, loss: Loss) -> None:
    """Compile for the next batch, so that it is done before the first update; nothing else changes.

    Raises BadInput where torch cannot compile the model or the loss on this machine.
    """
    inputs, targets = batches.at(training.step)
    before = Moved(training.model, inputs.device)
    try:
        differentiate(training.model, loss, inputs, targets, training.how, batches.rows_in(training.step))
    except torch._dynamo.exc.TorchDynamoException as error:
        raise BadInput(f"compile=true: {str(error).strip().splitlines()[0]}; use compile=false") from error
    finally:
        training.optimizer.zero_grad(set_to_none=True)
        before.restore()
