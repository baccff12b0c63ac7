"""Rescaling symmetry and sparsity: linear regression with w = u v, by stochastic gradient descent with decay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from symlab.constraint.measures import zero_fraction
from symlab.protocols.axis_checks import (
    check_axis,
    check_lasso,
    check_member,
    check_not_negative,
    check_positive,
    check_step_sizes,
    check_whole,
)
from symlab.protocols.rescaling_numbers import NAMES, rescaling_numbers, shown_tables
from symlab.protocols.sparse_regression import Plain, Product, SparseRegression, gradients, sparse_regression
from symlab.protocols.study import Ground, Number, Row, Study, Tables, Watch

if TYPE_CHECKING:
    import pandas

ARMS = (Product, Plain)
LASSO = "lasso"
CONVERGED_LR = 0.05
"""Of gradient descent on all rows, in float64, that is compared with the lasso."""
ASK_EVERY = 500
"""Updates between two questions whether to stop."""
BLOWN_UP = 10.0
"""A loss above this many times that of w = 0 counts as diverged, as one that is not finite does."""


def rescaling(
    ground: Ground,
    *,
    rows: int = 400,
    columns: int = 100,
    nonzero: int = 20,
    noise: float = 0.5,
    init: float = 0.3,
    lrs: Sequence[float] = (0.01, 0.02, 0.05, 0.1, 0.2),
    decays: Sequence[float] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    batch_sizes: Sequence[int] = (8, 16, 32, 64, 128, 400),
    time: float = 1000.0,
    threshold: float = 1e-4,
    shown_lr: float = 0.05,
    shown_decay: float = 0.03,
    shown_batch_size: int = 32,
    lasso: bool = True,
    lasso_updates: int = 40_000,
) -> Study:
    """(1 / B) sum (x . (u v) - y)^2 + (decay / 2) (||u||^2 + ||v||^2) by SGD; control: w in place of u v, equal decay.

    Source: Ziyin (ICML 2024), rescaling symmetry (u, w) -> (rho u, w / rho), Figure 1 (settings ours); spred (ICML
    2023): the minimum over u v = w of the decay is decay |w|, so without noise the solution is the lasso's with
    alpha = decay / 2. y = X w* + noise with `nonzero` of `columns` weights not 0, u, v ~ N(0, init^2) at the start; the
    control starts at w = u v and sees the same batches. All rates run for `time` = lr x updates; a column says what
    was there after the updates of the largest rate, which is the comparison at equal updates. A weight counts as zero
    if |w| <= threshold; columns say the same for 10 and 1/10 of it. risk is ||w - w*||^2.

    metrics has lr x decay at `shown_batch_size`, table batch the batch sizes at `shown_lr`; decay and rate are the rows
    of metrics with `shown_lr`, and of u v with any decay; lasso is gradient descent on all rows (lr 0.05,
    `lasso_updates`, float64) beside scikit-learn's lasso, if `lasso`.

    Raises ValueError for a value out of range, and for `lasso` without scikit-learn.
    """
    for key, value in {"rows": rows, "columns": columns, "nonzero": nonzero, "lasso_updates": lasso_updates}.items():
        check_whole(key, value, least=1)
    if not nonzero <= columns:
        raise ValueError(f"nonzero must be at most columns={columns}, got {nonzero}")
    for key, number in {"init": init, "time": time, "threshold": threshold}.items():
        check_positive(key, number)
    check_not_negative("noise", noise)
    for key, axis in {"lrs": lrs, "decays": decays, "batch_sizes": batch_sizes}.items():
        check_axis(key, axis, positive=True)
    check_step_sizes("decays", decays, "lrs", lrs)
    if not max(batch_sizes) <= rows:
        raise ValueError(f"batch_sizes must be at most rows={rows}, got {max(batch_sizes)}")
    if not time >= max(lrs):
        raise ValueError(f"time = lr x updates must be at least one update of the largest lr, {max(lrs)}, got {time}")
    check_member("shown_lr", shown_lr, "lrs", lrs)
    check_member("shown_decay", shown_decay, "decays", decays)
    check_member("shown_batch_size", shown_batch_size, "batch_sizes", batch_sizes)
    check_lasso(lasso)
    like = torch.empty((), dtype=ground.dtype, device=ground.device)
    problem = sparse_regression(ground.seeds, like, rows=rows, columns=columns, nonzero=nonzero, noise=noise, init=init)
    grid = Sweep(tuple(lrs), tuple(decays), tuple(batch_sizes), time, threshold)
    return RescalingStudy(
        problem, grid, nonzero, shown_lr, shown_decay, shown_batch_size, lasso_updates if lasso else 0
    )


@dataclass(frozen=True)
class Sweep:
    """What is swept, for how long, and what counts as zero."""

    lrs: tuple[float, ...]
    decays: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    time: float
    threshold: float

    def updates(self, lr: float) -> int:
        """Of one rate."""
        return max(round(self.time / lr), 1)


@dataclass(frozen=True)
class RescalingStudy:
    """One part per arm, rate and batch size; all seeds and decays of a part side by side."""

    problem: SparseRegression
    sweep: Sweep
    nonzero: int
    shown_lr: float
    shown_decay: float
    shown_batch_size: int
    lasso_updates: int  # 0: no comparison with the lasso

    @property
    def title(self) -> str:
        """What was run."""
        rows, columns = self.problem.inputs.shape[1:]
        return (
            f"Linear regression, {rows} rows, {self.nonzero} of {columns} weights, lr x updates = {self.sweep.time:g}"
        )

    @property
    def figures(self) -> Mapping[str, str]:
        """Heat map, lines over decay (zeros, risk), over lr and batch size, and the lasso's path."""
        own = {"phase": "metrics", "decay": "decay", "risk": "decay", "rate": "rate", "batch": "batch"}
        return own | ({"lasso": LASSO} if self.lasso_updates else {})

    @property
    def references(self) -> Mapping[str, float]:
        """The truth's zeros."""
        return {"zeros of the truth": 1 - self.nonzero / self.problem.inputs.shape[2]}

    @cached_property
    def _plan(self) -> Mapping[str, tuple[type[Product] | type[Plain], float, int]]:
        """Part -> arm, rate, batch size; u v and its control one after the other."""
        shown = self.shown_batch_size
        settings = [(lr, shown) for lr in reversed(self.sweep.lrs)]
        settings += [(self.shown_lr, size) for size in self.sweep.batch_sizes if size != shown]
        return {f"{arm.name}, lr {lr:g}, batch size {size}": (arm, lr, size) for lr, size in settings for arm in ARMS}

    def parts(self) -> Sequence[str]:
        """Arm, rate and batch size."""
        return [*self._plan, *([LASSO] if self.lasso_updates else [])]

    def run(self, part: str, watch: Watch) -> Tables | None:
        """Rows of one arm at one rate and batch size, all decays and seeds."""
        if part == LASSO:
            return self._lasso_rows(watch)
        arm, lr, size = self._plan[part]
        found = self._descend(arm, lr, size, watch)
        if found is None:
            return None
        rows = list(self._rows(arm.name, lr, size, *found))
        return shown_tables(rows, arm.name, lr == self.shown_lr, size == self.shown_batch_size, self.shown_decay)

    def number_names(self) -> Sequence[str]:
        """See `rescaling_numbers`."""
        return [name for name in NAMES if self.lasso_updates or not name.startswith(LASSO)]

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """The statements, each with its spread over seeds."""
        shown = (self.shown_lr, self.shown_decay)
        slack = 1 / self.problem.inputs.shape[2]
        return rescaling_numbers(tables, self.problem.seeds, shown, slack, self.lasso_updates > 0)

    def _descend(
        self, arm: type[Product] | type[Plain], lr: float, size: int, watch: Watch
    ) -> tuple[Tensor, Tensor] | None:
        """Weights [E, K, d] at the end, and after the updates of the largest rate."""
        like = self.problem.inputs
        decays = torch.tensor(self.sweep.decays, dtype=like.dtype, device=like.device)
        descent = arm(self.problem, torch.full_like(decays, lr), decays)
        last, early = self.sweep.updates(lr), self.sweep.updates(max(self.sweep.lrs))
        done, at_equal_updates = 0, descent.weights
        if (kept := watch.saved()) is not None:
            descent.restore(kept["descent"])
            done, at_equal_updates = kept["updates"], kept["early"].to(like.device)
        batches = islice(self.problem.batches(size), done, None)
        for update in range(done, last):
            if update % ASK_EVERY == 0:
                stop = watch.stopped()
                if stop or watch.due():
                    watch.save({"descent": descent.state(), "updates": update, "early": at_equal_updates})
                if stop:
                    return None
            descent.step(gradients(descent.weights, *next(batches)))
            if update + 1 == min(early, last):
                at_equal_updates = descent.weights
        return descent.weights, at_equal_updates

    def _rows(self, arm: str, lr: float, size: int, weights: Tensor, early: Tensor) -> Iterator[Row]:
        """One row per seed and decay."""
        threshold = self.sweep.threshold
        zeros = [zero_fraction(weights, t, batch_dims=2) for t in (threshold, 10 * threshold, threshold / 10)]
        equal = zero_fraction(early, threshold, batch_dims=2)
        losses, risks = self.problem.losses(weights), self.problem.risks(weights)
        sound = losses <= BLOWN_UP * self.problem.losses(torch.zeros_like(weights[:, :1]))  # [E, K]; False for nan
        for e, seed in enumerate(self.problem.seeds):
            for k, decay in enumerate(self.sweep.decays):
                row = {"seed": seed, "arm": arm, "lr": lr, "decay": decay, "batch_size": size}
                values = {
                    "zero_fraction": zeros[0],
                    "zero_fraction_10": zeros[1],
                    "zero_fraction_0.1": zeros[2],
                    "zero_fraction_equal_updates": equal,
                    "train_loss": losses,
                    "risk": risks,
                }
                found = {name: float(value[e, k]) for name, value in values.items()}
                yield row | found | {"diverged": not bool(sound[e, k])}

    def _lasso_rows(self, watch: Watch) -> Tables | None:
        """u v without noise at convergence, and scikit-learn's lasso: zeros of both, and where they agree."""
        from sklearn.linear_model import Lasso

        exact = self.problem.exact()
        weights = _converged(exact, torch.tensor(self.sweep.decays, dtype=torch.float64), self.lasso_updates, watch)
        if weights is None:
            return None
        rows: list[Row] = []
        for e, seed in enumerate(self.problem.seeds):
            x, y = exact.inputs[e].numpy(), exact.targets[e].numpy()
            for k, decay in enumerate(self.sweep.decays):
                solver = Lasso(alpha=decay / 2, fit_intercept=False, tol=1e-10, max_iter=1_000_000)
                theirs = torch.from_numpy(solver.fit(x, y).coef_)  # [d]
                ours = weights[e, k]
                agreement = float(((ours.abs() <= self.sweep.threshold) == (theirs == 0)).double().mean())
                largest = float((ours - theirs).abs().max())
                for arm, values in (("u * v, all rows", ours), (LASSO, theirs)):
                    found = float(zero_fraction(values, self.sweep.threshold if arm != LASSO else 0.0))
                    row = {"seed": seed, "arm": arm, "decay": decay, "zero_fraction": found, "agreement": agreement}
                    rows.append(row | {"difference": largest, "diverged": not bool(values.isfinite().all())})
        return {LASSO: rows}


def _converged(problem: SparseRegression, decays: Tensor, updates: int, watch: Watch) -> Tensor | None:
    """Weights [E, K, d] of gradient descent on all rows, from X^T X and X^T y."""
    rows = problem.inputs.shape[1]
    gram = problem.inputs.transpose(1, 2) @ problem.inputs * (2 / rows)  # [E, d, d]
    cross = (problem.inputs.transpose(1, 2) @ problem.targets[..., None] * (2 / rows)).transpose(1, 2)  # [E, 1, d]
    descent = Product(problem, torch.full_like(decays, CONVERGED_LR), decays)
    for update in range(updates):
        descent.step(torch.bmm(descent.weights, gram) - cross)
        if update % ASK_EVERY == 0 and watch.stopped():
            return None
    return descent.weights
