"""Axes and groups of a model, and the matrices that commute with them."""

from symlab.symmetry.groups import Group
from symlab.symmetry.infer import AxisReport, InferredSymmetry, infer_symmetry, inspect_symmetry
from symlab.symmetry.invariant_operator import InvariantOperator
from symlab.symmetry.layout import Composite
from symlab.symmetry.weight_symmetry import WeightSymmetry

__all__ = [
    "AxisReport",
    "Composite",
    "Group",
    "InferredSymmetry",
    "InvariantOperator",
    "WeightSymmetry",
    "infer_symmetry",
    "inspect_symmetry",
]
