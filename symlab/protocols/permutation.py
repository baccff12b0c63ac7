"""Permutation symmetry and equal neurons: how many distinct hidden units a net has left, against weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from symlab.constraint.measures import cluster_order, neuron_correlation, neuron_norms
from symlab.constraint.remove_symmetry import remove_symmetry
from symlab.constraint.restore_symmetry import restore_symmetry
from symlab.data.dataset import Dataset
from symlab.protocols.axis_checks import check_axis, check_momentum, check_share, check_whole
from symlab.protocols.hidden_axes import Counting, HiddenAxis, hidden_axes, unit_counts
from symlab.protocols.paired_training import (
    loss_and_accuracy,
    new_net,
    save_training,
    side_by_side,
    train_side_by_side,
)
from symlab.protocols.permutation_numbers import NAMES, SYMMETRIC, broken, permutation_numbers
from symlab.protocols.stack import combinations
from symlab.protocols.study import Ground, Number, Row, Study, Tables, Watch
from symlab.symmetry.weight_symmetry import WeightSymmetry
from symlab.training.factories import name_of

if TYPE_CHECKING:
    import pandas

TOTALS = ("width", "distinct", "distinct_strict", "zero_neurons", "merged", "distinct_activations", "dead_units")


def permutation(
    ground: Ground,
    *,
    decays: Sequence[float] = (0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    lrs: Sequence[float] = (0.03, 0.1),
    sigmas: Sequence[float] = (0.1, 0.5),
    momentum: float = 0.9,
    batch: int = 64,
    steps: int = 3000,
    correlation: float = 0.9,
    strict_correlation: float = 0.99,
    zero: float = 0.01,
    rows: int = 1000,
    shown_layer: str | None = None,
    shown_units: int = 64,
) -> Study:
    """Distinct hidden units of a net trained by SGD on cross-entropy + (decay / 2) ||theta||^2, layer by layer.

    Source: Ziyin (ICML 2024), permutation symmetry and Figure 1 (neuron correlation of a ResNet against decay;
    settings ours). A layer is an axis of the model's symmetry (on a residual stream, all layers that add to it). Its
    units fall into: zero_neurons, whose weights in have at most `zero` times the layer's mean length at the start
    (sparsity); and groups of units whose weights in, bias included, have a cosine of `correlation` or more (single
    linkage; without sign where the net is odd in its units): distinct is the number of groups, and merged = width -
    zero_neurons - distinct. distinct_strict is the same at `strict_correlation`, distinct_activations with the Pearson
    correlation of the units' activations on `rows` test rows. In dead_units activations do not vary at all.

    Arms: "symmetric", and one with a fixed random shift (`remove_symmetry`) for each of `sigmas`: the controls, at
    equal decay, from the same function, on the same batches. A shift of `sigma` / sqrt(fan in) has about sigma times
    the length of a start; two units under strong decay end up near shifts of their own, so it must be of the order of
    the weights that training leaves, or merging is hidden from the correlation only. The statements compare with the
    largest.

    metrics has totals over all layers, layers each layer, correlations the matrix of neurons (at most `shown_units`),
    ordered by cluster, of `shown_layer` (None: the last one that has that few units) of the first seed at the last lr,
    for the arms symmetric and largest sigma at the lowest and highest decay.

    Raises ValueError for a value out of range, data without classes, and a model without hidden units.
    """
    sweep = Sweep(tuple(decays), tuple(lrs), tuple(sigmas), momentum, batch, steps, rows)
    counting = Counting(correlation, strict_correlation, zero)
    _check(sweep, counting)
    check_whole("shown_units", shown_units, least=2)
    data, model = ground.need_data(), ground.need_model()
    if data.num_classes is None:
        raise ValueError(f"data {data.name} has no classes: take a classification task, e.g. data=digits")
    if data.augmentation is not None:
        raise ValueError(f"data {data.name} is augmented, and this protocol trains on plain rows: data.augment=false")
    probe = model(data.input_shape, data.output_size, torch.Generator().manual_seed(ground.seeds[0]))
    symmetry, axes = hidden_axes(probe.to(ground.device), data.head(2)[0].float())
    small = [axis for axis in axes if axis.size <= shown_units] or list(axes)
    names = [axis.label for axis in axes]
    if shown_layer is not None and shown_layer not in names:
        raise ValueError(f"shown_layer must be one of {', '.join(names)}, got {shown_layer}")
    shown = Shown(small[-1] if shown_layer is None else axes[names.index(shown_layer)], shown_units)
    return PermutationStudy(ground, data, name_of(model), symmetry, axes, sweep, counting, shown)


@dataclass(frozen=True)
class Sweep:
    """What is swept and how it is trained."""

    decays: tuple[float, ...]
    lrs: tuple[float, ...]
    sigmas: tuple[float, ...]
    momentum: float
    batch: int
    steps: int
    rows: int


@dataclass(frozen=True)
class Shown:
    """Of the table correlations."""

    axis: HiddenAxis
    units: int


@dataclass(frozen=True)
class PermutationStudy:
    """One part per arm and rate; all seeds and decays of a part side by side."""

    ground: Ground
    data: Dataset
    model_name: str
    symmetry: WeightSymmetry
    axes: tuple[HiddenAxis, ...]
    sweep: Sweep
    counting: Counting
    shown: Shown

    @property
    def title(self) -> str:
        """What was run."""
        units = sum(axis.size for axis in self.axes)
        where = f"{len(self.axes)} layers" if len(self.axes) > 1 else "one hidden layer"
        return f"{self.model_name} on {self.data.name}, {units} units in {where}, {self.sweep.steps} updates of SGD"

    @property
    def figures(self) -> Mapping[str, str]:
        """Lines over decay (distinct, merged and zero units, accuracy), heat map, correlation matrices."""
        lines = dict.fromkeys(("phase", "distinct", "merged", "zero", "activations", "accuracy"), "metrics")
        return lines | {"layers": "layers", "correlations": "correlations"}

    @property
    def references(self) -> Mapping[str, float]:
        """All hidden units."""
        return {"all units": float(sum(axis.size for axis in self.axes))}

    @cached_property
    def _plan(self) -> Mapping[str, tuple[float | None, float]]:
        """Part -> sigma (None: symmetric) and rate."""
        arms = (None, *self.sweep.sigmas)
        return {f"{_arm(sigma)}, lr {lr:g}": (sigma, lr) for lr in self.sweep.lrs for sigma in arms}

    def parts(self) -> Sequence[str]:
        """Arm and rate."""
        return list(self._plan)

    def run(self, part: str, watch: Watch) -> Tables | None:
        """Rows of one arm at one rate, all decays and seeds."""
        sigma, lr = self._plan[part]
        labels = combinations(decay=self.sweep.decays, seed=self.ground.seeds)
        sgd = side_by_side(lambda seed: self._start(seed, sigma), labels, lr, self.sweep.momentum)
        if not train_side_by_side(sgd, labels, self.data, self.sweep.batch, self.sweep.steps, watch):
            return None
        tables: Tables = {"metrics": [], "layers": [], "correlations": []}
        for index, label in enumerate(labels):
            if watch.stopped():
                save_training(sgd, self.sweep.steps, watch)
                return None
            setting = {"arm": _arm(sigma), "lr": lr, **label}
            net = sgd.stack.net(index).eval()
            net = net if sigma is None else restore_symmetry(net)
            self._measure(net, setting, not bool(sgd.alive[index]), tables)
        return tables

    def number_names(self) -> Sequence[str]:
        """See `permutation_numbers`."""
        return NAMES

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """The statements, each with its spread over seeds."""
        return permutation_numbers(tables["metrics"], self.ground.seeds, broken(self.sweep.sigmas[-1]))

    def _start(self, seed: int, sigma: float | None) -> nn.Module:
        """The net of one seed; the shift of the controls is drawn from the same generator, behind the start."""
        generator = torch.Generator().manual_seed(seed)
        net = new_net(self.ground, self.data, generator)
        return net if sigma is None else remove_symmetry(net, sigma, generator=generator)

    def _measure(self, net: nn.Module, setting: Row, diverged: bool, tables: Tables) -> None:
        """The rows of one net: its totals, its layers, and its correlations if they are shown."""
        data, rows = self.data, self.sweep.rows
        found = unit_counts(net, self.symmetry, self.axes, data.test_inputs[:rows], self.counting)
        train = loss_and_accuracy(net, data.train_inputs[:rows], data.train_targets[:rows])
        test = loss_and_accuracy(net, data.test_inputs, data.test_targets)
        totals: dict[str, Any] = {name: sum(float(own[name]) for own in found if name in own) for name in TOTALS}
        distances = [float(own["swap_distance"]) for own in found]
        totals["swap_distance"] = min((d for d in distances if math.isfinite(d)), default=math.nan)
        shares = {f"{name}_share": totals[name] / totals["width"] for name in TOTALS[1:]}
        results = {"train_loss": train[0], "train_accuracy": train[1], "test_loss": test[0], "test_accuracy": test[1]}
        tables["metrics"].append({**setting, **totals, **shares, **results, "diverged": diverged})
        for own in found:
            share = float(own["distinct"]) / float(own["width"])
            tables["layers"].append({**setting, **own, "distinct_share": share, **results, "diverged": diverged})
        if self._is_shown(setting):
            tables["correlations"].extend(self._matrix(net, setting))

    def _is_shown(self, setting: Row) -> bool:
        arms = (SYMMETRIC, broken(self.sweep.sigmas[-1]))
        ends = (self.sweep.decays[0], self.sweep.decays[-1])
        first = setting["seed"] == self.ground.seeds[0] and setting["lr"] == self.sweep.lrs[-1]
        return first and setting["arm"] in arms and setting["decay"] in ends

    def _matrix(self, net: nn.Module, setting: Row) -> Iterator[Row]:
        """value = correlation of units i and j of the shown layer, numbered in the order of their clusters."""
        axis = self.shown.axis
        rows = axis.weights_in(dict(net.named_parameters()))[: self.shown.units]
        rows = rows * (neuron_norms(rows) > self.counting.zero * axis.start_length)[:, None]
        order = cluster_order(rows)
        matrix = neuron_correlation(rows)[order][:, order]
        for i, line in enumerate(matrix.tolist()):
            for j, value in enumerate(line):
                yield {**setting, "layer": axis.label, "i": i, "j": j, "value": round(value, 4)}


def _arm(sigma: float | None) -> str:
    return SYMMETRIC if sigma is None else broken(sigma)


def _check(sweep: Sweep, counting: Counting) -> None:
    check_axis("decays", sweep.decays)
    check_axis("lrs", sweep.lrs, positive=True)
    check_axis("sigmas", sweep.sigmas, positive=True)
    if not (len(sweep.decays) >= 3 and sweep.decays[1] > 0):
        raise ValueError(f"decays must be three or more, for a slope over those above 0, got {list(sweep.decays)}")
    check_whole("batch", sweep.batch, least=1)
    check_whole("steps", sweep.steps, least=1)
    check_whole("rows", sweep.rows, least=2)
    check_momentum(sweep.momentum)
    for key, value in {"correlation": counting.correlation, "strict_correlation": counting.strict_correlation}.items():
        check_share(f"{key}, from which two neurons count as one,", value)
    if not counting.correlation <= counting.strict_correlation:
        raise ValueError(
            f"strict_correlation must be at least correlation={counting.correlation}, got {counting.strict_correlation}"
        )
    if not 0 <= counting.zero < 1:
        raise ValueError(
            f"zero, relative to the length of the weights at the start, must be in [0, 1), got {counting.zero}"
        )
