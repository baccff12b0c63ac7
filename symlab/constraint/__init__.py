"""Symmetry as constraint: mirrors and their constraint sets, how to impose one, and how to remove a symmetry.

Source: Liu Ziyin, "Symmetry induces structure and constraint of learning" (ICML 2024).
"""

from symlab.constraint.constrain import balanced_split, collapse, constrain, unit_split
from symlab.constraint.cost import census, cost
from symlab.constraint.decay import parameter_groups
from symlab.constraint.distinct_decay import distinct_decay
from symlab.constraint.mirror import Mirror, MirrorSymmetry
from symlab.constraint.projectors.elementwise import Elementwise
from symlab.constraint.projectors.equal_neurons import EqualNeurons
from symlab.constraint.projectors.groups import Groups
from symlab.constraint.projectors.low_rank import LowRank
from symlab.constraint.remove_symmetry import remove_symmetry
from symlab.constraint.restore_symmetry import restore_symmetry
from symlab.constraint.spred import spred_lasso, spred_path

__all__ = [
    "Elementwise",
    "EqualNeurons",
    "Groups",
    "LowRank",
    "Mirror",
    "MirrorSymmetry",
    "balanced_split",
    "census",
    "collapse",
    "constrain",
    "cost",
    "distinct_decay",
    "parameter_groups",
    "remove_symmetry",
    "restore_symmetry",
    "spred_lasso",
    "spred_path",
    "unit_split",
]
