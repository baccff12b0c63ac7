"""What the sequence of tasks says: losses of accuracy from early to late tasks, and contrasts between the arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from symlab.protocols.seed_statements import PerSeed, chosen, differences, means, ratios
from symlab.protocols.study import Number, Row, over_seeds, single

if TYPE_CHECKING:
    import pandas

COLLAPSE = 0.05
"""A net has collapsed where its test accuracy is lower than that of the early tasks by more than this."""

NAMES = (
    *("vanilla_change", "decay_change", "shift_change", "noise_change", "shrink_change"),
    *("vanilla_collapse_task", "shift_minus_vanilla", "shift_minus_decay", "shift_rank_ratio"),
    *("strong_decay_change", "strong_shift_minus_decay", "strong_shift_rank_ratio", "diverged"),
)


@dataclass(frozen=True)
class Windows:
    """The first `early` and the last `late` of all tasks."""

    early: int
    late: int
    tasks: int

    def first(self, table: pandas.DataFrame) -> pandas.DataFrame:
        """Rows of early tasks."""
        return table[table["task"] <= self.early]

    def last(self, table: pandas.DataFrame) -> pandas.DataFrame:
        """Rows of late tasks."""
        return table[table["task"] > self.tasks - self.late]

    def late_means(self, rows: Sequence[Row]) -> list[Row]:
        """One row per net: means over late tasks, by its last row's labels; None where a task has no number."""
        own: dict[tuple[object, ...], list[Row]] = {}
        for row in rows:
            if row["task"] > self.tasks - self.late:
                own.setdefault((row["arm"], row["decay"], row["sigma"], row["seed"]), []).append(row)
        return [{**tasks[-1], **{name: _mean(tasks, name) for name in MEASURES}} for tasks in own.values()]


MEASURES = ("test_accuracy", "online_accuracy", "rank", "effective_dimension", "dead_fraction", "weight_norm")


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows]
    return None if None in values else sum(values) / len(values)


def plasticity_numbers(
    table: pandas.DataFrame,
    seeds: Sequence[int],
    windows: Windows,
    shown: tuple[float, float],
    strong: tuple[float, float],
) -> dict[str, Number]:
    """`shown` and `strong`: (decay, sigma) of the arms that are compared; all else per seed, then over seeds."""
    arms = {name: chosen(table, arm=name) for name in ("vanilla", "noise", "shrink and perturb")}
    arms |= {"decay": chosen(table, arm="decay", decay=shown[0])}
    arms |= {"shift": chosen(table, arm="shift", decay=shown[0], sigma=shown[1])}
    arms |= {"strong decay": chosen(table, arm="decay", decay=strong[0])}
    arms |= {"strong shift": chosen(table, arm="shift", decay=strong[0], sigma=strong[1])}

    def late(arm: str, y: str = "test_accuracy") -> PerSeed:
        return means(windows.last(arms[arm]), y, seeds)

    def change(arm: str) -> PerSeed:
        return differences(late(arm), means(windows.first(arms[arm]), "test_accuracy", seeds))

    span = f"test accuracy, last {windows.late} tasks minus first {windows.early}"
    at, far = f"decay {shown[0]:g}, sigma {shown[1]:g}/sqrt(d)", f"decay {strong[0]:g}, sigma {strong[1]:g}/sqrt(d)"
    paired = f"test accuracy of the last {windows.late} tasks, paired"
    return {
        "vanilla_change": over_seeds(f"{span}, vanilla", change("vanilla")),
        "decay_change": over_seeds(f"{span}, decay {shown[0]:g} alone", change("decay")),
        "shift_change": over_seeds(f"{span}, shift, {at}", change("shift")),
        "noise_change": over_seeds(f"{span}, noise", change("noise")),
        "shrink_change": over_seeds(f"{span}, shrink and perturb", change("shrink and perturb")),
        "vanilla_collapse_task": over_seeds(
            f"first task at which vanilla is more than {COLLAPSE:g} below its first {windows.early}",
            _collapse(arms["vanilla"], seeds, windows),
        ),
        "shift_minus_vanilla": over_seeds(
            f"{paired}: shift minus vanilla, {at}", differences(late("shift"), late("vanilla"))
        ),
        "shift_minus_decay": over_seeds(
            f"{paired}: shift minus decay, {at}", differences(late("shift"), late("decay"))
        ),
        "shift_rank_ratio": over_seeds(
            f"rank of the last hidden layer, shift over decay, {at}",
            ratios(late("shift", "rank"), late("decay", "rank")),
        ),
        "strong_decay_change": over_seeds(f"{span}, decay {strong[0]:g} alone", change("strong decay")),
        "strong_shift_minus_decay": over_seeds(
            f"{paired}: shift minus decay, {far}", differences(late("strong shift"), late("strong decay"))
        ),
        "strong_shift_rank_ratio": over_seeds(
            f"rank of the last hidden layer, shift over decay, {far}",
            ratios(late("strong shift", "rank"), late("strong decay", "rank")),
        ),
        "diverged": single("fraction of nets that diverged", _diverged(table)),
    }


def _collapse(table: pandas.DataFrame, seeds: Sequence[int], windows: Windows) -> PerSeed:
    """Per seed the first task below the early ones; None if there is none."""
    found: PerSeed = []
    for seed, level in zip(seeds, means(windows.first(table), "test_accuracy", seeds), strict=True):
        own = table[(table["seed"] == seed) & ~table["diverged"].astype(bool)]
        below = own[own["test_accuracy"].astype(float) < (level if level is not None else 0.0) - COLLAPSE]
        found.append(float(below["task"].min()) if len(below) else None)
    return found


def _diverged(table: pandas.DataFrame) -> float:
    last = table[table["task"] == table["task"].max()]
    return float(last["diverged"].astype(bool).mean())
