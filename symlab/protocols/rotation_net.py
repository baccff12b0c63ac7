"""Rotation symmetry and low rank: a two-layer linear net trained on data in mini-batches."""

from __future__ import annotations

from collections.abc import Sequence

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
from symlab.protocols.matrix_forms import MATRIX, PRODUCT, RESIDUAL, Draws, targets
from symlab.protocols.rank_numbers import RankNumbers
from symlab.protocols.rank_rows import check_cut_offs
from symlab.protocols.rank_study import Arm, RankStudy, Sweep
from symlab.protocols.study import Ground, Study

ARMS = (
    Arm("U W", PRODUCT),
    Arm("U W, random start", PRODUCT, random=True),
    Arm("I + U W", RESIDUAL),
    Arm("one matrix", MATRIX),
)


def rotation_net(
    ground: Ground,
    *,
    size: int = 16,
    rows: int = 256,
    smallest: float = 0.1,
    lrs: Sequence[float] = (0.02, 0.05, 0.1),
    batches: Sequence[int] = (1, 4, 16, 256),
    decays: Sequence[float] = (0.0, 0.05, 0.15, 0.3),
    noises: Sequence[float] = (0.0, 0.5, 1.0, 2.0),
    time: float = 400.0,
    cut_off: float = 1e-3,
    cut_offs: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4),
    shown_decay: float = 0.0,
    shown_noise: float = 1.0,
    shown_batch: int = 4,
    shown_lr: float = 0.02,
) -> Study:
    """mean ||U W x_i - y_i||^2 / 2 + decay (||U||_F^2 + ||W||_F^2) / 2 over mini-batches; y_i = M x_i + noise e_i.

    Source: Ziyin (ICML 2024), rotation symmetry (settings ours). M [d, d] as in `rotation`; `rows` inputs from N(0, I),
    whitened so that their second moment is I exactly, so that the minimum has the singular values max(s - decay, 0), s
    those of the least-squares solution. Each row is drawn with replacement; a batch of `rows` or more takes all rows:
    no gradient noise. All rates run for `time` = lr x steps. Controls: I + U W, one matrix; one arm starts at random,
    the others as M.

    Raises ValueError for a value out of range.
    """
    check_whole("size", size, least=2)
    check_whole("rows", rows, least=size)
    check_share("smallest, the target's smallest singular value,", smallest)
    check_axis("lrs", lrs, positive=True)
    check_axis("batches", batches, positive=True)
    check_axis("decays", decays)
    check_axis("noises", noises)
    check_step_sizes("decays", decays, "lrs", lrs)
    check_cut_offs(cut_off, cut_offs)
    for key, value, axis, values in (
        ("shown_decay", shown_decay, "decays", decays),
        ("shown_noise", shown_noise, "noises", noises),
        ("shown_batch", shown_batch, "batches", batches),
        ("shown_lr", shown_lr, "lrs", lrs),
    ):
        check_member(key, value, axis, values)
    check_time(time, lrs)
    cells = tuple((decay, noise) for decay in decays for noise in noises)
    shown = (shown_lr, shown_batch, (shown_decay, shown_noise))
    sweep = Sweep(tuple(lrs), tuple(batches), cells, time, cut_off, tuple(cut_offs), *shown)
    title = f"Two-layer linear net, {size} x {size}, {rows} rows, lr x steps = {time:g}"
    controls = {"residual": "I + U W", "matrix": "one matrix"}
    statements = RankNumbers(size, "U W", "U W, random start", controls, ("decay", "noise", "lr", "batch"), True)

    def task(batch: int) -> Regression:
        return Regression(ground, size, rows, smallest, batch, [noise for _, noise in cells])

    return RankStudy(title, ground, sweep, ARMS, task, size, 1.0, statements)


class Regression:
    """Rows x_i, y_i = M x_i + noise e_i, per seed; what differs between cells is the noise alone.

    The gradient of the mean over a batch is (P - M) <x x^T> - noise <e x^T>, so cells share both averages.
    """

    def __init__(
        self, ground: Ground, size: int, rows: int, smallest: float, batch: int, noises: Sequence[float]
    ) -> None:
        like = torch.empty(0, dtype=ground.dtype, device=ground.device)
        self.goal = targets(ground.seeds, size, smallest, like)  # [R, d, d]
        self.noises = torch.tensor(noises, dtype=like.dtype, device=like.device)[:, None, None]  # [C, 1, 1]
        self.x, self.e = (part.to(like) for part in _drawn(ground.seeds, rows, size))  # [R, n, d]
        self.batch, self.rows = min(batch, rows), rows
        self.draws = Draws(ground.seeds, self._draw, like)

    def gradient(self, matrices: Tensor) -> Tensor:
        """[R, C, d, d] from P [R, C, d, d], of the next batch."""
        x, e = self.x, self.e
        if self.batch < self.rows:
            places = self.draws.next()[:, :, None].expand(-1, -1, x.shape[-1])  # [R, B, d]
            x, e = x.gather(1, places), e.gather(1, places)
        second, cross = x.mT @ x / self.batch, e.mT @ x / self.batch  # [R, d, d] each
        return (matrices - self.goal[:, None]) @ second[:, None] - self.noises * cross[:, None]

    def minimum_values(self, decay: Tensor) -> Tensor:
        """[R, C, d]: max(s - decay, 0), s of the least-squares solution M + noise <e x^T>."""
        cross = (self.e.mT @ self.x).double() / self.rows
        best = self.goal.double()[:, None] + self.noises.double() * cross[:, None]  # [R, C, d, d]
        return (torch.linalg.svdvals(best) - decay[:, None]).clamp(min=0)

    def _draw(self, generator: torch.Generator, steps: int) -> Tensor:
        return torch.randint(self.rows, (steps, self.batch), generator=generator)


def _drawn(seeds: tuple[int, ...], rows: int, size: int) -> tuple[Tensor, Tensor]:
    """x with <x x^T> = I and e from N(0, 1), [R, n, d] each, float64."""
    found = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(3_000_017 + seed)
        x, e = torch.randn(2, rows, size, generator=generator, dtype=torch.float64)
        root = torch.linalg.cholesky(x.T @ x / rows)
        found.append(torch.stack([torch.linalg.solve_triangular(root, x.T, upper=False).T, e]))
    x, e = torch.stack(found, 1)
    return x, e
