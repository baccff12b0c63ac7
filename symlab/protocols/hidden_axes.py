"""The hidden units of any net, by the axes of its symmetry: their weights in, what they do, how equal they are.

Legend: n  units of an axis;  D  weights into a unit;  N  samples: inputs, times pixels of an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from symlab.constraint.measures import dead_units, distinct_neurons, neuron_norms
from symlab.constraint.mirror_of_model import unit_weights
from symlab.symmetry.groups import Group
from symlab.symmetry.infer import infer_symmetry
from symlab.symmetry.weight_symmetry import WeightSymmetry

READERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Counting:
    """What counts as one neuron, and as none: see `distinct_neurons`; `zero` is a share of a layer's mean start."""

    correlation: float
    strict_correlation: float
    zero: float


@dataclass(frozen=True)
class HiddenAxis:
    """One axis of hidden units: `writers`, the weights and biases that have it first, and `readers`, modules that
    have it second, so that their inputs are the units' activations."""

    label: str
    size: int
    odd: bool  # the net allows sign flips of the units: r and -r are the same neuron
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    start_length: float  # of the weights into a unit, mean over the units of the net that the axes were found on

    def weights_in(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """[n, D]: all weights into each unit, its bias as one of them."""
        return torch.cat([parameters[name].detach().reshape(self.size, -1) for name in self.writers], dim=1)


def hidden_axes(model: nn.Module, inputs: Tensor) -> tuple[WeightSymmetry, tuple[HiddenAxis, ...]]:
    """The symmetry of a net, and each axis with a group that a weight matrix or kernel has as its first dimension.

    A bias goes with the weight of its module. Scales and shifts of normalisations are left out: they would say that
    all units are alike. On a residual stream the weights into a unit are those of all layers that add to it.

    Raises ValueError for a net without such an axis.
    """
    symmetry = infer_symmetry(model, inputs)
    parameters = dict(model.named_parameters())
    found = []
    for label, group in symmetry.groups.items():
        writers = [
            n for n, axes in symmetry.axes.items() if len(axes) > 1 and axes[0] == label and label not in axes[1:]
        ]
        biases = [name.removesuffix("weight") + "bias" for name in writers if name.endswith("weight")]
        writers += [name for name in biases if name in symmetry.axes]
        readers = [
            name
            for name, module in model.named_modules()
            if isinstance(module, READERS) and label in symmetry.axes.get(f"{name}.weight", ())[1:2]
        ]
        if writers:
            odd, size = group is not Group.PERMUTATION, symmetry.sizes[label]
            rows = torch.cat([parameters[name].reshape(size, -1) for name in writers], dim=1)
            length = float(neuron_norms(rows).mean())
            found.append(HiddenAxis(label, size, odd, tuple(writers), tuple(readers), length))
    if not found:
        raise ValueError(f"{type(model).__name__} has no hidden units that could be exchanged: it needs a hidden layer")
    return symmetry, tuple(found)


@torch.no_grad()
def activations(net: nn.Module, axes: tuple[HiddenAxis, ...], inputs: Tensor) -> dict[str, Tensor]:
    """Label -> [n, N]: what the readers of each axis are given, end to end; without readers no entry."""
    seen: dict[str, list[Tensor]] = {}
    modules = dict(net.named_modules())

    def keep(name: str) -> torch.utils.hooks.RemovableHandle:
        return modules[name].register_forward_pre_hook(lambda _, args: seen.setdefault(name, []).append(args[0]))

    handles = [keep(name) for name in {reader for axis in axes for reader in axis.readers}]
    try:
        net(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {
        axis.label: torch.cat([x.transpose(0, 1).flatten(1) for name in axis.readers for x in seen[name]], dim=1)
        for axis in axes
        if axis.readers
    }


def unit_counts(
    net: nn.Module, symmetry: WeightSymmetry, axes: tuple[HiddenAxis, ...], inputs: Tensor, counting: Counting
) -> list[dict[str, float | str]]:
    """Per axis: width = distinct + merged + zero_neurons, by the weights in; the same by activations; dead units.

    zero_neurons have weights in of at most `zero` times the mean length at the start (not of the longest: in a layer
    that dies all units shrink alike). swap_distance: to the nearest set on which two units are equal, in and out, over
    the mean length of the units that are not zero.
    """
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    acts = activations(net, axes, inputs)
    return [_counts(axis, parameters, acts.get(axis.label), symmetry, counting) for axis in axes]


def _counts(
    axis: HiddenAxis, parameters: dict[str, Tensor], acts: Tensor | None, symmetry: WeightSymmetry, c: Counting
) -> dict[str, float | str]:
    rows = axis.weights_in(parameters)
    alive = neuron_norms(rows) > c.zero * axis.start_length  # [n]
    distinct, strict = (_groups(rows[alive], level, axis.odd) for level in (c.correlation, c.strict_correlation))
    zeros = float((~alive).sum())
    found: dict[str, float | str] = {"layer": axis.label, "width": axis.size, "distinct": distinct}
    found |= {"distinct_strict": strict, "zero_neurons": zeros, "merged": axis.size - zeros - distinct}
    if acts is not None:
        found["distinct_activations"] = _groups(acts, c.correlation, axis.odd, centre=True)
        found["dead_units"] = float(dead_units(acts.mT, rtol=1e-6))
    found["swap_distance"] = nearest_swap(unit_weights(symmetry, axis.label, parameters)[alive])
    return found


def _groups(rows: Tensor, correlation: float, odd: bool, *, centre: bool = False) -> float:
    """Number of groups of equal units among those that are not zero; 0 of none."""
    return float(distinct_neurons(rows, correlation, centre=centre, signless=odd)) if len(rows) else 0.0


def nearest_swap(units: Tensor) -> float:
    """min over i < j of ||u_i - u_j|| / sqrt 2 over the mean ||u_i||, units [n, D]; NaN below two units."""
    if len(units) < 2:
        return float("nan")
    exact = units.double()
    gaps = torch.cdist(exact, exact, compute_mode="donot_use_mm_for_euclid_dist")
    gaps.fill_diagonal_(torch.inf)
    return float(gaps.min() / 2**0.5 / torch.linalg.vector_norm(exact, dim=1).mean())
