"""From factories to a model and an optimizer that fit the data."""

import torch
from torch import Tensor, nn

from symlab.data.streamed import AnyDataset
from symlab.rundir import BadInput
from symlab.training import losses
from symlab.training.evaluate import eval_mode
from symlab.training.execution import Execution
from symlab.training.factories import ConstraintFactory, Loss, ModelFactory, OptimizerFactory, UsesBatch
from symlab.training.order import BatchSource, mix
from symlab.training.processes import Processes

SAMPLE_ROWS = 8
"""Training rows that an optimizer's factory is given, enough to trace the model and check its symmetry."""


CONSTRAINT_STREAM = 0x636F6E73  # what a constraint draws has a stream of its own: the model is that without it


def build_model(
    factory: ModelFactory,
    dataset: AnyDataset,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    constraint: ConstraintFactory | None = None,
) -> nn.Module:
    """The model for the data's shapes, drawn on the CPU from `seed` (so the same on every device), then moved and cast.

    A `constraint` then changes it, drawing from `seed` too, but other numbers: its weights are at first those of the
    model without it, as far as the constraint allows them.

    Raises BadInput when it cannot take the data's rows or does not give one output per class (or target column), and
    for a constraint that does not fit it.
    """
    generator = torch.Generator().manual_seed(seed)
    model = factory(dataset.input_shape, dataset.output_size, generator).to(device, dtype)
    check_model(model, dataset)
    if constraint is None:
        return model
    model = constraint(model, dataset.head(SAMPLE_ROWS)[0], torch.Generator().manual_seed(mix(seed, CONSTRAINT_STREAM)))
    check_model(model, dataset)
    return model


@torch.no_grad()
def check_model(model: nn.Module, dataset: AnyDataset) -> None:
    """One forward pass in eval mode on at most two training rows, whose outputs must be [rows, output_size]."""
    inputs, _ = dataset.head(2)  # [2, ...]
    task = "target columns" if dataset.num_classes is None else "classes"
    try:
        with eval_mode(model):
            outputs = model(inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"the model cannot take rows of data {dataset.name} (shape {list(dataset.input_shape)},"
            f" {inputs.dtype}): {error}"
        ) from error
    expected = [len(inputs), dataset.output_size]
    if list(outputs.shape) != expected:
        raise BadInput(
            f"the model's outputs for {len(inputs)} rows have shape {list(outputs.shape)}, but data {dataset.name}"
            f" has {dataset.output_size} {task}: expected {expected}"
        )


@torch.no_grad()
def is_natural_loss(loss: Loss, model: nn.Module, dataset: AnyDataset) -> bool:
    """Whether `loss`, as a run reports it, is the data's natural one (`losses.auto`) on the first rows, so that the
    references compare.

    Raises BadInput when the loss is no single number for the model's outputs.
    """
    inputs, targets = dataset.head(2)
    with eval_mode(model):
        outputs = model(inputs)  # [2, C]
    value = loss(outputs, targets)
    if value.ndim != 0:
        raise BadInput(f"the loss must be a mean over the batch (a 0-d tensor), got shape {list(value.shape)}")
    plain = losses.reported(loss)
    value = value if plain is loss else plain(outputs, targets)
    return torch.allclose(value, losses.auto(outputs, targets), equal_nan=True)


def build_optimizer(factory: OptimizerFactory, model: nn.Module, inputs: Tensor) -> torch.optim.Optimizer:
    """The optimizer for the model, given the first rows of the training inputs [N, ...] in training mode.

    Raises BadInput when no parameter of the model can be trained.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadInput("the model has no trainable parameter: nothing to optimize")
    return factory(model, inputs[:SAMPLE_ROWS])


def check_batch_norm(model: nn.Module, rows: int) -> None:
    """Batch norm needs two rows: on maps larger than 1 x 1 torch takes one silently, and normalises it to noise.

    Raises BadInput for batches of a single row and a model with batch norm.
    """
    norms = _batch_norms(model)
    if rows == 1 and norms:
        raise BadInput(f"batches of one row cannot train batch norm ({norms[0]}): use a batch_size of at least 2")


def _batch_norms(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def check_parts(model: nn.Module, batches: BatchSource, accumulate: int) -> None:
    """Every part of every batch, one piece in one process, has a row, or two for batch norm (`check_batch_norm`).

    Raises BadInput otherwise.
    """
    least, world = batches.order.least_rows, batches.share.world
    if least // world < accumulate:
        raise BadInput(
            f"accumulate={accumulate}: the smallest batch of an epoch has {least} rows, too few for that many pieces"
            f" in each of {world} processes; drop_last=true leaves out a short last batch"
        )
    if accumulate * world == 1:
        check_batch_norm(model, least)
    elif least // world // accumulate == 1 and _batch_norms(model):
        raise BadInput(
            f"accumulate={accumulate}: the smallest batch of an epoch has {least} rows, so that a piece of it in one of"
            f" {world} processes has a single row, which cannot train batch norm ({_batch_norms(model)[0]}); use fewer"
            " pieces or processes, a larger batch_size, or drop_last=true where only the last batch is too short"
        )


def check_observer(optimizer: torch.optim.Optimizer, how: Execution) -> None:
    """An optimizer that `UsesBatch` evaluates the whole batch by itself, beside what `how` does.

    Raises BadInput for such an optimizer with several processes, several pieces, or clipped gradients.
    """
    if not isinstance(optimizer, UsesBatch):
        return
    name = type(optimizer).__name__
    world = how.processes.share.world
    if world > 1:
        raise BadInput(f"{name} needs the whole batch in one process, and this run was started as {world}: start one")
    if how.accumulate > 1:
        raise BadInput(f"{name} needs the whole batch at once: accumulate must be 1, got {how.accumulate}")
    if how.clip_norm is not None:
        raise BadInput(f"{name} evaluates the loss by itself, where clip_norm={how.clip_norm:g} cannot reach: use null")


def synchronise(model: nn.Module, wanted: bool, processes: Processes, device: torch.device) -> None:
    """Where `wanted`, the model's batch norms take mean and variance of the rows of all processes; parameters stay.

    Raises BadInput for a model without batch norm, and with several processes on the CPU, where torch does not
    compute it.
    """
    if not wanted:
        return
    if not _batch_norms(model):
        raise BadInput("sync_batch_norm=true, but the model has no batch norm: use false")
    if processes.several and device.type == "cpu":
        raise BadInput("sync_batch_norm=true needs CUDA devices; on the CPU each process normalises by its own rows")
    if processes.several:
        nn.SyncBatchNorm.convert_sync_batchnorm(model)  # in place: a net is never a batch norm itself


def number_of_parameters(model: nn.Module) -> int:
    """Trainable weights, each shared tensor counted once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
