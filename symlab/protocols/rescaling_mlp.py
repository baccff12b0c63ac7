"""Rescaling symmetry and sparsity in a net: every weight w = u v, by stochastic gradient descent with decay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import nn

from symlab.constraint.constrain import collapse, constrain
from symlab.constraint.measures import zero_fraction
from symlab.constraint.projectors.elementwise import Elementwise
from symlab.data.dataset import Dataset
from symlab.protocols.axis_checks import check_axis, check_member, check_momentum, check_positive, check_step_sizes
from symlab.protocols.paired_training import (
    loss_and_accuracy,
    new_net,
    save_training,
    side_by_side,
    train_side_by_side,
)
from symlab.protocols.rescaling_numbers import NET_NAMES, PLAIN, PRODUCT, net_numbers, shown_tables
from symlab.protocols.stack import StackedSGD, combinations
from symlab.protocols.study import Ground, Number, Row, Study, Tables, Watch

if TYPE_CHECKING:
    import pandas

BLOWN_UP = 10.0
"""A loss above this many times that of equal outputs counts as diverged, as one that is not finite does."""

ALIVE = 10.0
"""A row or column with no weight above this many thresholds is dead or dying."""


def rescaling_mlp(
    ground: Ground,
    *,
    lrs: Sequence[float] = (0.05, 0.1, 0.2),
    decays: Sequence[float] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    batch_sizes: Sequence[int] = (16, 32, 128),
    momentum: float = 0.9,
    time: float = 300.0,
    threshold: float = 1e-4,
    shown_lr: float = 0.1,
    shown_decay: float = 3e-3,
    shown_batch_size: int = 32,
) -> Study:
    """Cross-entropy + (decay / 2) (||u||^2 + ||v||^2) of a net with weights u v, by SGD; control: equal decay on w.

    Source: Ziyin (ICML 2024), rescaling symmetry and algorithm DCS, elementwise (settings ours). Every weight with two
    or more axes is constrained, u = w and v = 1 at the start, so both arms start as the same function, and see the same
    batches. All rates run for `time` = lr x updates. A weight counts as zero if |w| <= threshold; columns say the
    same for 10 and 1/10 of it. lone_zero_fraction counts within the rows and columns of each matrix that have a weight
    above 10 thresholds: a unit that died or is dying, or an input that never changes, is not in it. A ReLU net has a
    rescaling symmetry of its own, (rho W_in, W_out / rho) for each unit, so decay kills whole units of the control
    too, but no lone weight. Losses and accuracies are those of the net with the small weights exactly zero.

    metrics has lr x decay at `shown_batch_size`; table batch the batch sizes at `shown_lr`; decay and rate are rows of
    metrics.

    Raises ValueError for a value out of range, and data without classes.
    """
    for key, axis in {"lrs": lrs, "decays": decays, "batch_sizes": batch_sizes}.items():
        check_axis(key, axis, positive=True)
    check_step_sizes("decays", decays, "lrs", lrs)
    for key, number in {"time": time, "threshold": threshold}.items():
        check_positive(key, number)
    check_momentum(momentum)
    if not time >= max(lrs):
        raise ValueError(f"time = lr x updates must be at least one update of the largest lr, {max(lrs)}, got {time}")
    check_member("shown_lr", shown_lr, "lrs", lrs)
    check_member("shown_decay", shown_decay, "decays", decays)
    check_member("shown_batch_size", shown_batch_size, "batch_sizes", batch_sizes)
    data = ground.need_data()
    ground.need_model()
    if data.num_classes is None:
        raise ValueError(f"data {data.name} has no classes: take a classification task, e.g. data=digits")
    sweep = NetSweep(tuple(lrs), tuple(decays), tuple(batch_sizes), momentum, time, threshold)
    return RescalingNetStudy(ground, data, sweep, shown_lr, shown_decay, shown_batch_size)


@dataclass(frozen=True)
class NetSweep:
    """What is swept, how it is trained, and what counts as zero."""

    lrs: tuple[float, ...]
    decays: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    momentum: float
    time: float
    threshold: float


@dataclass(frozen=True)
class RescalingNetStudy:
    """One part per arm, rate and batch size; all seeds and decays of a part side by side."""

    ground: Ground
    data: Dataset
    sweep: NetSweep
    shown_lr: float
    shown_decay: float
    shown_batch_size: int

    @property
    def title(self) -> str:
        """What was run."""
        count = self._weights
        how = f"momentum {self.sweep.momentum:g}, lr x updates = {self.sweep.time:g}"
        return f"Net on {self.data.name}, {count} weights, {how}"

    @property
    def figures(self) -> Mapping[str, str]:
        """Heat map, lines over decay (zeros, accuracy), over lr and over batch size."""
        lines = dict.fromkeys(("decay", "lone", "accuracy"), "decay")
        return {"phase": "metrics", **lines, "rate": "rate", "batch": "batch"}

    @property
    def references(self) -> Mapping[str, float]:
        """None."""
        return {}

    @cached_property
    def _weights(self) -> int:
        return len(_weights(self._start(self.ground.seeds[0], PLAIN)))

    @cached_property
    def _plan(self) -> Mapping[str, tuple[str, float, int]]:
        """Part -> arm, rate, batch size; u v and its control one after the other."""
        shown = self.shown_batch_size
        settings = [(lr, shown) for lr in reversed(self.sweep.lrs)]
        settings += [(self.shown_lr, size) for size in self.sweep.batch_sizes if size != shown]
        arms = (PRODUCT, PLAIN)
        return {f"{arm}, lr {lr:g}, batch size {size}": (arm, lr, size) for lr, size in settings for arm in arms}

    def parts(self) -> Sequence[str]:
        """Arm, rate and batch size."""
        return list(self._plan)

    def run(self, part: str, watch: Watch) -> Tables | None:
        """Rows of one arm at one rate and batch size, all decays and seeds."""
        arm, lr, size = self._plan[part]
        labels = combinations(decay=self.sweep.decays, seed=self.ground.seeds)
        sgd = side_by_side(lambda seed: self._start(seed, arm), labels, lr, self.sweep.momentum)
        steps = max(round(self.sweep.time / lr), 1)
        if not train_side_by_side(sgd, labels, self.data, size, steps, watch):
            return None
        rows: list[Row] = []
        for row in self._rows({"arm": arm, "lr": lr, "batch_size": size}, sgd, labels):
            if watch.stopped():
                save_training(sgd, steps, watch)
                return None
            rows.append(row)
        return shown_tables(rows, arm, lr == self.shown_lr, size == self.shown_batch_size, self.shown_decay)

    def number_names(self) -> Sequence[str]:
        """See `net_numbers`."""
        return NET_NAMES

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """The statements, each with its spread over seeds."""
        return net_numbers(tables, self.ground.seeds, (self.shown_lr, self.shown_decay))

    def _start(self, seed: int, arm: str) -> nn.Module:
        """The net of one seed, the same function in both arms."""
        generator = torch.Generator().manual_seed(seed)
        net = new_net(self.ground, self.data, generator)
        return constrain(net, Elementwise()) if arm == PRODUCT else net

    def _rows(self, setting: Row, sgd: StackedSGD, labels: Sequence[Row]) -> Iterator[Row]:
        """One row per net."""
        threshold = self.sweep.threshold
        for index, label in enumerate(labels):
            net = sgd.stack.net(index).eval()
            plain = collapse(net, 0.0) if setting["arm"] == PRODUCT else net
            weights = _weights(plain)
            row = {**label, **setting}
            for name, cut in (("", threshold), ("_10", 10 * threshold), ("_0.1", threshold / 10)):
                row[f"zero_fraction{name}"] = float(zero_fraction(weights, cut))
            row["lone_zero_fraction"] = lone_zeros(plain, threshold)
            with torch.no_grad():
                for p in plain.parameters():
                    if p.ndim >= 2:
                        p.copy_(torch.where(p.abs() <= threshold, 0.0, p))
            train = loss_and_accuracy(plain, self.data.train_inputs, self.data.train_targets)
            test = loss_and_accuracy(plain, self.data.test_inputs, self.data.test_targets)
            row |= {"train_loss": train[0], "train_accuracy": train[1], "test_loss": test[0], "test_accuracy": test[1]}
            sound = bool(sgd.alive[index]) and train[0] <= BLOWN_UP * math.log(self.data.output_size)
            yield row | {"diverged": not sound}


def lone_zeros(net: nn.Module, threshold: float) -> float | None:
    """#{|w| <= threshold} / #{w} over the rows and columns of all matrices that live; None where none does.

    They live if some weight is above 10 `threshold`: decay takes a dead unit through the threshold weight by weight.
    A matrix is a weight [n, d], or of a convolution [n, ...] with the rest flattened.
    """
    zeros = total = 0
    for p in net.parameters():
        if p.ndim >= 2:
            sizes = p.detach().flatten(1).abs()  # [n, d]
            lives = sizes > ALIVE * threshold
            kept = sizes[lives.any(1)][:, lives.any(0)]
            zeros, total = zeros + int((kept <= threshold).sum()), total + kept.numel()
    return zeros / total if total else None


def _weights(net: nn.Module) -> torch.Tensor:
    """All weights with two or more axes, in one row."""
    return torch.cat([p.detach().flatten() for p in net.parameters() if p.ndim >= 2])
