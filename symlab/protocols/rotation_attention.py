"""Rotation symmetry and low rank: the product W_Q W_K^T of an attention head, on a matching task."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from symlab.protocols.axis_checks import (
    check_axis,
    check_member,
    check_positive,
    check_share,
    check_step_sizes,
    check_time,
    check_whole,
)
from symlab.protocols.matrix_forms import MATRIX, PRODUCT, Draws, targets
from symlab.protocols.rank_numbers import RankNumbers
from symlab.protocols.rank_rows import check_cut_offs
from symlab.protocols.rank_study import Arm, RankStudy, Sweep
from symlab.protocols.study import Ground, Study

ARMS = (
    Arm("W_Q W_K^T", PRODUCT),
    Arm("W_Q W_K^T, random start", PRODUCT, random=True),
    Arm("one matrix", MATRIX),
)


def rotation_attention(
    ground: Ground,
    *,
    size: int = 16,
    keys: int = 8,
    scale: float = 4.0,
    smallest: float = 0.1,
    lrs: Sequence[float] = (0.1, 0.3, 1.0),
    batches: Sequence[int] = (4, 16, 64),
    decays: Sequence[float] = (0.0, 0.003, 0.01, 0.03, 0.1),
    time: float = 600.0,
    cut_off: float = 1e-3,
    cut_offs: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4),
    shown_batch: int = 16,
    shown_lr: float = 0.3,
) -> Study:
    """Cross-entropy of the key that a query attends to, scores x^T W_Q W_K^T z_k / sqrt(d), with decay on both factors.

    Source: Ziyin (ICML 2024), rotation symmetry (W_Q, W_K) -> (W_Q R, W_K R) of attention (toy task and settings ours).
    Queries x and `keys` keys z_k from N(0, I_d), new ones in each step; the right key is drawn from the softmax of the
    scores of a full-rank matrix A, singular values from `scale` to smallest scale. Without decay the minimum is A.
    Batches are the gradient noise. Control: one matrix P for W_Q W_K^T with the same decay, without the symmetry.
    All rates run for `time` = lr x steps; one arm starts at random, the others as A.

    Raises ValueError for a value out of range.
    """
    check_whole("size", size, least=2)
    check_whole("keys", keys, least=2)
    check_positive("scale, the largest singular value of the teacher,", scale)
    check_share("smallest, of the teacher's singular values over the largest,", smallest)
    check_axis("lrs", lrs, positive=True)
    check_axis("batches", batches, positive=True)
    check_axis("decays", decays)
    check_step_sizes("decays", decays, "lrs", lrs)
    check_cut_offs(cut_off, cut_offs)
    check_member("shown_batch", shown_batch, "batches", batches)
    check_member("shown_lr", shown_lr, "lrs", lrs)
    check_time(time, lrs)
    cells = tuple((decay, 0.0) for decay in decays)
    shown = (shown_lr, shown_batch, (decays[0], 0.0))
    sweep = Sweep(tuple(lrs), tuple(batches), cells, time, cut_off, tuple(cut_offs), *shown)
    title = f"Attention scores, {size} x {size}, {keys} keys, lr x steps = {time:g}"
    statements = RankNumbers(
        size, ARMS[0].name, ARMS[1].name, {"matrix": "one matrix"}, ("decay", "lr", "batch"), False
    )
    return RankStudy(
        title,
        ground,
        sweep,
        ARMS,
        lambda batch: Matching(ground, size, keys, scale, smallest, batch),
        size,
        scale,
        statements,
    )


class Matching:
    """Queries, keys and the key that is right, new in each step; all cells of a seed see the same.

    Legend: B  queries of a batch;  K  keys.
    """

    def __init__(self, ground: Ground, size: int, keys: int, scale: float, smallest: float, batch: int) -> None:
        like = torch.empty(0, dtype=ground.dtype, device=ground.device)
        self.goal = scale * targets(ground.seeds, size, smallest, like)  # [R, d, d]
        self.size, self.keys, self.batch = size, keys, batch
        self.draws = Draws(ground.seeds, self._draw, like, block=16)

    def gradient(self, matrices: Tensor) -> Tensor:
        """mean_b x_b (sum_k (softmax_k - right_k) z_bk)^T / sqrt(d), [R, C, d, d] from P [R, C, d, d]."""
        drawn = self.draws.next()  # [R, B, (K + 1) d + 1]
        x, chance = drawn[..., : self.size], drawn[..., -1:]  # [R, B, d], [R, B, 1]
        z = drawn[..., self.size : -1].unflatten(-1, (self.keys, self.size))  # [R, B, K, d]
        teacher = self._attention(self.goal[:, None], x, z)[:, 0]  # [R, B, K]
        right = (teacher.cumsum(-1) < chance).sum(-1).clamp(max=self.keys - 1)  # [R, B]
        wrong = self._attention(matrices, x, z) - one_hot(right, self.keys)[:, None]  # [R, C, B, K]
        pulled = torch.einsum("rcbk,rbkd->rcbd", wrong, z)  # [R, C, B, d]
        return x.mT[:, None] @ pulled / (self.batch * self.size**0.5)

    def minimum_values(self, decay: Tensor) -> None:
        """No closed form."""

    def _attention(self, matrices: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """[R, C, B, K]: softmax over the keys."""
        queries = x[:, None] @ matrices  # [R, C, B, d]
        return (torch.einsum("rcbd,rbkd->rcbk", queries, z) / self.size**0.5).softmax(-1)

    def _draw(self, generator: torch.Generator, steps: int) -> Tensor:
        """[steps, B, (K + 1) d + 1]: query and keys from N(0, 1), and a chance from [0, 1)."""
        normal = torch.randn(steps, self.batch, (self.keys + 1) * self.size, generator=generator)
        return torch.cat([normal, torch.rand(steps, self.batch, 1, generator=generator)], -1)
