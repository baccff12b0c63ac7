"""torch.compile for the forward pass and the loss."""

import torch

from symlab.rundir import BadInput
from symlab.training.execution import Evaluator, outputs_and_loss
from symlab.training.factories import Loss
from symlab.training.order import BatchSource
from symlab.training.state import Training
from symlab.training.update import Moved, differentiate


def compiled_evaluator() -> Evaluator:
    """f(X) and L(f(X), Y) as one compiled function, once for every shape of batch: what it gives depends on the shape
    and not on the shapes that came before, so a resumed run computes what an uninterrupted one does."""
    torch.compiler.reset()  # what other runs of this process compiled counts against torch's limit of variants
    evaluator: Evaluator = torch.compile(outputs_and_loss, dynamic=False)
    return evaluator


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
