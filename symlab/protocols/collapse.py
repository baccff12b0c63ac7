"""Low-rank features in self-supervised learning, with and without the symmetries of the net."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from symlab.constraint.remove_symmetry import remove_symmetry
from symlab.data.dataset import Dataset
from symlab.protocols.axis_checks import (
    check_axis,
    check_member,
    check_momentum,
    check_not_negative,
    check_positive,
    check_step_sizes,
    check_whole,
)
from symlab.protocols.collapse_numbers import UNTRAINED, VANILLA, CollapseNumbers, arm_name
from symlab.protocols.contrastive_net import ContrastiveNet
from symlab.protocols.feature_measures import direction_dimension, direction_rank, probe_accuracy
from symlab.protocols.stack import Stack, StackedSGD, column, combinations
from symlab.protocols.study import Ground, Number, Row, Study, Tables, Watch
from symlab.protocols.two_views import Views, info_nce

if TYPE_CHECKING:
    import pandas


def collapse(
    ground: Ground,
    *,
    sigmas: Sequence[float] = (0.01, 0.1, 1.0),
    decays: Sequence[float] = (0.0, 0.003, 0.01, 0.02, 0.03),
    judged_decay: float = 0.02,
    width: int = 64,
    outputs: int = 32,
    lr: float = 0.1,
    momentum: float = 0.9,
    steps: int = 1000,
    batch_size: int = 64,
    temperature: float = 0.5,
    shift: int = 1,
    contrast: float = 0.4,
    noise: float = 0.2,
    cut_off: float = 1e-2,
    ridge: float = 1e-3,
    records: int = 10,
) -> Study:
    """InfoNCE on two views of each image (SimCLR), by SGD with weight decay; how many dimensions the features keep.

    Source: Ziyin (ICML 2024), collapse in self-supervised learning; Ziyin, Xu and Chuang (ICLR 2025), removal of
    symmetries (net, data and settings ours). Arms: vanilla, and the shift of `remove_symmetry` with each of `sigmas`,
    at all `decays` (decay 0 is the control without decay); same starts, views and batches in all arms of a seed.
    Measured on all training rows, plain, for the features (the layer before the head) and the outputs of the head:
    effective dimension and rank of their directions (cut_off: see `feature_measures`), accuracy of a linear probe on
    the test rows (`ridge`: see there), and those of the untrained net. Numbers compare the arms at `judged_decay`.

    Raises ValueError for a value out of range, and without labelled images.
    """
    check_axis("sigmas", sigmas, positive=True)
    check_axis("decays", decays)
    check_member("judged_decay", judged_decay, "decays", decays)
    for key, value, least in (("width", width, 1), ("outputs", outputs, 1), ("steps", steps, 1), ("shift", shift, 0)):
        check_whole(key, value, least=least)
    check_whole("batch_size", batch_size, least=2)
    check_whole("records", records, least=1)
    for key, number in (("lr", lr), ("temperature", temperature), ("ridge", ridge)):
        check_positive(key, number)
    check_step_sizes("decays", decays, "lr", [lr])
    check_momentum(momentum)
    for key, number in (("contrast", contrast), ("cut_off", cut_off)):
        if not 0 <= number < 1:
            raise ValueError(f"{key} must be in [0, 1), got {number}")
    check_not_negative("noise", noise)
    data = ground.need_data()
    if data.num_classes is None or len(data.input_shape) != 3:
        raise ValueError(f"this protocol needs images with labels, and data={data.name} has none: try data=digits")
    if not batch_size <= data.num_train:
        raise ValueError(f"batch_size must be at most the {data.num_train} training rows, got {batch_size}")
    net = NetSettings(width, outputs, lr, momentum, steps, batch_size, temperature, cut_off, ridge, records)
    return CollapseStudy(ground, data, tuple(sigmas), tuple(decays), judged_decay, net, Views(shift, contrast, noise))


@dataclass(frozen=True)
class NetSettings:
    """Of each net and its training."""

    width: int
    outputs: int
    lr: float
    momentum: float
    steps: int
    batch_size: int
    temperature: float
    cut_off: float
    ridge: float
    records: int


@dataclass(frozen=True)
class CollapseStudy:
    """One part per arm: all seeds and decays side by side."""

    ground: Ground
    data: Dataset
    sigmas: tuple[float, ...]
    decays: tuple[float, ...]
    judged: float
    net: NetSettings
    views: Views

    @property
    def title(self) -> str:
        """What was run."""
        net = self.net
        return f"SimCLR on {self.data.name}, MLP of width {net.width}, {net.steps} steps of batch {net.batch_size}"

    @property
    def figures(self) -> Mapping[str, str]:
        """Figure -> table; history holds the judged decay, trained the metrics of the arms that are trained."""
        names = ("head_dimension", "feature_dimension", "head_rank", "head_probe", "feature_probe")
        return dict.fromkeys(names, "metrics") | {"loss": "trained", "history": "history"}

    @property
    def references(self) -> Mapping[str, float]:
        """The loss of outputs that all have one direction."""
        return {"loss of collapsed outputs": float(torch.tensor(2.0 * self.net.batch_size - 1).log())}

    def parts(self) -> Sequence[str]:
        """The arms, and the nets before training."""
        return [VANILLA, *(arm_name(sigma) for sigma in self.sigmas), UNTRAINED]

    def run(self, part: str, watch: Watch) -> Tables | None:
        """Rows of one arm."""
        if part == UNTRAINED:
            labels = combinations(seed=self.ground.seeds, decay=self.decays)
            stack = self._stack(labels, None)
            losses = [None] * len(stack)
            rows = self._rows(part, labels, stack, torch.ones(len(stack), dtype=torch.bool), losses)
            return {"metrics": rows}
        sigma = dict(zip(self.parts(), [None, *self.sigmas, None], strict=True))[part]
        return Training(self, part, sigma, watch).run()

    def number_names(self) -> Sequence[str]:
        """See `CollapseNumbers`."""
        return CollapseNumbers(self.sigmas, self.judged).names()

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """See `CollapseNumbers`."""
        return CollapseNumbers(self.sigmas, self.judged).numbers(tables["metrics"])

    def _stack(self, labels: Sequence[Mapping[str, Any]], sigma: float | None) -> Stack:
        """The nets, the same start in all arms and at all decays of a seed."""
        inputs = torch.Size(self.data.input_shape).numel()
        nets = []
        for label in labels:
            generator = torch.Generator().manual_seed(label["seed"])
            net = ContrastiveNet(inputs, self.net.width, self.net.outputs, generator)
            net = net.to(self.ground.device, self.ground.dtype)
            shift = torch.Generator().manual_seed(1_000_003 + label["seed"])
            nets.append(net if sigma is None else remove_symmetry(net, sigma, generator=shift))
        return Stack(nets)

    @torch.no_grad()
    def _rows(
        self, arm: str, labels: Sequence[Mapping[str, Any]], stack: Stack, alive: Tensor, losses: Sequence[float | None]
    ) -> list[Row]:
        """One row per net."""
        data, net = self.data, self.net
        train, test = (stack.outputs(x, shared=True) for x in (data.train_inputs, data.test_inputs))
        columns: dict[str, list[float]] = {}
        for name, part in (("feature", slice(None, net.width)), ("head", slice(net.width, None))):
            own, new = train[..., part], test[..., part]
            columns[f"{name}_dimension"] = direction_dimension(own, net.cut_off).tolist()
            columns[f"{name}_rank"] = direction_rank(own, net.cut_off).tolist()
            columns[f"{name}_probe"] = probe_accuracy(
                own, data.train_targets, new, data.test_targets, data.output_size, net.ridge
            ).tolist()
        return [
            {"arm": arm, "decay": label["decay"], "seed": label["seed"], "diverged": not live}
            | {"loss": loss if live else None}
            | {name: values[i] if live else None for name, values in columns.items()}
            for i, (label, live, loss) in enumerate(zip(labels, alive.tolist(), losses, strict=True))
        ]


class Training:
    """One arm: its nets, optimizer and random streams, from a checkpoint where there is one."""

    def __init__(self, study: CollapseStudy, arm: str, sigma: float | None, watch: Watch) -> None:
        self.study, self.arm, self.watch = study, arm, watch
        self.labels = combinations(seed=study.ground.seeds, decay=study.decays)
        self.stack = study._stack(self.labels, sigma)
        like = study.data.train_inputs
        rates = torch.full((len(self.stack),), study.net.lr, dtype=like.dtype, device=like.device)
        self.sgd = StackedSGD(self.stack, rates, column(self.labels, "decay", like), study.net.momentum)
        self.generators = [torch.Generator().manual_seed(2_000_003 + seed) for seed in study.ground.seeds]
        self.step, self.history = 0, list[Row]()
        self.late = torch.zeros(len(self.stack), dtype=torch.float64, device=like.device)  # [S], summed losses
        if (kept := watch.saved()) is not None:
            self._restore(kept)

    def run(self) -> Tables | None:
        """Train; the loss of a row is the mean of the last tenth of the steps."""
        net, watch = self.study.net, self.watch
        tenth = max(1, net.steps // 10)
        at = {round(net.steps * k / net.records) for k in range(net.records + 1)}
        while self.step < net.steps:
            stopped = watch.stopped()
            if stopped or watch.due():
                watch.save(self._state())
            if stopped:
                return None
            if self.step in at:
                self._record([None] * len(self.stack))
            losses = self._one_step()
            if self.step >= net.steps - tenth:
                self.late += losses
            self.step += 1
        means = (self.late / tenth).tolist()
        rows = self.study._rows(self.arm, self.labels, self.stack, self.sgd.alive, means)
        self._record(means)
        return {"metrics": rows, "trained": rows, "history": self.history}

    def _one_step(self) -> Tensor:
        """[S]: the losses of one batch of two views."""
        views, like = self.study.views, self.study.data.train_inputs
        batch = [self._draw(generator) for generator in self.generators]
        rows, *changes = (torch.stack(part).flatten(0, 1).to(like.device) for part in zip(*batch, strict=True))
        changes[1:] = [part.to(like.dtype) for part in changes[1:]]
        seen = views.apply(like[rows], *changes).unflatten(0, (len(batch), -1))  # [R, 2 B, C, H, W]
        seen = seen.repeat_interleave(len(self.study.decays), 0)  # [S, 2 B, C, H, W]
        outputs = self.stack.outputs(seen, shared=False)[..., self.study.net.width :]
        losses = info_nce(outputs, self.study.net.temperature)
        self.sgd.backward(losses)
        self.sgd.step()
        return losses.detach().double()

    def _draw(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Numbers of the images [2 B], each twice, and what changes them."""
        net, data = self.study.net, self.study.data
        rows = torch.randperm(data.num_train, generator=generator)[: net.batch_size].repeat(2)
        shape = (net.batch_size, *data.input_shape)
        return rows, *self.study.views.draw(shape, generator)  # type: ignore[arg-type]

    def _record(self, losses: Sequence[float | None]) -> None:
        rows = self.study._rows(self.arm, self.labels, self.stack, self.sgd.alive, losses)
        self.history += [{"step": self.step} | row for row in rows if row["decay"] == self.study.judged]

    def _state(self) -> dict[str, Any]:
        streams = [generator.get_state() for generator in self.generators]
        kept = {"sgd": self.sgd.state(), "streams": streams, "step": self.step}
        return kept | {"history": self.history, "late": self.late.clone()}

    def _restore(self, kept: Mapping[str, Any]) -> None:
        self.sgd.restore(kept["sgd"])
        for generator, stream in zip(self.generators, kept["streams"], strict=True):
            generator.set_state(stream.cpu())
        self.step, self.history = kept["step"], list(kept["history"])
        self.late = kept["late"].to(self.late.device)
