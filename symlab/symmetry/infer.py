"""The symmetry of a model's weights, found by tracing its forward pass.

Each dimension of each parameter starts as an axis of its own. The model is traced into ATen operators (see
tracing), and for each operator a small function, its *handler*, merges the axes that must index the same units,
takes them apart into concatenations and products, and lowers the group of an axis that the operation does not
respect (see axis_table for the rules, handlers.table for the list and for how to add one).

Groups. An axis keeps signed permutations while every function on it is odd, permutations under any other
elementwise function, and is free at inputs, outputs, kernel positions, constants that do not move with it, and
operations without a handler. An axis that meets only linear operations would allow every rotation: O(n) and the
signed permutations B_n both act irreducibly on R^n, so by Schur's lemma they leave the same matrices invariant,
hence the same blocks; B_n is reported unless orthogonal=True. An axis that one tensor has twice (a recurrent matrix
of a linear cell) is reported as O(n), for there B_n leaves more matrices invariant.

A parameter that the forward pass does not use has axes of its own that nothing restricts (signed permutations), so
it couples to no other tensor. A parameter shared by several modules has one name, the first, and is one tensor.

Labels: see labels. fc1.weight:0, in:fc1.weight:1, out:fc3.weight:0, in_proj_weight:0:0:768/1.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from symlab.symmetry.arrangement import Segments, arrange, repeated
from symlab.symmetry.axis_table import AxisTable, Value
from symlab.symmetry.groups import Group
from symlab.symmetry.labels import Use, label, label_row, uses_of_axes
from symlab.symmetry.propagation import propagate
from symlab.symmetry.tracing import Inputs, trace
from symlab.symmetry.verify import Layouts, MovedAxis, verify_axes
from symlab.symmetry.weight_symmetry import WeightSymmetry

ROLES = ("input", "output", "position", "kernel")  # roles that a reason gives, the first that is there
PLURAL = {Group.PERMUTATION: "permutations", Group.SIGNED_PERMUTATION: "signed permutations"}
SHOWN = 8  # axes named in one warning


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
    more than 32 axes in a few passes that move half of them each (see verify). verify=False leaves that out; seed is
    that of its random draws.

    The symmetry holds the parameters with requires_grad, in the order of named_parameters. Frozen ones take part in
    finding and verifying the axes (the group acts on them as well). An axis of one unit is free. The model is left as
    it was: weights, gradients, buffers, training flags, random states. Forward hooks run, as in any forward pass.

    Warns (UserWarning), once per cause, when hidden axes are made free: an operation without a handler, a constant
    along the axis, an order of its units, parts that fit no common structure, three uses in one tensor.

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
    axes = found.axes
    statistics = {name: Value(dims) for name, dims in axes.statistics.items()}
    rows = arrange(axes, {**found.parameters, **statistics})
    uses = uses_of_axes(axes, {name: rows[name] for name in found.parameters})
    _warn_of_freed(axes, uses)
    labels = {leaf: label(axes, leaf, own) for leaf, own in uses.items()}
    groups = _groups(axes, uses, rows, orthogonal)
    moved = [
        MovedAxis(labels[leaf], axes.size(leaf), group, _places(uses[leaf]))
        for leaf, group in groups.items()
        if group is not Group.TRIVIAL
    ]
    errors = {}
    if verify:
        errors = verify_axes(model, inputs, traced, moved, _layouts(axes, rows, labels), rtol, seed)
    named = {name: label_row(name, rows[name], labels) for name in trainable}
    present = _present(rows[name] for name in trainable)
    symmetry = WeightSymmetry(
        named,
        {name: tuple(tensor.shape) for name, tensor in trainable.items()},
        {labels[leaf]: group for leaf, group in groups.items() if leaf in present and group is not Group.TRIVIAL},
        {labels[leaf]: axes.size(leaf) for leaf in present},
    )
    return InferredSymmetry(symmetry, _reports(symmetry, axes, uses, labels, errors))


def _groups(
    axes: AxisTable, uses: Mapping[int, Sequence[Use]], rows: Mapping[str, Sequence[Segments]], orthogonal: bool
) -> dict[int, Group]:
    twice = {leaf for row in rows.values() for leaf in repeated(row)}
    groups = {leaf: axes.group(leaf) for leaf in uses}
    return {
        leaf: Group.SIGNED_PERMUTATION if group is Group.ORTHOGONAL and not (orthogonal or leaf in twice) else group
        for leaf, group in groups.items()
    }


def _places(uses: Sequence[Use]) -> tuple[tuple[str, int], ...]:
    return tuple(dict.fromkeys(use.place for use in uses))


def _present(rows: Iterable[Sequence[Segments]]) -> dict[int, None]:
    return dict.fromkeys(leaf for row in rows for segments in row for segment in segments for leaf in segment)


def _layouts(axes: AxisTable, rows: Mapping[str, Sequence[Segments]], labels: Mapping[int, str]) -> Layouts:
    return {
        name: tuple(
            tuple(tuple((labels.get(leaf, ""), axes.size(leaf)) for leaf in segment) for segment in segments)
            for segments in row
        )
        for name, row in rows.items()
    }


def _reports(
    symmetry: WeightSymmetry,
    axes: AxisTable,
    uses: Mapping[int, Sequence[Use]],
    labels: Mapping[int, str],
    errors: Mapping[str, float],
) -> tuple[AxisReport, ...]:
    """One report per label of the symmetry."""
    leaves = {name: leaf for leaf, name in labels.items()}
    reports = []
    for name, size in symmetry.sizes.items():
        group = symmetry.groups.get(name, Group.TRIVIAL)
        if name in leaves:
            leaf = leaves[name]
            places, role = _places(uses[leaf]), _role(axes, leaf)
            reasons = tuple(why.text for why in axes.reasons(leaf)) or _limits(axes, leaf)
        else:
            places = tuple((n, d) for n, row in symmetry.axes.items() for d, own in enumerate(row) if own == name)
            role, reasons = "free", ("one unit" if size == 1 else "a free axis that the tensor has twice",)
        reports.append(AxisReport(name, size, group, role, places, reasons, errors.get(name)))
    return tuple(reports)


def _limits(axes: AxisTable, leaf: int) -> tuple[str, ...]:
    group = axes.group(leaf)
    operators = dict.fromkeys(operator.split(".")[-2] for operator in axes.limits(leaf))
    return tuple(f"{name.rstrip('_')} keeps {PLURAL[group]} only" for name in operators) if group in PLURAL else ()


def _role(axes: AxisTable, leaf: int) -> str:
    roles = {reason.role for reason in axes.reasons(leaf)}
    known = next((role for role in ROLES if role in roles), None)
    rest = "residual" if axes.is_residual(leaf) else "free" if axes.is_free((leaf,)) else "hidden"
    return known or rest


def _warn_of_freed(axes: AxisTable, uses: Mapping[int, Sequence[Use]]) -> None:
    """One warning per cause, for axes that nothing expected (inputs, outputs) makes free."""
    freed: dict[str, list[str]] = {}
    for leaf, own in uses.items():
        reasons = axes.reasons(leaf)
        if not any(reason.expected for reason in reasons):
            for reason in reasons:
                freed.setdefault(reason.text, []).append(" = ".join(f"{n}[dim {d}]" for n, d in _places(own)))
    for text, names in freed.items():
        more = f"; and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        warnings.warn(f"infer_symmetry: {text}, so these axes are free: {'; '.join(names[:SHOWN])}{more}", stacklevel=3)
