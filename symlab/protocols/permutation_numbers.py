"""What the experiments on equal neurons say: distinct units against decay, and those of the control."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from symlab.protocols.seed_statements import PerSeed, chosen, differences, means, slopes
from symlab.protocols.study import Number, over_seeds

if TYPE_CHECKING:
    import pandas

SYMMETRIC = "symmetric"
NAMES = (
    "distinct_slope",
    "distinct_slope_control",
    "distinct_slope_contrast",
    "distinct_falls",
    "distinct_drop",
    "distinct_drop_control",
    "merged_rise",
    "merged_rise_control",
    "zero_rise",
    "strict_drop",
    "activations_drop",
    "activations_drop_control",
    "accuracy_gap",
    "diverged",
)
SLACK = 0.02
"""Share of the units by which the number of distinct ones may rise from one decay to the next."""


def broken(sigma: float) -> str:
    """The name of the arm with a shift of this size."""
    return f"shift {sigma:g}"


def permutation_numbers(metrics: pandas.DataFrame, seeds: Sequence[int], control: str) -> dict[str, Number]:
    """The statements of NAMES, from the totals over all layers; `control` is the arm with the largest shift.

    Shares are of all hidden units, means over the learning rates; drops and rises are from the lowest to the highest
    decay.
    """
    own, other = chosen(metrics, arm=SYMMETRIC), chosen(metrics, arm=control)
    both = own[own["decay"] > 0], other[other["decay"] > 0]
    slope, control_slope = (slopes(rows, "decay", "distinct_share", seeds) for rows in both)
    activations = [_change(rows, "distinct_activations_share", seeds, -1) for rows in (own, other)]
    accuracy = [means(_last(rows), "test_accuracy", seeds) for rows in (own, other)]
    gone: PerSeed = [float(metrics.loc[metrics["seed"] == s, "diverged"].astype(bool).mean()) for s in seeds]
    found = {
        "distinct_slope": ("distinct units (share) per decade of decay", slope),
        "distinct_slope_control": (f"the same, control {control}", control_slope),
        "distinct_slope_contrast": ("the first minus the second", differences(slope, control_slope)),
        "distinct_falls": (
            f"share of seeds whose distinct units never rise by more than {SLACK:g}",
            _falls(own, seeds),
        ),
        "distinct_drop": (
            "distinct units (share) lost at the highest decay",
            _change(own, "distinct_share", seeds, -1),
        ),
        "distinct_drop_control": (f"the same, control {control}", _change(other, "distinct_share", seeds, -1)),
        "merged_rise": ("of which merged with others", _change(own, "merged_share", seeds)),
        "merged_rise_control": (f"merged, control {control}", _change(other, "merged_share", seeds)),
        "zero_rise": ("of which without weights", _change(own, "zero_neurons_share", seeds)),
        "strict_drop": ("lost at the strict correlation", _change(own, "distinct_strict_share", seeds, -1)),
        "activations_drop": ("units of distinct activations (share) lost", activations[0]),
        "activations_drop_control": (f"the same, control {control}", activations[1]),
        "accuracy_gap": (f"test accuracy at the highest decay minus that of {control}", differences(*accuracy)),
        "diverged": ("share of all nets that diverged", gone),
    }
    return {name: over_seeds(*found[name]) for name in NAMES}


def _last(rows: pandas.DataFrame) -> pandas.DataFrame:
    return rows[rows["decay"] == rows["decay"].max()]


def _change(rows: pandas.DataFrame, y: str, seeds: Sequence[int], sign: int = 1) -> PerSeed:
    """sign x (column `y` at the highest decay minus that at the lowest)."""
    first = rows[rows["decay"] == rows["decay"].min()]
    found = differences(means(_last(rows), y, seeds), means(first, y, seeds))
    return [None if value is None else sign * value for value in found]


def _falls(rows: pandas.DataFrame, seeds: Sequence[int]) -> PerSeed:
    """Per seed 1 if the distinct units never rise by more than the slack from one decay to the next."""
    curves = [means(rows[rows["decay"] == decay], "distinct_share", seeds) for decay in sorted(set(rows["decay"]))]
    found: PerSeed = []
    for curve in zip(*curves, strict=True):
        known = [value for value in curve if value is not None]
        found.append(float(all(b <= a + SLACK for a, b in itertools.pairwise(known))) if len(known) > 1 else None)
    return found
