"""Nets that learn one task after the other, all seeds and settings of an arm side by side.

Legend: K  settings of the arm (decay, sigma);  E  seeds;  S = K E  nets, seeds fastest;  N  rows;  d  pixels;
C  classes;  B  rows of a batch;  H  units of a hidden layer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from symlab.constraint.measures import dead_units, effective_dimension, numerical_rank
from symlab.constraint.remove_symmetry import remove_symmetry
from symlab.data.dataset import Dataset
from symlab.protocols.stack import Stack, column
from symlab.training.order import mix

PERMUTATIONS, ORDERS, SHIFTS, PERTURBATIONS = range(4)  # streams of random numbers of one seed
RANK_RTOL = 0.01


class Net(nn.Module):
    """ReLU perceptron with two hidden layers: W ~ N(0, 2 / fan in), biases 0."""

    def __init__(self, inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, outputs)
        for layer in (self.first, self.second, self.last):
            nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.in_features), generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """[B, 2 H + C] from [B, d]: both hidden layers, and the outputs."""
        first = self.first(rows).relu()
        second = self.second(first).relu()
        return torch.cat([first, second, self.last(second)], dim=-1)

    def weights(self) -> list[Tensor]:
        """Those that it computes with, biases too."""
        layers = (self.first, self.second, self.last)
        return [t for layer in layers for t in (layer.weight, layer.bias)]


@dataclass(frozen=True)
class Arm:
    """What is done beside Adam: decay, a shift, noise on the weights at every step, shrinking at every new task.

    All sizes of random numbers are in units of 1/sqrt(fan in). `shrink` None: no shrinking; else the factor.
    """

    name: str
    settings: tuple[tuple[float, float], ...] = ((0.0, 0.0),)  # (decay, sigma of the shift; 0: none)
    noise: float = 0.0
    shrink: float | None = None
    perturb: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The sequence of tasks."""

    data: Dataset
    seeds: tuple[int, ...]
    hidden: int
    tasks: int
    epochs: int
    batch_size: int
    lr: float

    def permutation(self, seed: int, task: int) -> Tensor:
        """[d]: of the pixels, one per task and seed."""
        d = math.prod(self.data.input_shape)
        return torch.randperm(d, generator=_generator(seed, PERMUTATIONS, task))

    def images(self, task: int, test: bool) -> Tensor:
        """[E, N, d]: the rows of one task for each seed."""
        rows = (self.data.test_inputs if test else self.data.train_inputs).flatten(1)
        return torch.stack([rows[:, self.permutation(seed, task).to(rows.device)] for seed in self.seeds])

    def batches(self, task: int) -> Iterator[Tensor]:
        """[E, B]: numbers of rows, every epoch in another order, without what is left of the last batch."""
        N, B = self.data.num_train, self.batch_size
        generators = [_generator(seed, ORDERS, task) for seed in self.seeds]
        for _ in range(self.epochs):
            order = torch.stack([torch.randperm(N, generator=generator) for generator in generators])
            for start in range(0, N - B + 1, B):
                yield order[:, start : start + B]


def _generator(seed: int, stream: int, task: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(mix(mix(seed, stream), task))


@dataclass
class Learners:
    """The nets of one arm: one start per seed, Adam with coupled decay, batches that all settings share."""

    plan: Plan
    arm: Arm
    dtype: torch.dtype
    device: torch.device
    labels: list[dict[str, Any]] = field(init=False)
    alive: Tensor = field(init=False)  # [S]

    def __post_init__(self) -> None:
        self.labels = [
            {"decay": decay, "sigma": sigma, "seed": seed}
            for decay, sigma in self.arm.settings
            for seed in self.plan.seeds
        ]
        self.stack = Stack([self._net(label) for label in self.labels])
        self.adam = torch.optim.Adam(self.stack.parameters.values(), lr=self.plan.lr)
        like = next(iter(self.stack.parameters.values()))
        self.decay = column(self.labels, "decay", like)  # [S]
        self.alive = torch.ones(len(self.labels), dtype=torch.bool, device=self.device)

    def _net(self, label: Mapping[str, Any]) -> nn.Module:
        d, outputs = math.prod(self.plan.data.input_shape), self.plan.data.output_size
        net = Net(d, self.plan.hidden, outputs, torch.Generator().manual_seed(label["seed"]))
        net = net.to(self.device, self.dtype)
        if label["sigma"] == 0:
            return net
        return remove_symmetry(net, label["sigma"], generator=_generator(label["seed"], SHIFTS))

    def learn(self, task: int, stopped: Callable[[], bool]) -> Tensor | None:
        """One task; [S], the mean accuracy on batches before they are learned. None if it was stopped."""
        if self.arm.shrink is not None and task > 0:
            self._disturb(task, self.arm.shrink, self.arm.perturb)
        images, targets = self.plan.images(task, test=False), self.plan.data.train_targets
        seeds = torch.arange(len(self.plan.seeds), device=self.device)[:, None]
        right, count = torch.zeros(len(self.labels), device=self.device), 0
        for step, rows in enumerate(self.plan.batches(task)):
            if step % 50 == 0 and stopped():
                return None
            chosen = rows.to(self.device)
            labels = self._for_all(targets[chosen])  # [S, B]
            right += self._step(self._for_all(images[seeds, chosen]), labels)
            count += 1
            if self.arm.noise:
                self._disturb(task, 1.0, self.arm.noise, step)
        return right / count

    def _step(self, rows: Tensor, labels: Tensor) -> Tensor:
        """One update of Adam; [S], the accuracy before it."""
        logits = self.stack.outputs(rows, shared=False)[..., 2 * self.plan.hidden :]  # [S, B, C]
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        losses = losses.view(labels.shape).mean(1)  # [S]
        self.alive &= losses.detach().isfinite()
        parameters = self.stack.parameters
        found = torch.autograd.grad(losses.sum(), list(parameters.values()))
        for p, gradient in zip(parameters.values(), found, strict=True):
            decay = self.decay.view(-1, *[1] * (p.ndim - 1))
            p.grad = torch.addcmul(gradient, decay, p.detach())
        self.adam.step()
        return (logits.detach().argmax(-1) == labels).to(rows.dtype).mean(1)

    @torch.no_grad()
    def _disturb(self, task: int, shrink: float, noise: float, step: int = -1) -> None:
        """p <- shrink p + noise / sqrt(fan in) N(0, 1), the same draws in every setting of a seed."""
        generators = [_generator(seed, PERTURBATIONS + 1 + step, task) for seed in self.plan.seeds]
        for p in self.stack.parameters.values():
            size = noise / math.sqrt(p.shape[-1]) if p.ndim > 2 else noise
            drawn = torch.stack([torch.randn(p.shape[1:], generator=generator) for generator in generators])
            p.mul_(shrink).add_(self._for_all(drawn.to(p)), alpha=size)

    def _for_all(self, of_seeds: Tensor) -> Tensor:
        """[E, ...] -> [S, ...], the same for every setting."""
        return of_seeds.repeat(len(self.arm.settings), *[1] * (of_seeds.ndim - 1))

    @torch.no_grad()
    def measured(self, task: int, online: Tensor) -> list[dict[str, Any]]:
        """One row per net, after a task."""
        outputs = self.stack.outputs(self._for_all(self.plan.images(task, test=True)), shared=False)
        hidden, second = outputs[..., : 2 * self.plan.hidden], outputs[..., self.plan.hidden : 2 * self.plan.hidden]
        right = outputs[..., 2 * self.plan.hidden :].argmax(-1) == self.plan.data.test_targets  # [S, N]
        columns = {
            "test_accuracy": right.double().mean(1),
            "online_accuracy": online,
            "rank": numerical_rank(second, RANK_RTOL),
            "effective_dimension": effective_dimension(second),
            "dead_fraction": dead_units(hidden) / (2 * self.plan.hidden),
            "weight_norm": self._norms(),
        }
        values = {name: of_nets.tolist() for name, of_nets in columns.items()}
        return [
            {
                **{"arm": self.arm.name, "task": task + 1, **label, "diverged": not bool(self.alive[s])},
                **{name: of_nets[s] if math.isfinite(of_nets[s]) else None for name, of_nets in values.items()},
            }
            for s, label in enumerate(self.labels)
        ]

    def _norms(self) -> Tensor:
        """[S]: of all weights theta, the shift included."""
        norms = []
        for s in range(len(self.labels)):
            net = self.stack.net(s)
            assert isinstance(net, Net)
            norms.append(nn.utils.get_total_norm(net.weights()))
        return torch.stack(norms)

    def state(self) -> dict[str, Any]:
        """What `restore` needs; a copy."""
        adam = copy.deepcopy(self.adam.state_dict())
        return {"stack": self.stack.state(), "adam": adam, "alive": self.alive.clone()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same arm."""
        self.stack.restore(state["stack"])
        self.adam.load_state_dict(state["adam"])
        self.alive = state["alive"].to(self.device)
