"""Lists of names for a key that holds several options of one group: optimizers=[gd,adam].

A job whose defaults hold `group@plural.label: option` gets a mapping from label to option. `plural=[names]` chooses
which: labels that the composed config has beside these are taken out, names that it has not are added as the option of
that name, and the job gets them in the order of the list.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, QuotedString
from omegaconf import DictConfig

from symlab.cli.compose import compose, expand, is_group, parse
from symlab.rundir import BadInput

Orders = Mapping[str, tuple[str, ...]]  # family -> its labels, in the order in which they were typed


def families(config: DictConfig) -> dict[str, str]:
    """Keys that hold several options of one group -> the group, as of `optimizer@optimizers.adam: adam`."""
    packaged = [str(key).partition("@") for key in config.hydra.runtime.choices if "@" in str(key)]
    return {package.rpartition(".")[0]: group for group, _, package in packaged if package.count(".") == 1}


def rewritten(job: str, name: str | None, overrides: Sequence[Override]) -> tuple[list[Override], Orders]:
    """The overrides as Hydra takes them, every `plural=[names]` replaced, and the order of the names.

    Raises BadInput for anything but one list of known, different names.
    """
    candidates = [override for override in overrides if _may_be_list(override)]
    if not candidates:
        return list(overrides), {}
    configs = _composed(job, name, overrides)
    known = families(configs[0])
    lists = {o.key_or_group: o for o in candidates if o.key_or_group in known}
    kept = [o for o in overrides if o.key_or_group not in lists or o not in candidates]
    orders: dict[str, tuple[str, ...]] = {}
    more: list[str] = []
    for key, override in lists.items():
        _check_additions(key, override, overrides)
        labels = _same_labels(override, [config.get(key) or {} for config in configs])
        orders[key] = names_of(override)
        more += _changes(override, known[key], labels, orders[key], configs[0])
    return [*parse(more, multirun=False), *kept], orders


def _check_additions(key: str, override: Override, overrides: Sequence[Override]) -> None:
    """Raises BadInput for a label that the line adds, but that its list leaves out."""
    added = [
        str(o.package).rpartition(".")[2] for o in overrides if o.is_add() and str(o.package).startswith(f"{key}.")
    ]
    left_out = [label for label in added if label not in names_of(override)]
    if left_out:
        raise BadInput(f"{override.input_line}: {left_out[0]} is added but not in the list: name it there too")


def in_order(config: Mapping[str, Any], orders: Orders) -> dict[str, Any]:
    """The config with the labels of each family in the order in which they were typed."""
    sorted_families = {key: {label: config[key][label] for label in labels} for key, labels in orders.items()}
    return {key: sorted_families.get(key, value) for key, value in config.items()}


def _may_be_list(override: Override) -> bool:
    """`plural=...` with anything but a mapping or a number; the keys of families end in s, like their names."""
    key = override.key_or_group
    plain = override.package is None and not (override.is_add() or override.is_force_add() or override.is_delete())
    if not plain or not key.isidentifier() or not key.endswith("s"):
        return False
    return override.is_sweep_override() or isinstance(override.value(), (list, str, QuotedString, type(None)))


def _composed(job: str, name: str | None, overrides: Sequence[Override]) -> list[DictConfig]:
    """The configs with the other choices of groups on the line, one for each combination that is swept over."""
    chosen = [o for o in overrides if is_group(o) and not o.is_hydra_override()]
    return [compose(job, name, texts) for texts in expand(chosen)]


def _same_labels(override: Override, nodes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    if any(set(node) != set(nodes[0]) for node in nodes):
        key = override.key_or_group
        raise BadInput(
            f"{override.input_line}: the runs of this sweep have different {key}; use one command for each list"
        )
    return nodes[0]


def names_of(override: Override) -> tuple[str, ...]:
    """The names in the list, as typed. Raises BadInput for anything but one list of different names."""
    key, line = override.key_or_group, str(override.input_line)
    if override.is_sweep_override():
        raise BadInput(f"{line}: a sweep over lists of {key} is not possible; use one command for each list")
    value = override.value()
    if isinstance(value, str):
        raise BadInput(f"{line}: expected a list of names: '{key}=[{value}]'")
    if not isinstance(value, list) or not value or not all(isinstance(entry, str) and entry for entry in value):
        raise BadInput(f"{line}: expected a list of at least one name, e.g. '{key}=[a,b]'")
    twice = [entry for entry in value if value.count(entry) > 1]
    if twice:
        raise BadInput(
            f"{line}: {twice[0]} stands twice; a second {twice[0]} needs a label of its own in an experiment"
        )
    return tuple(str(entry) for entry in value)


def _changes(
    override: Override, group: str, labels: Mapping[str, Any], names: Sequence[str], config: DictConfig
) -> list[str]:
    """The overrides that take out what is not in the list and add what is not there yet."""
    key = override.key_or_group
    options = GlobalHydra.instance().config_loader().get_group_options(group)
    changes = [f"~{key}.{label}" for label in labels if label not in names]
    for label in names:
        if label in labels and "_target_" in labels[label]:
            continue
        if label in labels:
            raise BadInput(
                f"{override.input_line}: the configuration has settings for {key}.{label} but does not add it; "
                f"an experiment adds it with '/{group}@{key}.{label}: OPTION' in its defaults"
            )
        if label not in options:
            raise BadInput(f"{override.input_line}: {_unknown(label, group, [*options], labels)}")
        entry = f"{group}@{key}.{label}"
        changes.append(f"{'' if entry in config.hydra.runtime.choices else '+'}{entry}={label}")
    return changes


def _unknown(label: str, group: str, options: Sequence[str], labels: Mapping[str, Any]) -> str:
    known = sorted({*options, *map(str, labels)})
    close = difflib.get_close_matches(label, known, n=3, cutoff=0.55)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    return f"there is no {group} {label}; {hint}"
