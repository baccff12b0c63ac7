"""Training one arm of `dcs_resnet`, from a checkpoint if there is one, and timing two arms in turns."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from symlab.constraint.constrain import collapse, constrain, constrained
from symlab.constraint.cost import census
from symlab.constraint.factored import Split
from symlab.constraint.projectors.elementwise import Elementwise
from symlab.data.dataset import Dataset
from symlab.protocols.study import Ground, Row, Tables, Watch
from symlab.training.batches import Batches
from symlab.training.build import build_model, build_optimizer, number_of_parameters
from symlab.training.evaluate import Evaluation, evaluate
from symlab.training.execution import Execution
from symlab.training.factories import Schedule
from symlab.training.losses import auto
from symlab.training.place import wait_for
from symlab.training.rates import Rates
from symlab.training.update import DivergedError, check_weights, update

EVALUATION_ROWS = 500  # of a batch
UNTIMED = 2  # first steps of each arm


@dataclass(frozen=True)
class Arm:
    """A net: with u * w in place of its weights or without, and its decay."""

    name: str
    constrained: bool
    decay: float


@dataclass(frozen=True)
class Training:
    """What all arms share."""

    ground: Ground
    data: Dataset
    schedule: Schedule
    how: Execution
    split: Split
    batch_size: int
    steps: int
    evaluations: int
    threshold: float

    def built(self, arm: Arm, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The net of a seed, the same for all arms, and its optimizer. Raises ValueError unless that has a decay."""
        ground = self.ground
        net = build_model(ground.need_model(), self.data, seed, ground.device, ground.dtype)
        if arm.constrained:
            constrain(net, Elementwise(), split=self.split)
        self.how.lay_out(net)
        optimizer = build_optimizer(ground.need_optimizer(), net, self.data.train_inputs)
        for group in optimizer.param_groups:
            if group.get("weight_decay") != 0:
                found = group.get("weight_decay", "none")
                raise ValueError(f"optimizer.weight_decay must be there and 0, as the arms have their own; got {found}")
            group["weight_decay"] = arm.decay
        return net, optimizer

    def batches(self, seed: int) -> Batches:
        """The same for all arms."""
        rows = self.data.train_inputs, self.data.train_targets
        return Batches(*rows, self.batch_size, seed, drop_last=True, augmentation=self.data.augmentation)

    def measured_at(self) -> set[int]:
        """Updates after which an arm is evaluated, evenly spaced, the last among them."""
        return {round(self.steps * k / self.evaluations) for k in range(1, self.evaluations + 1)}


@dataclass
class Run:
    """One arm and seed under way."""

    net: nn.Module
    optimizer: torch.optim.Optimizer
    base_rates: list[float]
    rows: list[Row]
    step: int = 0
    loss_sum: float = 0.0  # since the last row
    loss_count: int = 0
    seconds: float = 0.0

    @property
    def evaluated(self) -> int:
        """Updates before the last evaluation."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on exactly, beside the global random state, which the watch keeps."""
        tensors = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        own = {"step": self.step, "loss_sum": self.loss_sum, "loss_count": self.loss_count, "seconds": self.seconds}
        return {**tensors, **own, "rows": list(self.rows)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rows, self.step, self.seconds = list(state["rows"]), state["step"], state["seconds"]
        self.loss_sum, self.loss_count = state["loss_sum"], state["loss_count"]


def train_arm(shared: Training, arm: Arm, seed: int, watch: Watch) -> Tables | None:
    """metrics: a row per evaluation; layers: exact zeros per weight after collapse. None if it was stopped.

    A net that diverged has one more row, with diverged true and no measurement, and none in layers.
    """
    net, optimizer = shared.built(arm, seed)
    run = Run(net, optimizer, [float(group["lr"]) for group in optimizer.param_groups], [])
    if (state := watch.saved()) is not None:
        run.restore(state)
    setting = {"arm": arm.name, "seed": seed, "decay": arm.decay, "parameters": number_of_parameters(net)}
    try:
        for row in _advance(shared, run, seed, watch):
            run.rows.append({**setting, **row})
            watch.say(f"{arm.name}, seed {seed}: accuracy {row['accuracy']:.3f}")
    except DivergedError as error:
        nothing = dict.fromkeys(("train_loss", "test_loss", "accuracy", "zero_fraction", "accuracy_collapsed"))
        bad = {"step": error.step, "epoch": None, **nothing, "time_s": run.seconds, "diverged": True}
        return {"metrics": [*run.rows, {**setting, **bad}], "layers": []}
    if run.evaluated < shared.steps:
        watch.save(run.state())
        return None
    return {"metrics": run.rows, "layers": layer_rows(collapsed(net, shared.threshold), setting)}


def _advance(shared: Training, run: Run, seed: int, watch: Watch) -> Iterator[Row]:
    """Updates up to the end, or to a stop; yields a row at every evaluation. Raises DivergedError."""
    batches, rates = shared.batches(seed), Rates(shared.schedule, 0, shared.steps)
    measured = shared.measured_at()
    run.net.train()
    while run.evaluated < shared.steps and not watch.stopped():
        if run.step in measured and run.evaluated < run.step:
            check_weights(run.net, run.step)
            row = _measured(shared, run, batches.steps_per_epoch, watch)
            if row is None:
                return
            yield row
            run.loss_sum, run.loss_count = 0.0, 0
            continue
        began = time.perf_counter()
        rates.set(run.optimizer, run.base_rates, run.step)
        inputs, targets = batches.at(run.step)
        run.loss_sum += update(run.net, run.optimizer, auto, inputs, targets, run.step, shared.how)
        run.loss_count += 1
        wait_for(shared.ground.device)
        run.seconds += time.perf_counter() - began
        run.step += 1
        if watch.due():
            watch.save(run.state())


def _measured(shared: Training, run: Run, steps_per_epoch: int, watch: Watch) -> Row | None:
    """Losses, accuracy and zeros after `run.step` updates; after the last also the accuracy with exact zeros.

    None if it was stopped.
    """
    found = _evaluated(shared, run.net, watch)
    flat = collapsed(run.net, shared.threshold)
    counts = census(flat)
    exact = _evaluated(shared, flat, watch) if run.step == shared.steps else found
    if found is None or exact is None:
        return None
    return {
        "step": run.step,
        "epoch": run.step / steps_per_epoch,
        "train_loss": run.loss_sum / run.loss_count,
        "test_loss": found.loss,
        "accuracy": found.accuracy,
        "zero_fraction": sum(row["zeros"] for row in counts) / sum(row["entries"] for row in counts),
        "accuracy_collapsed": exact.accuracy if run.step == shared.steps else None,
        "time_s": run.seconds,
        "diverged": False,
    }


def _evaluated(shared: Training, net: nn.Module, watch: Watch) -> Evaluation | None:
    """None if it was stopped."""
    rows = shared.data.test_inputs, shared.data.test_targets
    return evaluate(net, *rows, auto, batch_size=EVALUATION_ROWS, stop=watch.stopped, how=shared.how)


def collapsed(net: nn.Module, threshold: float) -> nn.Module:
    """The plain net, every weight entry of size <= threshold exactly zero: the same cut for the net without u * w."""
    is_constrained = next(constrained(net), None) is not None
    return collapse(net if is_constrained else constrain(copy.deepcopy(net), Elementwise()), threshold)


def layer_rows(flat: nn.Module, setting: Mapping[str, Any]) -> list[Row]:
    """Per weight, in the model's order, its exact zeros."""
    counts = census(flat)
    return [
        {
            **{name: setting[name] for name in ("arm", "seed", "decay")},
            "layer": place,
            "tensor": row["tensor"].removesuffix(".weight"),
            "entries": row["entries"],
            "zero_fraction": row["zeros"] / row["entries"],
            "zero_filters": row["zero_outputs"] / row["outputs"],
        }
        for place, row in enumerate(counts)
    ]


def time_in_turns(shared: Training, arms: Sequence[Arm], seed: int, repeats: int, watch: Watch) -> list[Row] | None:
    """Rows {seed, repeat, arm, step_time_s} of training steps that the arms take one after the other, the first few of
    each not counted, so that other work on the machine hits all alike. None if it was stopped."""
    made = {arm: shared.built(arm, seed) for arm in arms}
    inputs, targets = shared.batches(seed).at(0)
    rows: list[Row] = []
    for net, _ in made.values():
        net.train()
    for repeat in range(-UNTIMED, repeats):
        turn = list(made) if repeat % 2 else [*reversed(made)]
        for arm in turn:
            if watch.stopped():
                return None
            wait_for(shared.ground.device)
            began = time.perf_counter()
            update(*made[arm], auto, inputs, targets, max(repeat, 0), shared.how)
            wait_for(shared.ground.device)
            took = time.perf_counter() - began
            if repeat >= 0:
                rows.append({"seed": seed, "repeat": repeat, "arm": arm.name, "step_time_s": took})
    return rows
