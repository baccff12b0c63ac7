"""A residual network with every weight written as u * w (DCS), against the same network without."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from symlab.constraint.constrain import balanced_split, unit_split
from symlab.protocols.axis_checks import check_not_negative, check_positive
from symlab.protocols.dcs_training import Arm, Training, time_in_turns, train_arm
from symlab.protocols.study import Ground, Number, Study, Tables, Watch, over_seeds
from symlab.training.execution import find_precision, make_execution
from symlab.training.rates import Rates

if TYPE_CHECKING:
    import pandas

VANILLA, DCS, WITHOUT_DECAY = "vanilla", "DCS", "DCS without decay"
SPARSE_LAYER = 0.1
"""Least fraction of exact zeros in a layer that counts as sparse."""

TEXTS = {
    "accuracy_vanilla": "test accuracy of the vanilla net",
    "accuracy_dcs": "test accuracy with u * w",
    "accuracy_difference": "test accuracy with u * w less that of the vanilla net: the same",
    "train_loss_difference": "training loss with u * w less that of the vanilla net, at the last evaluation",
    "collapse_difference": "test accuracy with u * w after collapse to exact zeros less before: the same",
    "zero_fraction_dcs": "exact zeros with u * w: sparse overall",
    "zero_fraction_vanilla": "exact zeros of the vanilla net at equal decay and threshold: none",
    "zero_fraction_without_decay": "exact zeros with u * w but no decay: none",
    "sparse_layers_dcs": f"fraction of weight tensors with at least {SPARSE_LAYER:g} exact zeros, with u * w: all",
    "step_time_ratio": "time of a training step with u * w / without, median of turns",
    "parameters_ratio": "trainable numbers with u * w / without: an upper bound of 2",
    "diverged": "runs that diverged",
}


def dcs_resnet(
    ground: Ground,
    *,
    decay: float = 0.01,
    epochs: int = 20,
    batch_size: int = 128,
    evaluations: int = 5,
    threshold: float = 1e-6,
    balanced: bool = False,
    timed_steps: int = 10,
    amp: str | None = None,
    channels_last: bool = False,
) -> Study:
    """theta = u * w for all weights with two or more axes, and the vanilla net: equal starts, batches and decay.

    Source: Liu Ziyin (ICML 2024), DCS with elementwise constraint, ResNet18 on CIFAR-10: same accuracy and time as the
    vanilla net, sparse overall; spred (ICML 2023). Learning rate, decay and epochs are not published: settings ours.
    A third arm has u * w and no decay. `decay` is the optimizer's weight_decay on all parameters of an arm, so it must
    be coupled (SGD) to be the L1 penalty; `optimizer.weight_decay` stays 0. `balanced`: start from |u| = |w|; else from
    u = theta, w = 1, which is as long as the vanilla net's until decay has made w as small as u, after some
    ln(1 / |theta|) / (2 lr decay) updates. An entry counts as zero if |theta| <= `threshold` after training; zeros of
    the vanilla net likewise.

    metrics has a row per evaluation, of which there are `evaluations`; layers the zeros of every weight tensor;
    step_times `timed_steps` training steps of both nets in turns. `amp` (bf16, fp16), `channels_last`: as in training.

    Raises ValueError for values out of range, without data, model, optimizer or schedule, and for an optimizer without
    weight_decay or with one that is not 0.
    """
    check_positive("decay", decay)
    check_not_negative("threshold", threshold)
    whole = {"epochs": epochs, "batch_size": batch_size, "evaluations": evaluations, "timed_steps": timed_steps}
    for key, value in whole.items():
        if not value >= 1:
            raise ValueError(f"{key} must be at least 1, got {value}")
    data, schedule = ground.need_data(), ground.need_schedule()
    if data.num_classes is None:
        raise ValueError(f"data {data.name} has no classes, and accuracy is what this is about: use e.g. data=digits")
    if not 2 <= batch_size <= data.num_train:
        raise ValueError(f"batch_size must be from 2 to the {data.num_train} training rows, got {batch_size}")
    steps = epochs * (data.num_train // batch_size)
    if evaluations > steps:
        raise ValueError(f"evaluations must be at most the number of updates, {steps}, got {evaluations}")
    Rates(schedule, 0, steps).check()
    how = make_execution(find_precision(amp, ground.device, ground.dtype), channels_last, compiled=False)
    split = balanced_split if balanced else unit_split
    shared = Training(ground, data, schedule, how, split, batch_size, steps, evaluations, threshold)
    arms = [Arm(VANILLA, False, decay), Arm(DCS, True, decay), Arm(WITHOUT_DECAY, True, 0.0)]
    study = DcsStudy(shared, {arm.name: arm for arm in arms}, epochs, timed_steps)
    shared.built(arms[1], ground.seeds[0])  # an optimizer or a model that does not fit stops here
    return study


@dataclass(frozen=True)
class DcsStudy:
    """One part per seed and arm, and one per seed for the time of steps."""

    shared: Training
    arms: Mapping[str, Arm]
    epochs: int
    timed_steps: int

    @property
    def title(self) -> str:
        """What was run."""
        shared = self.shared
        rows = f"{shared.data.name}, {shared.data.num_train} rows, {self.epochs} epochs"
        return f"Weights as u * w: {rows}, decay {self.arms[DCS].decay:g}, |w| <= {shared.threshold:g} is zero"

    @property
    def figures(self) -> Mapping[str, str]:
        """Curves over epochs, zeros per layer, and the times of steps."""
        curves = dict.fromkeys(("loss", "test_loss", "accuracy", "zeros"), "metrics")
        return {**curves, "layers": "layers", "step_times": "step_times"}

    @property
    def references(self) -> Mapping[str, float]:
        """None."""
        return {}

    def parts(self) -> Sequence[str]:
        """Times first: they are short."""
        seeds = self.shared.ground.seeds
        return [
            *(f"time of steps, seed {seed}" for seed in seeds),
            *(f"{arm}, seed {seed}" for seed in seeds for arm in self.arms),
        ]

    def run(self, part: str, watch: Watch) -> Tables | None:
        """One arm, or the times, of one seed."""
        name, _, seed = part.rpartition(", seed ")
        if name in self.arms:
            return train_arm(self.shared, self.arms[name], int(seed), watch)
        both = [self.arms[VANILLA], self.arms[DCS]]
        rows = time_in_turns(self.shared, both, int(seed), self.timed_steps, watch)
        return None if rows is None else {"step_times": rows}

    def number_names(self) -> Sequence[str]:
        """Keys of `numbers`."""
        return [*TEXTS]

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """Differences and ratios are within a seed."""
        ends = _ends(tables["metrics"])

        def at_end(arm: str, column: str) -> pandas.Series:
            return ends.loc[arm][column].astype(float)

        accuracy = {arm: at_end(arm, "accuracy") for arm in self.arms}
        zeros = {arm: at_end(arm, "zero_fraction") for arm in self.arms}
        values = {
            "accuracy_vanilla": accuracy[VANILLA],
            "accuracy_dcs": accuracy[DCS],
            "accuracy_difference": accuracy[DCS] - accuracy[VANILLA],
            "train_loss_difference": at_end(DCS, "train_loss") - at_end(VANILLA, "train_loss"),
            "collapse_difference": at_end(DCS, "accuracy_collapsed") - accuracy[DCS],
            "zero_fraction_dcs": zeros[DCS],
            "zero_fraction_vanilla": zeros[VANILLA],
            "zero_fraction_without_decay": zeros[WITHOUT_DECAY],
            "sparse_layers_dcs": _sparse_layers(tables["layers"], zeros[DCS]),
            "step_time_ratio": _time_ratios(tables["step_times"]),
            "parameters_ratio": at_end(DCS, "parameters") / at_end(VANILLA, "parameters"),
        }
        numbers = {name: over_seeds(TEXTS[name], _known(series)) for name, series in values.items()}
        return numbers | {"diverged": over_seeds(TEXTS["diverged"], [float(ends["diverged"].astype(bool).sum())])}


def _known(series: pandas.Series) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in series]


def _ends(metrics: pandas.DataFrame) -> pandas.DataFrame:
    """The last row of every arm and seed, indexed by them; no measurement where it diverged."""
    return metrics.groupby(["arm", "seed"]).tail(1).set_index(["arm", "seed"]).sort_index()


def _sparse_layers(layers: pandas.DataFrame, like: pandas.Series) -> pandas.Series:
    """Per seed of `like`; nan where there is none because the net diverged."""
    if not len(layers):
        return like * math.nan
    own = layers[layers["arm"] == DCS]
    return (own["zero_fraction"] >= SPARSE_LAYER).groupby(own["seed"]).mean().reindex(like.index)


def _time_ratios(times: pandas.DataFrame) -> pandas.Series:
    """Per seed the median over turns of the times' ratio within a turn."""
    pairs = times.pivot(index=["seed", "repeat"], columns="arm", values="step_time_s")
    return (pairs[DCS] / pairs[VANILLA]).groupby("seed").median()
