"""Groups of axes chosen by a person: by role or by label."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from symlab.symmetry.groups import Group
from symlab.symmetry.infer import AxisReport


def choose_groups(axes: Sequence[AxisReport], choice: Mapping[str, str]) -> dict[str, Group]:
    """Axis label -> group, for the axes that `choice` names; later entries of `choice` win.

    `choice`: role of the axis ("input", "output", "residual", "hidden", "kernel", "position", "free"), or its label, or
    a pattern of labels with * and ? -> name of a group: permutation, signed_permutation, orthogonal, trivial.

    Raises:
        ValueError: an entry names no axis, or no group.
    """
    chosen: dict[str, Group] = {}
    for key, name in choice.items():
        groups = {group.value: group for group in Group}
        if name not in groups:
            raise ValueError(f"{key}: {name} is not a group; the groups are {', '.join(groups)}")
        labels = [axis.label for axis in axes if axis.role == key or fnmatchcase(axis.label, key)]
        if not labels:
            roles = ", ".join(dict.fromkeys(axis.role for axis in axes))
            raise ValueError(
                f"{key} names no axis of this model: its roles are {roles}, its labels"
                f" {', '.join(axis.label for axis in axes)}"
            )
        chosen |= dict.fromkeys(labels, groups[name])
    return chosen
