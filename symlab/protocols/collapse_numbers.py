"""The statements about collapse in self-supervised learning, from the rows of `collapse`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from symlab.protocols.rank_rows import contrast, difference, drop, falling, mean_of
from symlab.protocols.study import Number, over_seeds

if TYPE_CHECKING:
    import pandas

VANILLA, UNTRAINED = "vanilla", "untrained"
MEASURES = {
    "head_dimension": "effective dimension of the head's outputs",
    "feature_dimension": "effective dimension of the features",
    "head_rank": "rank of the head's outputs",
    "head_probe": "probe accuracy of the head's outputs, the last layer",
    "feature_probe": "probe accuracy of the features, the penultimate layer",
}


def arm_name(sigma: float) -> str:
    """Of the arm with this shift."""
    return f"shift {sigma:g}"


def key(sigma: float) -> str:
    """0.01 -> 0_01, as part of a number's name."""
    return f"{sigma:g}".replace(".", "_")


@dataclass(frozen=True)
class CollapseNumbers:
    """Falls of the vanilla net with decay, and gains of each shift over it at the decay `judged`."""

    sigmas: tuple[float, ...]
    judged: float

    def names(self) -> list[str]:
        """Keys of `numbers`."""
        gains = [f"{name}_gain_{key(s)}" for s in self.sigmas for name in (*MEASURES, "loss", "mean_head_probe")]
        idle = [f"head_probe_change_{key(s)}_no_decay" for s in self.sigmas]
        levels = [f"{name}_{VANILLA}" for name in MEASURES]
        drops = [f"{name}_drop" for name in MEASURES]
        return [*drops, "falling_with_decay", *levels, *gains, *idle, "untrained_head_probe", "diverged"]

    def numbers(self, rows: pandas.DataFrame) -> dict[str, Number]:
        """All of them, each over seeds."""
        vanilla = rows[rows["arm"] == VANILLA]
        upto = vanilla[vanilla["decay"] <= self.judged]
        at = rows[rows["decay"] == self.judged]
        found: dict[str, Number] = {}
        for name, text in MEASURES.items():
            found[f"{name}_drop"] = contrast(
                f"{text}: without minus at decay {self.judged:g}", upto, drop("decay", name)
            )
            found[f"{name}_{VANILLA}"] = contrast(
                f"{text} at decay {self.judged:g}", at[at["arm"] == VANILLA], mean_of(name)
            )
        found["falling_with_decay"] = contrast(
            "share of steps up in decay without a rise in the dimension of the head's outputs", vanilla,
            falling("decay", "head_dimension"),
        )  # fmt: skip
        for sigma in self.sigmas:
            found |= self._gains(rows, at, sigma)
        untrained = rows[rows["arm"] == UNTRAINED]
        found["untrained_head_probe"] = contrast(
            "probe accuracy of the head's outputs before training", untrained, mean_of("head_probe")
        )
        share = rows.assign(gone=rows["head_rank"].isna().astype(float))
        found["diverged"] = contrast("share of all nets that diverged", share, mean_of("gone"))
        return {name: found[name] for name in self.names()}

    def _gains(self, rows: pandas.DataFrame, at: pandas.DataFrame, sigma: float) -> dict[str, Number]:
        """Against vanilla, seed for seed."""
        arm, end = arm_name(sigma), key(sigma)
        found = {
            f"{name}_gain_{end}": over_seeds(
                f"{text} at decay {self.judged:g}, {arm} minus vanilla", difference(at, arm, VANILLA, name, ["decay"])
            )
            for name, text in MEASURES.items()
        }
        found[f"loss_gain_{end}"] = over_seeds(
            f"loss at decay {self.judged:g}, vanilla minus {arm}", difference(at, VANILLA, arm, "loss", ["decay"])
        )
        collapsing = rows[rows["decay"] >= self.judged]
        found[f"mean_head_probe_gain_{end}"] = over_seeds(
            f"probe accuracy of the head's outputs, {arm} minus vanilla, mean of the decays from {self.judged:g} on",
            difference(collapsing, arm, VANILLA, "head_probe", ["decay"]),
        )
        idle = rows[rows["decay"] == 0]
        found[f"head_probe_change_{end}_no_decay"] = over_seeds(
            f"probe accuracy of the head's outputs without decay, {arm} minus vanilla",
            difference(idle, arm, VANILLA, "head_probe", ["decay"]),
        )
        return found
