"""The rank of a product of two matrices that are trained on data in mini-batches, over lr, decay, noise and batch size.

Legend: R  seeds;  C  cells (decay, noise);  d  size of the matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from symlab.protocols.matrix_forms import Draws, Form, MatrixDescent, random_factors
from symlab.protocols.rank_numbers import RankNumbers
from symlab.protocols.rank_rows import rank_columns, rank_names
from symlab.protocols.study import Ground, Number, Row, Tables, Watch

if TYPE_CHECKING:
    import pandas


class Task(Protocol):
    """A loss of the matrix P that is seen in mini-batches, the same ones for all cells of a seed."""

    @property
    def goal(self) -> Tensor:
        """[R, d, d]: the matrix that made the data."""
        ...

    @property
    def draws(self) -> Draws:
        """All that is random in the batches."""
        ...

    def gradient(self, matrices: Tensor) -> Tensor:
        """dL/dP [R, C, d, d] on the next mini-batch, from P of the same shape."""
        ...

    def minimum_values(self, decay: Tensor) -> Tensor | None:
        """[R, C, d]: singular values of the minimum over P = U W with this decay [C]; None without a closed form."""
        ...


@dataclass(frozen=True)
class Arm:
    """A form of P, and whether it starts at random or as the matrix that made the data."""

    name: str
    form: Form
    random: bool = False


@dataclass(frozen=True)
class Sweep:
    """What is swept: rates, batch sizes, and cells (decay, noise) side by side; all for `time` = lr x steps."""

    lrs: tuple[float, ...]
    batches: tuple[int, ...]
    cells: tuple[tuple[float, float], ...]
    time: float
    cut_off: float
    cut_offs: tuple[float, ...]
    shown_lr: float
    shown_batch: int
    shown_cell: tuple[float, float]  # decay, noise


@dataclass(frozen=True)
class RankStudy:
    """One part per arm, batch size and rate. The scale of all ranks is the largest singular value of the goal, `scale`.

    Tables: metrics; decay (batch = shown, noise = shown), for lr x decay; batch (lr = shown), for batch x noise at
    decay = shown, or batch x decay where there is one noise; line (lr, decay and noise = shown), for batch.
    """

    title: str
    ground: Ground
    sweep: Sweep
    arms: tuple[Arm, ...]
    task: Callable[[int], Task]
    size: int
    scale: float
    statements: RankNumbers

    @property
    def figures(self) -> Mapping[str, str]:
        """Figure -> table."""
        return {"phase": "decay", "decay_lines": "decay", "batch": "batch", "batch_line": "line"}

    @property
    def references(self) -> Mapping[str, float]:
        """The full rank."""
        return {"full rank": float(self.size)}

    def parts(self) -> Sequence[str]:
        """Arm, batch size and rate."""
        return list(self._parts())

    def _parts(self) -> dict[str, tuple[Arm, int, float]]:
        found = [(arm, batch, lr) for arm in self.arms for batch in self.sweep.batches for lr in self.sweep.lrs]
        return {f"{arm.name}, batch {batch}, lr {lr:g}": (arm, batch, lr) for arm, batch, lr in found}

    def run(self, part: str, watch: Watch) -> Tables | None:
        """Rows of one arm at one batch size and rate: all seeds, decays and noises side by side."""
        arm, batch, lr = self._parts()[part]
        task = self.task(batch)
        descent = self._start(arm, lr, task.goal)
        shape = (len(self.ground.seeds), len(self.sweep.cells), self.size, self.size)
        steps = round(self.sweep.time / lr)
        done, half = 0, list[Row]()
        if (kept := watch.saved()) is not None:
            descent.restore(kept["descent"])
            task.draws.restore(kept["draws"])
            done, half = kept["step"], kept["half"]
        for step in range(done, steps):
            if step % 256 == 0:
                stop = watch.stopped()
                if stop or watch.due():
                    own = {"descent": descent.state(), "draws": task.draws.state()}
                    watch.save({**own, "step": step, "half": half})
                if stop:
                    return None
            descent.step(task.gradient(descent.matrix().view(shape)).flatten(0, 1))
            if step + 1 == steps // 2:
                half = self._rows(arm, batch, lr, descent)
        rows = self._rows(arm, batch, lr, descent)
        for row, before, gap in zip(rows, half, self._gaps(arm, task, descent), strict=True):
            row |= {"rank_at_half_time": before["rank"], "closed_form_gap": gap}
        return self._tables(rows)

    def number_names(self) -> Sequence[str]:
        """See `RankNumbers`."""
        return self.statements.names()

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """See `RankNumbers`."""
        return self.statements.numbers(tables["metrics"], rank_names(self.sweep.cut_offs))

    def _start(self, arm: Arm, lr: float, goal: Tensor) -> MatrixDescent:
        cells = self.sweep.cells
        factors = random_factors(self.ground.seeds, self.size, arm.form, goal) if arm.random else arm.form.factors(goal)
        u, w = (factor.repeat_interleave(len(cells), 0) for factor in factors)  # [R C, d, d]
        decay = torch.tensor([decay for decay, _ in cells] * len(goal), dtype=goal.dtype, device=goal.device)
        return MatrixDescent(arm.form, (u, w), lr, decay)

    def _rows(self, arm: Arm, batch: int, lr: float, descent: MatrixDescent) -> list[Row]:
        sweep = self.sweep
        matrices, live = descent.measured()
        alive = live.tolist()
        columns = rank_columns(matrices, live, self.scale, sweep.cut_off, sweep.cut_offs)
        settings = [(seed, *cell) for seed in self.ground.seeds for cell in sweep.cells]
        fixed: dict[str, Any] = {"arm": arm.name, "lr": lr, "batch": batch}
        return [
            fixed
            | {"decay": decay, "noise": noise, "seed": seed, "diverged": not alive[i]}
            | {name: column[i] for name, column in columns.items()}
            for i, (seed, decay, noise) in enumerate(settings)
        ]

    def _gaps(self, arm: Arm, task: Task, descent: MatrixDescent) -> list[float | None]:
        """[R C]: max_i |s_i(P) - s_i(minimum)| / scale, for the first arm, which is U W."""
        decay = torch.tensor([decay for decay, _ in self.sweep.cells], dtype=torch.float64, device=task.goal.device)
        least = task.minimum_values(decay) if arm is self.arms[0] else None
        if least is None:
            return [None] * len(descent.alive)
        matrices, live = descent.measured()
        gaps = (torch.linalg.svdvals(matrices.double()) - least.flatten(0, 1)).abs().amax(1) / self.scale
        return [gap if kept else None for gap, kept in zip(gaps.tolist(), live.tolist(), strict=True)]

    def _tables(self, rows: list[Row]) -> Tables:
        sweep = self.sweep
        decay, noise = sweep.shown_cell
        at_batch = [row for row in rows if row["batch"] == sweep.shown_batch and row["noise"] == noise]
        noisy = len({noise for _, noise in sweep.cells}) > 1
        at_lr = [row for row in rows if row["lr"] == sweep.shown_lr and (row["decay"] == decay or not noisy)]
        line = [row for row in at_lr if (row["decay"], row["noise"]) == sweep.shown_cell]
        return {"metrics": rows, "decay": at_batch, "batch": at_lr, "line": line}
