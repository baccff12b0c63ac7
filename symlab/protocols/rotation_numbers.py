"""The statements about rotation symmetry and low rank in matrix factorisation, from the rows of `rotation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from symlab.protocols.rank_rows import (
    contrast,
    difference,
    drop,
    falling,
    gaps_of_starts,
    late_change,
    least_drop,
    mean_of,
    without_rank,
)
from symlab.protocols.study import Number, over_seeds

if TYPE_CHECKING:
    import pandas

NUMBERS = (
    *(
        "soft_threshold_error",
        "decay_drop",
        "noise_drop",
        "lr_drop",
        "stable_rank_decay_drop",
        "stable_rank_noise_drop",
    ),
    *("falling_with_decay", "falling_with_noise", "falling_with_lr", "falling_with_lr_any_noise"),
    *("decay_drop_any_cut_off", "noise_drop_any_cut_off", "lr_drop_any_cut_off"),
    *("residual_rank", "matrix_rank", "shifted_rank_decay", "shifted_rank_noise", "weight_noise_rank"),
    *("residual_minus_product", "largest_value", "start_difference", "late_change", "diverged"),
)
KEYS = ("lr", "decay", "noise")


def rotation_numbers(rows: pandas.DataFrame, size: int, decay: float, ranks: Sequence[str]) -> dict[str, Number]:
    """All numbers, each over seeds; `decay`: where noise and rate are looked at; `ranks`: the columns of cut-offs."""
    product = rows[rows["arm"] == "U W"]
    quiet, noisy = product[product["noise"] == 0], product[(product["noise"] > 0) & (product["decay"] == decay)]
    there = product[product["decay"] == decay]
    found = _drops(quiet, there, noisy, ranks) | _controls(rows, size, decay)
    found["soft_threshold_error"] = contrast(
        "U W without noise has the singular values max(s - decay, 0): largest gap of all decays and rates",
        quiet, lambda own: _maximum(own["soft_threshold_gap"]),
    )  # fmt: skip
    found |= {
        "falling_with_decay": contrast("share of steps up in decay without a rise in rank", product, falling("decay")),
        "falling_with_noise": contrast("the same up in label noise", product, falling("noise")),
        "falling_with_lr": contrast(
            "the same up in lr, with label noise and lr noise 2 sqrt(size) <= 1: the noise of one step is small",
            product[(product["noise"] > 0) & (product["lr"] * product["noise"] * 2 * size**0.5 <= 1)], falling("lr"),
        ),
        "falling_with_lr_any_noise": contrast(
            "the same with all label noise", product[product["noise"] > 0], falling("lr")
        ),
        "largest_value": contrast(
            "largest singular value of U W over the target's at the largest decay but one, no noise: it has learned",
            quiet[quiet["decay"] == _last_but_one(quiet["decay"])], mean_of("largest"),
        ),
        "start_difference": over_seeds(
            "|rank from a random start - rank from the target| / size, mean of all settings",
            gaps_of_starts(rows, "U W", "U W, random start", size, KEYS),
        ),
        "late_change": contrast(
            "|rank at the end - rank at half the time| / size of U W, mean of all settings",
            product, late_change(size),
        ),
        "diverged": contrast("share of all runs that diverged", rows, without_rank),
    }  # fmt: skip
    return {name: found[name] for name in NUMBERS}


def _drops(
    quiet: pandas.DataFrame, there: pandas.DataFrame, noisy: pandas.DataFrame, ranks: Sequence[str]
) -> dict[str, Number]:
    """How far the rank of U W falls."""
    return {
        "decay_drop": contrast("rank of U W at the least minus at the largest decay, no noise", quiet, drop("decay")),
        "noise_drop": contrast("rank of U W without minus with the largest label noise", there, drop("noise")),
        "lr_drop": contrast("rank of U W at the least minus at the largest lr, label noise", noisy, drop("lr")),
        "stable_rank_decay_drop": contrast("decay_drop of the stable rank", quiet, drop("decay", "stable_rank")),
        "stable_rank_noise_drop": contrast("noise_drop of the stable rank", there, drop("noise", "stable_rank")),
        "decay_drop_any_cut_off": contrast("least decay_drop of all cut-offs", quiet, least_drop("decay", ranks)),
        "noise_drop_any_cut_off": contrast("least noise_drop of all cut-offs", there, least_drop("noise", ranks)),
        "lr_drop_any_cut_off": contrast("least lr_drop of all cut-offs", noisy, least_drop("lr", ranks)),
    }  # fmt: skip


def _controls(rows: pandas.DataFrame, size: int, decay: float) -> dict[str, Number]:
    """Ranks of the controls over the size, and against U W."""

    def share(text: str, own: pandas.DataFrame) -> Number:
        return contrast(f"rank / size of {text}", own.assign(share=own["rank"] / size), mean_of("share"))

    def arm(name: str) -> pandas.DataFrame:
        return rows[rows["arm"] == name]

    shifted = arm("(I + U)(I + W)")
    loud = rows[rows["noise"] == rows["noise"].max()]
    return {
        "residual_rank": share("I + U W, mean of all settings", arm("I + U W")),
        "matrix_rank": share("one matrix, mean of all settings", arm("one matrix")),
        "shifted_rank_decay": share("(I + U)(I + W) without noise", shifted[shifted["noise"] == 0]),
        "shifted_rank_noise": share("(I + U)(I + W), largest noise, no decay", _quietest(shifted, decay)),
        "weight_noise_rank": share(
            "U W with the largest noise on the weights, which knows no symmetry",
            _quietest(arm("U W, noise on the weights"), decay),
        ),
        "residual_minus_product": over_seeds(
            "rank of I + U W minus rank of U W at the largest label noise",
            difference(loud, "I + U W", "U W", "rank", KEYS),
        ),
    }


def _quietest(own: pandas.DataFrame, decay: float) -> pandas.DataFrame:
    """The largest noise at the decay where noise is looked at."""
    return own[(own["noise"] == own["noise"].max()) & (own["decay"] == decay)]


def _maximum(values: pandas.Series) -> float | None:
    known = values.dropna()
    return float(known.max()) if len(known) else None


def _last_but_one(values: pandas.Series) -> float:
    found = sorted(values.unique())
    return float(found[-2] if len(found) > 1 else found[-1]) if found else float("nan")
