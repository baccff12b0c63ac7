"""Axes and groups of a model, and the matrices that commute with them."""

from symlab.symmetry.groups import Group
from symlab.symmetry.infer import infer_symmetry
from symlab.symmetry.invariant_operator import InvariantOperator
from symlab.symmetry.weight_symmetry import WeightSymmetry

__all__ = ["Group", "InvariantOperator", "WeightSymmetry", "infer_symmetry"]
