"""Ways to write one square matrix P in parameters, with and without the rotation symmetry (U, W) -> (U R^T, R W).

U W has the symmetry and its fixed point at P = 0 in every hidden direction; I + U W has it too, but its fixed point is
P = I, of full rank; (I + U)(I + W) is U W in shifted coordinates: the loss alone still has the symmetry, decay towards
U = W = 0 has not; one matrix P has none.

Legend: S  matrices, any leading dimensions;  d  their size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Factors = tuple[Tensor, Tensor]
"""U and W, [S, d, d] each."""


@dataclass(frozen=True)
class Form:
    """P = `matrix(U, W)`; `pull(G, U, W)` takes the gradient G = dL/dP to (dL/dU, dL/dW); `factors(P)` inverts it.

    `factors` chooses, of all factors, balanced ones (U^T U = W W^T of what is multiplied) of least norm.
    """

    name: str
    matrix: Callable[[Tensor, Tensor], Tensor]
    pull: Callable[[Tensor, Tensor, Tensor], Factors]
    factors: Callable[[Tensor], Factors]


def eye_like(p: Tensor) -> Tensor:
    """[d, d]: the identity that goes with p [S, d, d]."""
    return torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)


def balanced(p: Tensor) -> Factors:
    """U = A s^(1/2), W = s^(1/2) B^T from the singular values p = A s B^T: U W = p."""
    left, values, right = torch.linalg.svd(p)  # [S, d, d], [S, d], [S, d, d]
    root = values.sqrt()
    return left * root[..., None, :], root[..., None] * right


def _shifted_factors(p: Tensor) -> Factors:
    """U and W of least norm among the balanced ones: (A s^(1/2) R^T - I, R s^(1/2) B^T - I), R a rotation."""
    u, w = balanced(p)
    left, _, right = torch.linalg.svd(u + w.mT)
    turn = left @ right  # the polar factor: of all R the largest <R, U> + <R, W^T>
    return u @ turn.mT - eye_like(p), turn @ w - eye_like(p)


PRODUCT = Form("U W", lambda u, w: u @ w, lambda g, u, w: (g @ w.mT, u.mT @ g), balanced)
RESIDUAL = Form(
    "I + U W",
    lambda u, w: eye_like(u) + u @ w,
    lambda g, u, w: (g @ w.mT, u.mT @ g),
    lambda p: balanced(p - eye_like(p)),
)
SHIFTED = Form(
    "(I + U)(I + W)",
    lambda u, w: (eye_like(u) + u) @ (eye_like(w) + w),
    lambda g, u, w: (g @ (eye_like(w) + w).mT, (eye_like(u) + u).mT @ g),
    _shifted_factors,
)
MATRIX = Form(
    "one matrix",
    lambda u, w: u,
    lambda g, u, w: (g, torch.zeros_like(w)),
    lambda p: (p, torch.zeros_like(p)),
)
FORMS: Mapping[str, Form] = {form.name: form for form in (PRODUCT, RESIDUAL, SHIFTED, MATRIX)}


class MatrixDescent:
    """U <- U - lr (dL/dU + decay U + kick), W alike: SGD on S matrices of one form side by side, each its own decay.

    What is no longer finite stays where it was and is no longer `alive` [S].
    """

    def __init__(self, form: Form, factors: Factors, lr: float, decay: Tensor) -> None:
        self.form, self.lr = form, lr
        self.u, self.w = (factor.clone() for factor in factors)
        self.shrink = (1 - lr * decay)[:, None, None]  # [S, 1, 1]
        self.alive = torch.ones(len(decay), dtype=torch.bool, device=decay.device)

    def matrix(self) -> Tensor:
        """P [S, d, d]."""
        return self.form.matrix(self.u, self.w)

    def measured(self) -> tuple[Tensor, Tensor]:
        """P [S, d, d], zeros where it diverged, and where not [S]: finite factors can have an infinite product."""
        p = self.matrix()
        live = self.alive & p.flatten(1).isfinite().all(1)
        return torch.where(live[:, None, None], p, torch.zeros_like(p)), live

    def step(self, gradient: Tensor, kicks: Factors | None = None) -> None:
        """One update from dL/dP [S, d, d]; `kicks` are added to the gradients of U and W."""
        along_u, along_w = self.form.pull(gradient, self.u, self.w)
        if kicks is not None:
            along_u, along_w = along_u + kicks[0], along_w + kicks[1]
        u, w = self.shrink * self.u - self.lr * along_u, self.shrink * self.w - self.lr * along_w
        self.alive = self.alive & (u + w).sum((1, 2)).isfinite()
        live = self.alive[:, None, None]
        self.u, self.w = torch.where(live, u, self.u), torch.where(live, w, self.w)

    def state(self) -> dict[str, Tensor]:
        """What `restore` needs."""
        return {"u": self.u, "w": self.w, "alive": self.alive}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state` of the same stack."""
        self.u, self.w, self.alive = (state[name].to(self.u.device) for name in ("u", "w", "alive"))


class Draws:
    """One random stream per seed, the same whatever other seeds there are: `next()` is [R, *shape] for R seeds.

    `draw(generator, steps)` gives [steps, *shape] on the CPU; numbers come in blocks of `block` steps.
    """

    def __init__(
        self, seeds: tuple[int, ...], draw: Callable[[torch.Generator, int], Tensor], like: Tensor, block: int = 64
    ) -> None:
        self.generators = [torch.Generator().manual_seed(2_000_003 + seed) for seed in seeds]
        self.draw, self.like, self.block = draw, like, block
        self.at, self.kept = block, torch.empty(0)

    def next(self) -> Tensor:
        """The numbers of one more step; floating ones in the dtype of `like`, all on its device."""
        if self.at == self.block:
            drawn = torch.stack([self.draw(generator, self.block) for generator in self.generators], 1)
            kind = self.like.dtype if drawn.is_floating_point() else drawn.dtype
            self.kept, self.at = drawn.to(self.like.device, kind), 0
        self.at += 1
        return self.kept[self.at - 1]

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {"streams": [g.get_state() for g in self.generators], "kept": self.kept, "at": self.at}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same seeds and draws."""
        for generator, stream in zip(self.generators, state["streams"], strict=True):
            generator.set_state(stream.cpu())
        self.kept, self.at = state["kept"].to(self.like.device), state["at"]


def normal_draw(*shape: int) -> Callable[[torch.Generator, int], Tensor]:
    """N(0, 1) of this shape, for `Draws`."""
    return lambda generator, steps: torch.randn(steps, *shape, generator=generator)


def targets(seeds: tuple[int, ...], size: int, smallest: float, like: Tensor) -> Tensor:
    """[R, d, d]: A s B^T with singular values s_i = smallest^((i - 1) / (d - 1)) from 1 down, A and B random rotations.

    `smallest` = 1 is a flat spectrum.
    """
    values = smallest ** torch.linspace(0, 1, size, dtype=torch.float64)
    found = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        draws = torch.randn(2, size, size, generator=generator, dtype=torch.float64)
        left, right = torch.linalg.qr(draws)[0]
        found.append(left * values @ right.T)
    return torch.stack(found).to(like.device, like.dtype)


def random_factors(seeds: tuple[int, ...], size: int, form: Form, like: Tensor) -> Factors:
    """U and W from N(0, 1 / d) [R, d, d], as for layers; of one matrix, their product; of the shifted form, less I."""
    found = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(1_000_003 + seed)
        found.append(torch.randn(2, size, size, generator=generator) * size**-0.5)
    u, w = torch.stack(found, 1).to(like.device, like.dtype)  # [R, d, d] each
    return form.factors(u @ w) if form in (SHIFTED, MATRIX) else (u, w)
