"""What the experiments on sparsity by rescaling say: zeros against decay, rate and batch size, and the control's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from symlab.protocols.seed_statements import PerSeed, chosen, differences, means, ratios, rises, slopes
from symlab.protocols.study import Number, Row, Tables, over_seeds

if TYPE_CHECKING:
    import pandas

PRODUCT, PLAIN = "u * v", "w"
ZEROS = "zero_fraction"
LONE = "lone_zero_fraction"
NET_SLACK = 0.01
"""A fall of a net's zeros, from one decay to the next, that does not count."""
SPARSITY_NAMES = (
    "decay_slope",
    "decay_rises",
    "control_zeros",
    "more_zeros_than_control",
    "rate_slope",
    "rate_slope_least_decay",
    "noise_slope",
    "noise_slope_least_decay",
    "threshold_effect",
    "diverged",
)
NET_NAMES = (
    *SPARSITY_NAMES,
    "control_lone_zeros",
    "more_lone_zeros_than_control",
    "accuracy_lost",
    "zeros_at_accuracy",
)
NAMES = (
    *SPARSITY_NAMES,
    "rate_slope_equal_updates",
    "risk_ratio",
    "lasso_agreement",
    "lasso_zeros_difference",
    "lasso_weights_difference",
)


def shown_tables(rows: list[Row], arm: str, at_lr: bool, at_size: bool, decay: float) -> Tables:
    """The tables in which the rows of one part stand: curves are u v at every decay, and the control at one."""
    own = [
        {**row, "curve": f"{arm}, decay {row['decay']:g}"} for row in rows if arm == PRODUCT or row["decay"] == decay
    ]
    tables: Tables = {"metrics": rows, "rate": own} if at_size else {}
    if at_lr:
        tables["batch"] = own
    if at_lr and at_size:
        tables["decay"] = rows
    return tables


def sparsity_values(
    phase: pandas.DataFrame, batch: pandas.DataFrame, seeds: Sequence[int], shown: tuple[float, float], slack: float
) -> dict[str, tuple[str, PerSeed]]:
    """Statement and its value per seed, from rows over lr x decay and rows over batch size x decay.

    `shown`: the lr of curves over decay and batch size, and the decay of curves over lr and batch size. `slack`: a fall
    of the zeros that does not count.
    """
    lr, decay = shown
    product, plain = chosen(phase, arm=PRODUCT), chosen(phase, arm=PLAIN)
    curve, at_decay = chosen(product, lr=lr), chosen(product, decay=decay)
    more = differences(means(at_decay, ZEROS, seeds), means(chosen(plain, decay=decay), ZEROS, seeds))
    coarse = differences(means(product, f"{ZEROS}_10", seeds), means(product, f"{ZEROS}_0.1", seeds))
    values = {
        "decay_slope": (f"zeros of u v per decade of decay, lr {lr:g}", slopes(curve, "decay", ZEROS, seeds)),
        "decay_rises": (
            f"share of seeds whose zeros never fall as decay grows (by more than {slack:.2g}), lr {lr:g}",
            rises(curve, "decay", ZEROS, seeds, slack),
        ),
        "control_zeros": ("zeros of w without reparametrization, mean over lr and decay", means(plain, ZEROS, seeds)),
        "more_zeros_than_control": (f"zeros of u v minus those of w at decay {decay:g}, mean over lr", more),
        "threshold_effect": ("zeros of u v at 10 times the threshold minus those at 1/10, mean over all", coarse),
        "diverged": ("share of nets that diverged, at all lr, decays and batch sizes", _gone(phase, batch, seeds)),
    }
    least = float(product["decay"].min())
    for name, at in (("", decay), ("_least_decay", least)):
        rate = slopes(chosen(product, decay=at), "lr", ZEROS, seeds)
        values[f"rate_slope{name}"] = (f"zeros of u v per decade of lr at decay {at:g}, equal lr x updates", rate)
        size = slopes(chosen(batch, arm=PRODUCT, decay=at), "batch_size", ZEROS, seeds)
        noise: PerSeed = [None if slope is None else -slope for slope in size]
        text = f"zeros of u v per decade of 1 / batch size at decay {at:g}, lr {lr:g}"
        values[f"noise_slope{name}"] = (text, noise)
    return values


def _gone(phase: pandas.DataFrame, batch: pandas.DataFrame, seeds: Sequence[int]) -> PerSeed:
    """Per seed, of the rows over lr and those at the batch sizes that are not among them."""
    others = batch[~batch["batch_size"].isin(phase["batch_size"])]
    found: PerSeed = []
    for seed in seeds:
        flags = [bool(flag) for rows in (phase, others) for flag in chosen(rows, seed=seed)["diverged"]]
        found.append(sum(flags) / len(flags) if flags else None)
    return found


def net_numbers(
    tables: Mapping[str, pandas.DataFrame], seeds: Sequence[int], shown: tuple[float, float]
) -> dict[str, Number]:
    """The numbers of `rescaling_mlp`, in the order of NET_NAMES."""
    phase = tables["metrics"]
    values = sparsity_values(phase, tables["batch"], seeds, shown, NET_SLACK)
    plain = chosen(phase, arm=PLAIN)
    text = "zeros of w in the rows and columns that live, mean over lr and decay"
    values["control_lone_zeros"] = (text, means(plain, LONE, seeds))
    lone = [means(chosen(phase, arm=arm, decay=shown[1]), LONE, seeds) for arm in (PRODUCT, PLAIN)]
    text = f"such zeros of u v minus those of w at decay {shown[1]:g}, mean over lr"
    values["more_lone_zeros_than_control"] = (text, differences(*lone))
    at = chosen(phase, lr=shown[0], decay=shown[1])
    accuracies = [means(chosen(at, arm=arm), "test_accuracy", seeds) for arm in (PRODUCT, PLAIN)]
    text = f"test accuracy of w minus that of u v with its zeros exact, decay {shown[1]:g}, lr {shown[0]:g}"
    values["accuracy_lost"] = (text, differences(accuracies[1], accuracies[0]))
    text = f"zeros of u v at decay {shown[1]:g}, lr {shown[0]:g}, where that accuracy is had"
    values["zeros_at_accuracy"] = (text, means(chosen(at, arm=PRODUCT), ZEROS, seeds))
    return {name: over_seeds(*values[name]) for name in NET_NAMES}


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
    equal = slopes(chosen(at_decay, arm=PRODUCT), "lr", f"{ZEROS}_equal_updates", seeds)
    values["rate_slope_equal_updates"] = (f"zeros of u v per decade of lr at decay {shown[1]:g}, equal updates", equal)
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
