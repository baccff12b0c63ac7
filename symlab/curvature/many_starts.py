"""Gradient descent from many starting points at once: the path, and what a smooth enough loss promises about it.

Legend: S  starts;  P  trainable weights of one net;  L  mean loss over all rows;  g  its gradient.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from symlab.curvature.mean_loss import Loss, differentiable

ROUNDING = 1e-12
"""A loss that rises by more than this times (1 + L) has risen."""


@dataclass(frozen=True)
class Vectors:
    """The trainable weights of a model as one vector [P], parameters in the model's order."""

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, model: nn.Module) -> "Vectors":
        return cls({name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad})

    @property
    def size(self) -> int:
        """P."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def slices(self) -> dict[str, slice]:
        """Where each parameter stands in the vector."""
        found, end = {}, 0
        for name, shape in self.shapes.items():
            start, end = end, end + torch.Size(shape).numel()
            found[name] = slice(start, end)
        return found

    def read(self, model: nn.Module) -> Tensor:
        """A copy of the model's weights [P]."""
        own = dict(model.named_parameters())
        return torch.cat([own[name].detach().reshape(-1) for name in self.shapes])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Parameters [*shape] from [P], sharing its memory."""
        return {name: vector[part].reshape(self.shapes[name]) for name, part in self.slices().items()}

    @torch.no_grad()
    def write(self, model: nn.Module, vector: Tensor) -> None:
        """Put the weights [P] into the model."""
        own = dict(model.named_parameters())
        for name, values in self.unflatten(vector).items():
            own[name].copy_(values)


@dataclass
class ManyStarts:
    """theta_{t+1} = theta_t - lr g(theta_t) of S nets of one form, on all rows, each apart from the others.

    A start whose loss, gradient or weights are no longer finite stays where it was, and is no longer `alive`. What is
    kept since the start, or since the last `forget`: see the fields.
    """

    model: nn.Module  # gives the form, the mode and the buffers
    inputs: Tensor
    targets: Tensor
    loss: Loss
    lr: float
    weights: Tensor  # [S, P]
    step: int = 0
    losses: Tensor = field(init=False)  # [S], at the present weights
    gradients: Tensor = field(init=False)  # [S, P]
    alive: Tensor = field(init=False)  # [S]
    rises: Tensor = field(init=False)  # [S], updates that made the loss larger by more than ROUNDING, since the start
    largest_rise: Tensor = field(init=False)  # [S], largest L_{t+1} - L_t since the start, at least 0
    lipschitz: Tensor = field(init=False)  # [S], largest |g_{t+1} - g_t| / |theta_{t+1} - theta_t| since `forget`

    def __post_init__(self) -> None:
        self.rises, self.largest_rise, self.alive = self._each(0), self._each(0.0), self._each(True)
        self.losses, self.gradients = self._evaluate()
        self.alive &= self._finite(self.losses, self.gradients)
        self.forget()

    def forget(self) -> None:
        """Start `lipschitz` anew."""
        self.lipschitz = self._each(0.0)

    def advance(self) -> None:
        """One update of every start that is alive."""
        before = self.weights, self.losses, self.gradients
        moves = torch.where(self.alive[:, None], -self.lr * self.gradients, 0.0)  # [S, P]
        self.weights = self.weights + moves
        self.losses, self.gradients = self._evaluate()
        ended = self.alive & ~self._finite(self.losses, self.gradients)
        self.alive = self.alive & ~ended
        live = self.alive
        rise = torch.where(live, self.losses - before[1], 0.0)
        self.rises += rise > ROUNDING * (1 + before[1].abs())
        self.largest_rise = torch.maximum(self.largest_rise, rise)
        ratio = (self.gradients - before[2]).norm(dim=1) / moves.norm(dim=1)
        self.lipschitz = torch.where(live & ratio.isfinite(), torch.maximum(self.lipschitz, ratio), self.lipschitz)
        self.weights, self.losses, self.gradients = (
            torch.where(live.view(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip((self.weights, self.losses, self.gradients), before, strict=True)
        )
        self.step += 1

    def state(self) -> dict[str, Tensor | int]:
        """What a later process needs to go on exactly."""
        kept = {name: getattr(self, name) for name in ("weights", "alive", "rises", "largest_rise", "lipschitz")}
        return {"step": self.step, **kept}

    def restore(self, state: Mapping[str, Tensor | int]) -> None:
        """Go on from a `state` of the same starts."""
        for name, value in state.items():
            setattr(self, name, value.to(self.weights.device) if isinstance(value, Tensor) else value)
        self.losses, self.gradients = self._evaluate()

    def _each(self, value: float | bool) -> Tensor:
        """[S], `value` for every start, where the weights are: int64, float64 or bool, as it is."""
        kinds = {int: torch.int64, float: torch.float64, bool: torch.bool}
        return torch.full((len(self.weights),), value, dtype=kinds[type(value)], device=self.weights.device)

    def _finite(self, losses: Tensor, gradients: Tensor) -> Tensor:
        return losses.isfinite() & gradients.isfinite().all(1) & self.weights.isfinite().all(1)

    def _evaluate(self) -> tuple[Tensor, Tensor]:
        """L [S] and g [S, P] at the present weights."""
        vectors, loss = Vectors.of(self.model), differentiable(self.loss)
        fixed = {name: p.detach() for name, p in self.model.named_parameters() if not p.requires_grad}
        fixed |= dict(self.model.named_buffers())

        def value(vector: Tensor) -> Tensor:
            return loss(
                functional_call(self.model, {**vectors.unflatten(vector), **fixed}, (self.inputs,)), self.targets
            )

        gradients, losses = vmap(grad_and_value(value))(self.weights)
        return losses, gradients
