"""Nets trained side by side on data, those of one seed on the same batches, so that arms and settings compare.

Legend: S  nets of a stack;  B  rows of a batch;  T  updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from symlab.data.dataset import Dataset
from symlab.protocols.stack import Stack, StackedSGD, column
from symlab.protocols.study import Ground, Watch

ASK_EVERY = 20


def new_net(ground: Ground, data: Dataset, generator: torch.Generator) -> nn.Module:
    """The model for this data, its start drawn from `generator`, in training mode."""
    net = ground.need_model()(data.input_shape, data.output_size, generator)
    return net.to(ground.device, ground.dtype).train()


def side_by_side(
    start: Callable[[int], nn.Module], labels: Sequence[Mapping[str, Any]], lr: float, momentum: float
) -> StackedSGD:
    """SGD of one net per label, from `start` of the label's seed, with the label's decay."""
    stack = Stack([start(label["seed"]) for label in labels])
    decays = column(labels, "decay", next(iter(stack.parameters.values())).detach())
    return StackedSGD(stack, torch.full_like(decays, lr), decays, momentum)


def batch_rows(data: Dataset, seed: int, batch: int, steps: int) -> Tensor:
    """[T, B]: the rows of each batch, drawn with replacement; a function of the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))  # not the stream of the start
    return torch.randint(data.num_train, (steps, batch), generator=generator)


def train_side_by_side(
    sgd: StackedSGD, labels: Sequence[Mapping[str, Any]], data: Dataset, batch: int, steps: int, watch: Watch
) -> bool:
    """`steps` updates of all nets on mean cross-entropy, each on the batches of its label's seed. False if stopped."""
    rows = {seed: batch_rows(data, seed, batch, steps) for seed in dict.fromkeys(label["seed"] for label in labels)}
    device = data.train_inputs.device
    saved = watch.saved()
    start = 0
    if saved is not None:
        sgd.restore(saved["sgd"])
        start = saved["step"]
    for step in range(start, steps):
        if step % ASK_EVERY == 0:
            stop = watch.stopped()
            if stop or watch.due():
                save_training(sgd, step, watch)
            if stop:
                return False
            watch.say(f"{step} of {steps} updates")
        chosen = torch.stack([rows[label["seed"]][step] for label in labels]).to(device)  # [S, B]
        inputs, targets = data.train_inputs[chosen], data.train_targets[chosen]
        sgd.backward(sgd.stack.losses(nn.functional.cross_entropy, inputs, targets, shared=False))
        sgd.step()
    return True


def save_training(sgd: StackedSGD, step: int, watch: Watch) -> None:
    """Keep what `train_side_by_side` goes on from, after `step` updates."""
    watch.save({"sgd": sgd.state(), "step": step})


@torch.no_grad()
def loss_and_accuracy(net: nn.Module, inputs: Tensor, targets: Tensor, rows: int = 1000) -> tuple[float, float]:
    """Mean cross-entropy in nats and the share of right answers, computed `rows` at a time."""
    outputs = torch.cat([net(part) for part in inputs.split(rows)])  # [N, C]
    loss = nn.functional.cross_entropy(outputs.double(), targets)
    return float(loss), float((outputs.argmax(1) == targets).float().mean())
