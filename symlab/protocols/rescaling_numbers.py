"""What the experiments on sparsity by rescaling say: zeros against decay, rate and batch size, and the control's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from symlab.protocols.seed_statements import PerSeed, chosen, differences, means, ratios, rises, slopes
from symlab.protocols.study import Number, over_seeds

if TYPE_CHECKING:
    import pandas

PRODUCT, PLAIN = "u * v", "w"
ZEROS = "zero_fraction"
NAMES = (
    "decay_slope",
    "decay_rises",
    "control_zeros",
    "more_zeros_than_control",
    "rate_slope",
    "rate_slope_equal_updates",
    "noise_slope",
    "risk_ratio",
    "threshold_effect",
    "diverged",
    "lasso_agreement",
    "lasso_zeros_difference",
    "lasso_weights_difference",
)


def sparsity_values(
    phase: pandas.DataFrame, batch: pandas.DataFrame, seeds: Sequence[int], shown: tuple[float, float], slack: float
) -> dict[str, tuple[str, PerSeed]]:
    """Statement and its value per seed, from rows over lr x decay and rows over batch size x decay.

    `shown`: the lr of curves over decay and batch size, and the decay of curves over lr and batch size.
    """
    lr, decay = shown
    product, plain = chosen(phase, arm=PRODUCT), chosen(phase, arm=PLAIN)
    curve, at_decay = chosen(product, lr=lr), chosen(product, decay=decay)
    noise: PerSeed = [
        None if slope is None else -slope
        for slope in slopes(chosen(batch, arm=PRODUCT, decay=decay), "batch_size", ZEROS, seeds)
    ]
    more = differences(means(at_decay, ZEROS, seeds), means(chosen(plain, decay=decay), ZEROS, seeds))
    coarse = differences(means(product, f"{ZEROS}_10", seeds), means(product, f"{ZEROS}_0.1", seeds))
    gone: PerSeed = [float(phase.loc[phase["seed"] == seed, "diverged"].astype(bool).mean()) for seed in seeds]
    equal = slopes(at_decay, "lr", f"{ZEROS}_equal_updates", seeds)
    return {
        "decay_slope": (f"zeros of u v per decade of decay, lr {lr:g}", slopes(curve, "decay", ZEROS, seeds)),
        "decay_rises": (
            f"share of seeds whose zeros never fall as decay grows (by more than {slack:.2g}), lr {lr:g}",
            rises(curve, "decay", ZEROS, seeds, slack),
        ),
        "control_zeros": ("zeros of w without reparametrization, mean over lr and decay", means(plain, ZEROS, seeds)),
        "more_zeros_than_control": (f"zeros of u v minus those of w at decay {decay:g}, mean over lr", more),
        "rate_slope": (
            f"zeros of u v per decade of lr at decay {decay:g}, equal lr x updates",
            slopes(at_decay, "lr", ZEROS, seeds),
        ),
        "rate_slope_equal_updates": (f"zeros of u v per decade of lr at decay {decay:g}, equal updates", equal),
        "noise_slope": (f"zeros of u v per decade of 1 / batch size at decay {decay:g}, lr {lr:g}", noise),
        "threshold_effect": ("zeros of u v at 10 times the threshold minus those at 1/10, mean over all", coarse),
        "diverged": ("share of nets that diverged", gone),
    }


def rescaling_numbers(
    tables: Mapping[str, pandas.DataFrame],
    seeds: Sequence[int],
    shown: tuple[float, float],
    slack: float,
    lasso: bool,
) -> dict[str, Number]:
    """The numbers of `rescaling`, in the order of NAMES."""
    phase = tables["metrics"]
    values = sparsity_values(phase, tables["batch"], seeds, shown, slack)
    at_decay = chosen(phase, decay=shown[1])
    risks = [means(chosen(at_decay, arm=arm, lr=shown[0]), "risk", seeds) for arm in (PRODUCT, PLAIN)]
    text = f"risk of u v over that of w, decay {shown[1]:g}, lr {shown[0]:g}"
    values["risk_ratio"] = (text, ratios(risks[0], risks[1]))
    if lasso:
        path = tables["lasso"]
        theirs, ours = chosen(path, arm="lasso"), path[path["arm"] != "lasso"]
        gap = differences(means(ours, ZEROS, seeds), means(theirs, ZEROS, seeds))
        values |= {
            "lasso_agreement": (
                "share of weights that are zero in both u v on all rows and scikit-learn's lasso, or in neither",
                means(ours, "agreement", seeds),
            ),
            "lasso_zeros_difference": ("zeros of u v on all rows minus those of the lasso", gap),
            "lasso_weights_difference": (
                "largest difference of a weight from the lasso's, mean over decays",
                means(ours, "difference", seeds),
            ),
        }
    return {name: over_seeds(*values[name]) for name in NAMES if name in values}
