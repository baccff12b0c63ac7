"""The symmetry of a model's weights, found by tracing its forward pass.

Each dimension of each parameter starts as an axis of its own. The model is traced into ATen operators (see
tracing), and for each operator a small function, its *handler*, merges the axes that must index the same units and
lowers the group of an axis that the operation does not respect (see handlers.table for the list and for how to add
one).

Groups. An axis keeps signed permutations while every function on it is odd, permutations under any other
elementwise function, and is free at inputs, outputs, kernel positions, constants that do not move with it, and
operations without a handler. An axis that meets only linear operations would allow every rotation: O(n) and the
signed permutations B_n both act irreducibly on R^n, so by Schur's lemma they leave the same matrices invariant,
hence the same blocks; B_n is reported unless orthogonal=True.

A parameter that the forward pass does not use has axes of its own that nothing restricts (signed permutations), so
it couples to no other tensor. A parameter shared by several modules has one name, the first, and is one tensor.

Labels are "<parameter>:<dimension>" of the first parameter that has the axis as its outputs (dimension 0), else of
the first that has it; free axes carry "in:", "out:" (model inputs and outputs) or "free:" in front: fc1.weight:0,
in:fc1.weight:1, out:fc3.weight:0.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from symlab.symmetry.axis_table import AxisTable
from symlab.symmetry.groups import Group
from symlab.symmetry.propagation import INPUT, OUTPUT, Propagation, propagate
from symlab.symmetry.tracing import Inputs, trace
from symlab.symmetry.verify import MovedAxis, verify_axes
from symlab.symmetry.weight_symmetry import WeightSymmetry

ROLES = ("input", "output", "position", "kernel")  # roles that a reason gives, the first that is there

SHOWN = 8  # axes named in one warning

Places = Mapping[int, tuple[tuple[str, int], ...]]  # axis -> (parameter, dimension) of every use


@dataclass(frozen=True)
class AxisReport:
    """One axis of a model: its units, its group, where it is used and why its group is no larger.

    role: "input", "output", "kernel" (entry of a kernel), "position" (in space or in a sequence), "residual" (two
    activations that both depend on the inputs are added along it, as on a residual stream), "hidden", or "free"
    (any other axis without a group).
    """

    label: str
    size: int
    group: Group
    role: str
    places: tuple[tuple[str, int], ...]  # (parameter, dimension) of every use
    reasons: tuple[str, ...]
    error: float | None  # relative change of the output when the axis moves; None: free, or not verified


@dataclass(frozen=True)
class InferredSymmetry:
    """The symmetry of a model's weights, and a report on each of its axes, in the order of the parameters."""

    symmetry: WeightSymmetry
    axes: tuple[AxisReport, ...]


def infer_symmetry(
    model: nn.Module,
    inputs: Inputs,
    *,
    orthogonal: bool = False,
    verify: bool = True,
    rtol: float | None = None,
    seed: int = 0,
) -> WeightSymmetry:
    """The largest product of groups per axis, within what the handlers know, with f(g theta, x) = f(theta, x).

    inspect_symmetry(...).symmetry: see there for arguments, warnings and errors.
    """
    return inspect_symmetry(model, inputs, orthogonal=orthogonal, verify=verify, rtol=rtol, seed=seed).symmetry


def inspect_symmetry(
    model: nn.Module,
    inputs: Inputs,
    *,
    orthogonal: bool = False,
    verify: bool = True,
    rtol: float | None = None,
    seed: int = 0,
) -> InferredSymmetry:
    """The largest product of groups per axis, within what the handlers know, with f(g theta, x) = f(theta, x).

    Source: Bernacchia, "Global curvature for second-order optimization of neural networks" (ICML 2025), section 3.

    inputs: what the model is called with, a tensor or a tuple of tensors; a few rows suffice. orthogonal: report
    O(n), not B_n, for axes that meet linear operations only. Every non-free axis is verified with one forward pass,
    at random weights in float64, to the relative tolerance rtol (None: square root of the machine epsilon, 1.5e-8);
    verify=False leaves that out; seed is that of its random draws.

    The symmetry holds the parameters with requires_grad, in the order of named_parameters. Frozen ones take part in
    finding and verifying the axes (the group acts on them as well). An axis of one unit, and one that a tensor has
    twice (recurrent or tied weights), is free. The model is left as it was: weights, gradients, buffers, training
    flags, random states. Forward hooks run, as in any forward pass.

    Warns (UserWarning), once per cause, when hidden axes are made free: an operation without a handler, a constant
    along the axis, an axis used twice in one tensor, a flatten or a cut through it.

    Raises ValueError if the forward pass branches on tensor values, a parameter is empty, complex or uninitialised,
    none is trainable, or an axis fails the verification (its name and its parameters are in the message).
    """
    if rtol is not None and not rtol > 0:
        raise ValueError(f"rtol must be positive, got {rtol}")
    traced = trace(model, inputs)
    trainable = {name: tensor for name, tensor in traced.parameters.items() if tensor.requires_grad}
    if not trainable:
        raise ValueError(f"{type(model).__name__} has no trainable parameter: all have requires_grad=False")
    found = propagate(traced)
    places = _places(found)
    _warn_of_freed(found.axes, places)
    labels = {axis: _label(found.axes, axis, uses) for axis, uses in places.items()}
    groups = {axis: _group(found.axes, axis, orthogonal) for axis in places}
    errors = {}
    if verify:
        errors = verify_axes(model, inputs, traced, _moved_axes(found.axes, places, labels, groups), rtol, seed)
    axes = {name: _parameter_labels(found, name, labels) for name in trainable}
    named = {labels[axis]: group for axis, group in groups.items() if group is not Group.TRIVIAL}
    present = {label for row in axes.values() for label in row}
    shapes = {name: tuple(tensor.shape) for name, tensor in trainable.items()}
    symmetry = WeightSymmetry(axes, shapes, {label: group for label, group in named.items() if label in present})
    return InferredSymmetry(symmetry, _reports(symmetry, found, places, labels, errors))


def _reports(
    symmetry: WeightSymmetry,
    found: Propagation,
    places: Places,
    labels: Mapping[int, str],
    errors: Mapping[str, float],
) -> tuple[AxisReport, ...]:
    """One report per label of the symmetry."""
    roots = {label: axis for axis, label in labels.items()}
    reports = []
    for label, size in symmetry.sizes.items():
        group = symmetry.groups.get(label, Group.TRIVIAL)
        if label in roots:
            axis, uses = roots[label], places[roots[label]]
            reasons = tuple(why.text for why in found.axes.reasons(axis)) or _limits(found.axes, axis)
            role = _role(found.axes, axis)
        else:
            uses = tuple((n, d) for n, row in symmetry.axes.items() for d, own in enumerate(row) if own == label)
            reasons, role = (("one unit",) if size == 1 else ("a free axis that the tensor has twice",)), "free"
        reports.append(AxisReport(label, size, group, role, uses, reasons, errors.get(label)))
    return tuple(reports)


def _limits(axes: AxisTable, axis: int) -> tuple[str, ...]:
    plural = {Group.PERMUTATION: "permutations", Group.SIGNED_PERMUTATION: "signed permutations"}
    group = axes.group(axis)
    return tuple(f"{operator} keeps {plural[group]} only" for operator in axes.limits(axis)) if group in plural else ()


def _role(axes: AxisTable, axis: int) -> str:
    roles = {reason.role for reason in axes.reasons(axis)}
    known = next((role for role in ROLES if role in roles), None)
    rest = "residual" if axes.is_residual(axis) else "free" if axes.group(axis) is Group.TRIVIAL else "hidden"
    return known or rest


def _places(found: Propagation) -> dict[int, tuple[tuple[str, int], ...]]:
    places: dict[int, tuple[tuple[str, int], ...]] = {}
    for name, value in found.parameters.items():
        for place, dim in enumerate(value.dims):
            for axis in dim:
                root = found.axes.find(axis)
                places[root] = (*places.get(root, ()), (name, place))
    return places


def _group(axes: AxisTable, axis: int, orthogonal: bool) -> Group:
    group = axes.group(axis)
    return Group.SIGNED_PERMUTATION if group is Group.ORTHOGONAL and not orthogonal else group


def _label(axes: AxisTable, axis: int, uses: tuple[tuple[str, int], ...]) -> str:
    name, place = next((use for use in uses if use[1] == 0), uses[0])
    if axes.group(axis) is not Group.TRIVIAL:
        return f"{name}:{place}"
    reasons = axes.reasons(axis)
    prefix = "in" if INPUT in reasons else "out" if OUTPUT in reasons else "free"
    return f"{prefix}:{name}:{place}"


def _parameter_labels(found: Propagation, name: str, labels: Mapping[int, str]) -> tuple[str, ...]:
    """One label per dimension; a free axis that comes back, and a dimension of size 1, get a label of their own."""
    row: list[str] = []
    for place, dim in enumerate(found.parameters[name].dims):
        label = labels[found.axes.find(dim[0])] if dim else ""
        row.append(f"free:{name}:{place}" if not label or label in row else label)
    return tuple(row)


def _moved_axes(
    axes: AxisTable, places: Places, labels: Mapping[int, str], groups: Mapping[int, Group]
) -> list[MovedAxis]:
    statistics: dict[int, list[tuple[str, int]]] = {}
    for name, dims in axes.statistics.items():
        for place, dim in enumerate(dims):
            for axis in dim:
                statistics.setdefault(axes.find(axis), []).append((name, place))
    return [
        MovedAxis(labels[axis], axes.size(axis), groups[axis], uses, tuple(statistics.get(axis, ())))
        for axis, uses in places.items()
        if groups[axis] is not Group.TRIVIAL
    ]


def _warn_of_freed(axes: AxisTable, places: Places) -> None:
    """One warning per cause, for axes that nothing expected (inputs, outputs) makes free."""
    freed: dict[str, list[str]] = {}
    for axis, uses in places.items():
        reasons = axes.reasons(axis)
        if not any(reason.expected for reason in reasons):
            for reason in reasons:
                freed.setdefault(reason.text, []).append(" = ".join(f"{name}[dim {place}]" for name, place in uses))
    for text, names in freed.items():
        more = f"; and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        warnings.warn(f"infer_symmetry: {text}, so these axes are free: {'; '.join(names[:SHOWN])}{more}", stacklevel=3)
