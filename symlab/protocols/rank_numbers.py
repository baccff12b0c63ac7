"""The statements about the rank of a product that is trained on data, from the rows of a `RankStudy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

KEYS = ("lr", "batch", "decay", "noise")
DROPS = {
    "decay": "rank at the least minus at the largest decay, least noise, largest batch",
    "noise": "rank at the least minus at the largest label noise, least decay",
    "lr": "rank at the least minus at the largest lr that did not diverge, least decay, most label noise",
    "batch": "rank at the largest minus at the smallest batch, least decay, most label noise",
}


@dataclass(frozen=True)
class RankNumbers:
    """`product`, `fresh`: arms of the product, from the goal and from a random start; `controls`: number -> arm.

    `axes`: of decay, noise, lr and batch, those that are swept. A batch size works against noise, so its signs are
    turned round: batch_drop is positive if small batches have the lower rank.
    """

    size: int
    product: str
    fresh: str
    controls: Mapping[str, str]
    axes: tuple[str, ...]
    closed_form: bool

    def names(self) -> list[str]:
        """Keys of `numbers`."""
        each = [
            name for axis in self.axes for name in (f"{axis}_drop", f"{axis}_drop_any_cut_off", f"falling_with_{axis}")
        ]
        each += ["falling_with_noise_any_decay"] if "noise" in self.axes else []
        controls = [name for key in self.controls for name in (f"{key}_rank", f"{key}_minus_product")]
        closed = ["closed_form_error"] if self.closed_form else []
        return [*closed, *each, *controls, "largest_value", "start_difference", "late_change", "diverged"]

    def numbers(self, rows: pandas.DataFrame, ranks: Sequence[str]) -> dict[str, Number]:
        """All of them, each over seeds; `ranks`: the columns of the cut-offs."""
        found: dict[str, Number] = {}
        product = rows[rows["arm"] == self.product]
        for axis in self.axes:
            found |= self._along(product, axis, ranks)
        for key, arm in self.controls.items():
            own = rows[rows["arm"] == arm]
            share = own.assign(share=own["rank"] / self.size)
            found[f"{key}_rank"] = contrast(f"rank / size of {arm}, mean of all settings", share, mean_of("share"))
            gaps = difference(rows[rows["decay"] == rows["decay"].max()], arm, self.product, "rank", KEYS)
            text = f"rank of {arm} minus rank of {self.product} at the largest decay"
            found[f"{key}_minus_product"] = over_seeds(text, gaps)
        if self.closed_form:
            full = product[product["batch"] == product["batch"].max()]
            text = f"largest gap between singular values of U W and of the closed form, batch {full['batch'].max():g}"
            found["closed_form_error"] = contrast(text, full, lambda own: float(own["closed_form_gap"].max()))
        found |= self._honesty(rows, product)
        return {name: found[name] for name in self.names()}

    def _along(self, product: pandas.DataFrame, axis: str, ranks: Sequence[str]) -> dict[str, Number]:
        """The fall along one axis, at the end of the other axes where it should be seen best."""
        noisy = product["noise"] == product["noise"].max()
        if axis == "decay":
            own = product[(product["noise"] == product["noise"].min()) & (product["batch"] == product["batch"].max())]
        elif axis == "noise":
            own = product[product["decay"] == product["decay"].min()]
        else:
            own = product[noisy & (product["decay"] == product["decay"].min())]
        text = DROPS[axis]
        if "noise" not in self.axes:
            text = text.replace(", most label noise", "").replace("least noise, ", "")
        sign = -1 if axis == "batch" else 1
        own, whole = (frame.assign(**{axis: sign * frame[axis]}) for frame in (own, product))
        found = {
            f"{axis}_drop": contrast(text, own, drop(axis)),
            f"{axis}_drop_any_cut_off": contrast(f"least {axis}_drop of all cut-offs", own, least_drop(axis, ranks)),
        }  # fmt: skip
        words = f"share of steps {'down' if sign < 0 else 'up'} in {axis} without a rise in rank"
        if axis == "noise":  # few rows are fitted with their noise, which raises singular values above the decay
            found["falling_with_noise"] = contrast(f"{words}, least decay", own, falling(axis))
        name = "falling_with_noise_any_decay" if axis == "noise" else f"falling_with_{axis}"
        return found | {name: contrast(f"{words}, all settings", whole, falling(axis))}

    def _honesty(self, rows: pandas.DataFrame, product: pandas.DataFrame) -> dict[str, Number]:
        """Has it learned, is it done, and does the start matter?"""
        low = product[product["decay"] == product["decay"].min()]
        return {
            "largest_value": contrast(
                "largest singular value over that of the matrix that made the data, no decay", low, mean_of("largest")
            ),
            "start_difference": over_seeds(
                "|rank from a random start - rank from the goal| / size, mean of all settings",
                gaps_of_starts(rows, self.product, self.fresh, self.size, KEYS),
            ),
            "late_change": contrast(
                "|rank at the end - rank at half the time| / size, mean of all settings", product,
                late_change(self.size),
            ),
            "diverged": contrast("share of all runs that diverged", rows, without_rank),
        }  # fmt: skip
