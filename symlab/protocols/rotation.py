"""Rotation symmetry and low rank: the factorisation of a matrix by noisy gradient descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from symlab.protocols.axis_checks import (
    check_axis,
    check_member,
    check_share,
    check_step_sizes,
    check_time,
    check_whole,
)
from symlab.protocols.matrix_forms import (
    MATRIX,
    PRODUCT,
    RESIDUAL,
    SHIFTED,
    Draws,
    Form,
    MatrixDescent,
    normal_draw,
    random_factors,
    targets,
)
from symlab.protocols.rank_rows import check_cut_offs, rank_columns, rank_names
from symlab.protocols.rotation_numbers import NUMBERS, rotation_numbers
from symlab.protocols.study import Ground, Number, Row, Study, Tables, Watch

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Arm:
    """A form of P, where it starts (at the target, or random), and whether the noise is on the labels or on weights."""

    name: str
    form: Form
    random: bool = False
    on_weights: bool = False


ARMS = (
    Arm("U W", PRODUCT),
    Arm("U W, random start", PRODUCT, random=True),
    Arm("U W, noise on the weights", PRODUCT, on_weights=True),
    Arm("I + U W", RESIDUAL),
    Arm("(I + U)(I + W)", SHIFTED),
    Arm("one matrix", MATRIX),
)
SHOWN_ARMS = ("U W", "U W, random start", "I + U W")
"""Of the table history."""


def rotation(
    ground: Ground,
    *,
    size: int = 16,
    smallest: float = 0.1,
    lrs: Sequence[float] = (0.02, 0.05, 0.1, 0.2),
    decays: Sequence[float] = (0.0, 0.02, 0.05, 0.15, 0.3, 0.6),
    noises: Sequence[float] = (0.0, 0.1, 0.2, 0.4, 0.8),
    time: float = 600.0,
    records: int = 12,
    cut_off: float = 1e-3,
    cut_offs: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4),
    shown_decay: float = 0.0,
    shown_noise: float = 0.4,
    shown_lr: float = 0.1,
) -> Study:
    """L(P) = ||P - M||_F^2 / 2 + decay (||U||_F^2 + ||W||_F^2) / 2 of P = U W by gradient descent with noise.

    Source: Ziyin (ICML 2024), rotation symmetry (U, W) -> (U R^T, R W), Figure 1 (settings ours). The target M [d, d],
    d = `size`, has singular values from 1 to `smallest`, geometric (1: flat). Label noise: each step sees M + noise E,
    E of independent N(0, 1), so the gradient noise vanishes with U and W; the arm "noise on the weights" adds noise of
    that size to the gradients of U and W instead, which knows no symmetry. Without noise the minimum has the singular
    values max(s - decay, 0): decay on both factors is the nuclear norm of P.

    All rates run for `time` = lr x steps, and P starts at the target (in one arm at random), so low rank is never "not
    yet learned". Controls: the residual connection I + U W, (I + U)(I + W), one matrix. `cut_off`: of the rank, over
    the target's largest singular value; `cut_offs`: further ones. Table phase holds the rows with `shown_noise`, table
    noise those with `shown_decay`; history has `records` times at `shown_decay` and `shown_lr`, without noise and with
    `shown_noise`.

    Raises ValueError for a value out of range.
    """
    check_whole("size", size, least=2)
    check_whole("records", records, least=2)
    check_share("smallest, the target's smallest singular value,", smallest)
    check_axis("lrs", lrs, positive=True)
    check_axis("decays", decays)
    check_axis("noises", noises)
    check_cut_offs(cut_off, cut_offs)
    check_member("shown_decay", shown_decay, "decays", decays)
    check_member("shown_noise", shown_noise, "noises", noises)
    check_member("shown_lr", shown_lr, "lrs", lrs)
    check_step_sizes("decays", decays, "lrs", lrs)
    check_time(time, lrs)
    grid = [(decay, noise) for decay in decays for noise in noises]
    shown = (shown_lr, shown_decay, shown_noise)
    return RotationStudy(ground, size, smallest, tuple(lrs), grid, time, records, cut_off, tuple(cut_offs), shown)


@dataclass(frozen=True)
class RotationStudy:
    """One part per arm and rate; all seeds, decays and noises of a part side by side."""

    ground: Ground
    size: int
    smallest: float
    lrs: tuple[float, ...]
    grid: list[tuple[float, float]]  # decay, noise
    time: float
    records: int
    cut_off: float
    cut_offs: tuple[float, ...]
    shown: tuple[float, float, float]  # lr, decay, noise

    @property
    def title(self) -> str:
        """What was run."""
        return (
            f"Matrix factorisation, {self.size} x {self.size}, target's singular values 1 to {self.smallest:g}, "
            f"lr x steps = {self.time:g}"
        )

    @property
    def figures(self) -> Mapping[str, str]:
        """The tables are metrics, phase (noise = shown_noise), noise (decay = shown_decay), shrinkage and history."""
        return {
            "phase": "phase",
            "noise": "noise",
            "noise_lines": "noise",
            "decay_lines": "shrinkage",
            "history": "history",
        }

    @property
    def references(self) -> Mapping[str, float]:
        """The full rank."""
        return {"full rank": float(self.size)}

    def parts(self) -> Sequence[str]:
        """Arm and rate."""
        return [f"{arm.name}, lr {lr:g}" for arm in ARMS for lr in self.lrs]

    def run(self, part: str, watch: Watch) -> Tables | None:
        """Rows of one arm at one rate."""
        arm, lr = ARMS[self.parts().index(part) // len(self.lrs)], self.lrs[self.parts().index(part) % len(self.lrs)]
        descent, goal = self._start(arm, lr)
        steps = round(self.time / lr)
        at = sorted({max(1, round(steps * 2.0 ** -(k / 2))) for k in range(self.records - 1)} | {steps // 2})
        draws = Draws(self.ground.seeds, normal_draw(2, self.size, self.size), goal)
        done, history, half = 0, self._history(arm, lr, 0, descent), list[Row]()
        if (kept := watch.saved()) is not None:
            descent.restore(kept["descent"])
            draws.restore(kept["draws"])
            done, history, half = kept["step"], list(kept["history"]), kept["half"]
        for step in range(done, steps):
            if step % 256 == 0:
                stop = watch.stopped()
                if stop or watch.due():
                    own = {"descent": descent.state(), "draws": draws.state()}
                    watch.save({**own, "step": step, "history": list(history), "half": half})
                if stop:
                    return None
            self._step(arm, descent, goal, draws)
            if step + 1 == steps // 2:
                half = self._rows(arm, lr, descent)
            if step + 1 in at:
                history += self._history(arm, lr, step + 1, descent)
        return {"history": history} | self._final(arm, lr, descent, goal, half)

    def number_names(self) -> Sequence[str]:
        """See `rotation_numbers`."""
        return NUMBERS

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """See `rotation_numbers`."""
        return rotation_numbers(tables["metrics"], self.size, self.shown[1], rank_names(self.cut_offs))

    def _start(self, arm: Arm, lr: float) -> tuple[MatrixDescent, Tensor]:
        """The stack [R C, d, d], seeds slow, cells (decay, noise) fast; and the targets [R, 1, d, d]."""
        like = torch.empty(0, dtype=self.ground.dtype, device=self.ground.device)
        goal = targets(self.ground.seeds, self.size, self.smallest, like)  # [R, d, d]
        factors = random_factors(self.ground.seeds, self.size, arm.form, like) if arm.random else arm.form.factors(goal)
        u, w = (factor.repeat_interleave(len(self.grid), 0) for factor in factors)  # [R C, d, d]
        decay = torch.tensor([decay for decay, _ in self.grid] * len(goal), dtype=like.dtype, device=like.device)
        return MatrixDescent(arm.form, (u, w), lr, decay), goal[:, None]

    def _step(self, arm: Arm, descent: MatrixDescent, goal: Tensor, draws: Draws) -> None:
        sizes = torch.tensor([noise for _, noise in self.grid], dtype=goal.dtype, device=goal.device)[:, None, None]
        e = draws.next()[:, :, None] * sizes  # [R, 2, C, d, d]
        seen = goal.expand(-1, len(self.grid), -1, -1) if arm.on_weights else goal + e[:, 0]  # [R, C, d, d]
        kicks = (e[:, 0].flatten(0, 1), e[:, 1].flatten(0, 1)) if arm.on_weights else None
        descent.step(descent.matrix() - seen.flatten(0, 1), kicks)

    def _rows(self, arm: Arm, lr: float, descent: MatrixDescent) -> list[Row]:
        """One row per seed, decay and noise, in the order of the stack."""
        matrices, live = descent.measured()
        columns = rank_columns(matrices, live, 1.0, self.cut_off, self.cut_offs)
        settings = [(seed, *cell) for seed in self.ground.seeds for cell in self.grid]
        alive = live.tolist()
        return [
            {"arm": arm.name, "lr": lr, "decay": decay, "noise": noise, "seed": seed, "diverged": not alive[i]}
            | {name: column[i] for name, column in columns.items()}
            for i, (seed, decay, noise) in enumerate(settings)
        ]

    def _history(self, arm: Arm, lr: float, step: int, descent: MatrixDescent) -> list[Row]:
        """What is shown over time, `line` for line."""
        if lr != self.shown[0] or arm.name not in SHOWN_ARMS:
            return []
        rows = [row for row in self._rows(arm, lr, descent) if row["decay"] == self.shown[1]]
        rows = [row for row in rows if row["noise"] in (0, self.shown[2])]
        return [{"time": step * lr, "step": step, "line": f"{arm.name}, noise {row['noise']:g}"} | row for row in rows]

    def _final(self, arm: Arm, lr: float, descent: MatrixDescent, goal: Tensor, half: list[Row]) -> Tables:
        """Rows at the end; the closed form beside those without noise."""
        rows = self._rows(arm, lr, descent)
        gaps = self._soft_threshold_gaps(descent, goal)
        for row, before, gap in zip(rows, half, gaps, strict=True):
            plain = arm.form is PRODUCT and row["noise"] == 0 and not row["diverged"]
            row |= {"rank_at_half_time": before["rank"], "soft_threshold_gap": gap if plain else None}
        quiet = [{"arm": arm.name} | row for row in rows if row["noise"] == 0 and not arm.on_weights and not arm.random]
        closed = self._closed_form(goal) if arm is ARMS[0] and lr == self.lrs[0] else []
        names = ("arm", "lr", "decay", "seed", "diverged", "rank")
        return {
            "metrics": rows,
            "phase": [row for row in rows if row["noise"] == self.shown[2]],
            "noise": [row for row in rows if row["decay"] == self.shown[1]],
            "shrinkage": [{name: row[name] for name in names} for row in [*quiet, *closed]],
        }

    def _thresholded(self, goal: Tensor) -> Tensor:
        """[R C, d]: max(s - decay, 0), descending."""
        values = torch.linalg.svdvals(goal[:, 0].double())  # [R, d]
        decay = torch.tensor([decay for decay, _ in self.grid], dtype=values.dtype, device=values.device)
        return (values[:, None] - decay[:, None]).clamp(min=0).flatten(0, 1)

    def _soft_threshold_gaps(self, descent: MatrixDescent, goal: Tensor) -> list[float]:
        """[R C]: max_i |s_i(P) - max(s_i - decay, 0)|."""
        values = torch.linalg.svdvals(descent.measured()[0].double())
        return (values - self._thresholded(goal)).abs().amax(1).tolist()

    def _closed_form(self, goal: Tensor) -> list[dict[str, Any]]:
        """#{i: max(s_i - decay, 0) > cut_off}, as an arm of its own."""
        counts = (self._thresholded(goal) > self.cut_off).sum(1).tolist()
        settings = [(seed, *cell) for seed in self.ground.seeds for cell in self.grid]
        return [
            {"arm": "closed form", "lr": None, "decay": decay, "seed": seed, "diverged": False, "rank": float(count)}
            for (seed, decay, noise), count in zip(settings, counts, strict=True)
            if noise == self.grid[0][1]
        ]
