"""Which runs belong together, and what to call them: their configurations but for seeds, machine and paths.

A configuration is the nested mapping of a run's config.yaml; the node of a group holds `_target_`, the full name of the
option's function, and that function's keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

TARGET = "_target_"
NOT_A_DIFFERENCE = frozenset(
    {
        "seed",
        "seeds",
        "data.seed",
        "device",
        "threads",
        "deterministic",
        "progress",
        "checkpoint_every_s",
        "eval_batch_size",
        "targets",
        "plots",
        "expected",
        "data.root",
        "data.package",
        "data.download",
        "data.workers",
    }
)
UNSET = "unset"
Flat = dict[str, Any]  # dotted key -> value


def group_labels(configs: Sequence[Mapping[str, Any]], by: Sequence[str] | None = None) -> list[str]:
    """One label per configuration, e.g. "optimizer=adam, lr=0.1"; equal labels make a group.

    Without `by`, runs are in the same group exactly if they agree in every key but NOT_A_DIFFERENCE and the figure's
    own (`plot`). The label shows the keys that differ; an option's own keys count only among the runs with that
    option (adam's betas say nothing in a comparison with gd). With `by` (dotted keys, or names of groups), the runs
    that agree in those keys are a group. All runs alike: the label is empty.

    Raises ValueError for a key in `by` that no run has.
    """
    flats = [_flatten(config) for config in configs]
    if by is not None:
        keys = [_known_key(key, flats, "group_by") for key in by]
        return [_label({key: flat.get(key, UNSET) for key in keys}, keys) for flat in flats]
    compared = [{key: value for key, value in flat.items() if _counts(key)} for flat in flats]
    keys = _differing_keys(compared)
    shown = [{key: flat.get(key, UNSET) for key in keys if _says_something(key, flat, compared)} for flat in compared]
    return [_label(values, keys) for values in shown]


def key_values(configs: Sequence[Mapping[str, Any]], key: str) -> list[str | None]:
    """Each configuration's value of a dotted key, or its option of a group, as labels show it; None where it has none.

    Raises ValueError for a key that no run has.
    """
    flats = [_flatten(config) for config in configs]
    name = _known_key(key, flats, "key")
    return [_short(name, flat[name]) if name in flat else None for flat in flats]


def without_key(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The configuration without a dotted key, or without a whole group and its option's keys."""
    first, _, rest = key.partition(".")
    if not rest:
        return {name: value for name, value in config.items() if name != first}
    return {name: without_key(value, rest) if name == first else value for name, value in config.items()}


def common_setting(configs: Sequence[Mapping[str, Any]]) -> str:
    """The options of data, model and optimizer that all configurations share, e.g. "teacher_student, mlp"."""
    names = []
    for group in ("data", "model", "optimizer"):
        options = {_flatten(config).get(f"{group}.{TARGET}") for config in configs}
        if len(options) == 1 and None not in options:
            names.append(_short(f"{group}.{TARGET}", options.pop()))
    return ", ".join(names)


def comparable_settings(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """One name per configuration; runs share a name if their losses may stand on one axis: same data, same loss.

    The name is the data's, with the loss where one data set occurs with several; "" where all agree.
    """
    options = [[_option(config, group) for group in ("data", "loss")] for config in configs]
    if len({tuple(pair) for pair in options}) <= 1:
        return [""] * len(configs)
    losses = {data: {loss for other, loss in options if other == data} for data, _ in options}
    return [f"{data}_{loss}" if len(losses[data]) > 1 and loss else data or "unknown" for data, loss in options]


def _option(config: Mapping[str, Any], group: str) -> str:
    target = _flatten(config).get(f"{group}.{TARGET}")
    return "" if target is None else _short(f"{group}.{TARGET}", target)


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Flat:
    flat: Flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _counts(key: str) -> bool:
    return key not in NOT_A_DIFFERENCE and not key.startswith(("plot.", "plots.", "expected."))


def _differing_keys(flats: Sequence[Flat]) -> list[str]:
    """Keys with more than one value, the options first; then in the order of the configurations."""
    keys = dict.fromkeys(key for flat in flats for key in flat)
    differing = [key for key in keys if len({_comparable(flat.get(key, UNSET)) for flat in flats}) > 1]
    return sorted(differing, key=lambda key: not key.endswith(TARGET))


def _says_something(key: str, flat: Flat, flats: Sequence[Flat]) -> bool:
    """Whether `key` varies among the runs that chose the same option of its group as `flat` did."""
    option = f"{key.split('.')[0]}.{TARGET}"
    if key == option or option not in flat:
        return True
    alike = [other for other in flats if other.get(option) == flat[option]]
    return len({_comparable(other.get(key, UNSET)) for other in alike}) > 1


def _comparable(value: Any) -> str:
    """Text that is equal for equal values; 1 and 1.0 are equal, true and 1 are not."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(float(value))
    return json.dumps(value, sort_keys=True, default=str)


def _known_key(key: str, flats: Sequence[Flat], argument: str) -> str:
    for candidate in (f"{key}.{TARGET}", key):
        if any(candidate in flat for flat in flats):
            return candidate
    known = sorted({known.removesuffix(f".{TARGET}") for flat in flats for known in flat})
    raise ValueError(f"{argument}: no run has the key {key!r}; there are {', '.join(known)}")


def _label(values: Flat, keys: Sequence[str]) -> str:
    return ", ".join(f"{_short_key(key, keys)}={_short(key, value)}" for key, value in values.items())


def _short_key(key: str, keys: Sequence[str]) -> str:
    """The last part of a key, or all of it where another key ends alike."""
    if key.endswith(f".{TARGET}"):
        return key.removesuffix(f".{TARGET}")
    last = key.split(".")[-1]
    return last if sum(other.split(".")[-1] == last for other in keys) == 1 else key


def _short(key: str, value: Any) -> str:
    if key.endswith(TARGET):
        return str(value).split(".")[-1]
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:g}"
    return "-".join(str(item) for item in value) if isinstance(value, list) else str(value)
