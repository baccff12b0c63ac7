"""Groups chosen by role, label or pattern."""

import pytest

from symlab.symmetry import AxisReport, Group
from symlab.symmetry.axis_choice import choose_groups

AXES = [
    AxisReport("in:0.weight:1", 5, Group.TRIVIAL, "input", (("0.weight", 1),), ("model input",), None),
    AxisReport("0.weight:0", 7, Group.SIGNED_PERMUTATION, "hidden", (("0.weight", 0),), (), 0.0),
    AxisReport("2.weight:0", 7, Group.PERMUTATION, "hidden", (("2.weight", 0),), ("relu",), 0.0),
]


def test_roles_labels_and_patterns():
    assert choose_groups(AXES, {}) == {}
    assert choose_groups(AXES, {"input": "permutation"}) == {"in:0.weight:1": Group.PERMUTATION}
    assert choose_groups(AXES, {"?.weight:0": "trivial"}) == {"0.weight:0": Group.TRIVIAL, "2.weight:0": Group.TRIVIAL}


def test_later_entries_win():
    chosen = choose_groups(AXES, {"hidden": "trivial", "2.weight:0": "orthogonal"})
    assert chosen == {"0.weight:0": Group.TRIVIAL, "2.weight:0": Group.ORTHOGONAL}


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"residual names no axis .* roles are input, hidden, its labels in"):
        choose_groups(AXES, {"residual": "trivial"})
    with pytest.raises(ValueError, match="hidden: cyclic is not a group; the groups are permutation"):
        choose_groups(AXES, {"hidden": "cyclic"})
