"""What SymO does with one parameter group: its symmetry, which tensors it covers, what fits it.

Legend: k  isotypic block;  m_k  its copies;  D_k  dimension of its irreducible piece;  N_k  coordinates per copy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from symlab.optim.coverage import Coverage
from symlab.optim.one_sided_symmetry import between_groups, one_sided
from symlab.optim.rounding import RoundingFloor
from symlab.symmetry import Group, WeightSymmetry


@dataclass(frozen=True)
class Plan:
    """The symmetry of one parameter group after coarsening, and which of its tensors have it."""

    symmetry: WeightSymmetry
    inside: frozenset[str]  # names that the given symmetry knows
    one_sided: frozenset[str]  # names with one free side, pooled over the other
    coarsened: tuple[str, ...]  # axes that are treated as if under O(n), to keep blocks within max_block
    work_dtype: torch.dtype  # of gradients and updates: float32 or better
    floor: RoundingFloor | None  # None for a single block, which has no other to be compared with

    def gradient(self, name: str, p: Tensor) -> Tensor:
        """The gradient (zero where there is none) as [1, *shape] in the working dtype."""
        shape = self.symmetry.shapes[name]
        if p.grad is None:
            return p.new_zeros(1, *shape, dtype=self.work_dtype)
        if p.grad.layout is not torch.strided:
            raise ValueError(f"the gradient of {name} is sparse: SymO takes dense gradients")
        return p.grad.to(self.work_dtype).reshape(1, *shape)

    @property
    def block_sizes(self) -> list[list[int]]:
        """[m_k, D_k, N_k] of each block, as it is saved beside the statistics."""
        return [[block.copies, block.dimension, block.coordinates] for block in self.symmetry.blocks]


def plan_of(group: Mapping[str, Any], symmetry: WeightSymmetry) -> Plan:
    """The plan for one parameter group of torch's form. Raises ValueError for parameters that SymO cannot take."""
    if "param_names" not in group:
        raise ValueError("SymO needs names: pass model.named_parameters(), not model.parameters()")
    parameters = dict(zip(group["param_names"], group["params"], strict=True))
    for name, p in parameters.items():
        if p.is_complex():
            raise ValueError(f"{name} is complex: SymO takes real parameters")
        known = symmetry.shapes.get(name, p.shape)
        if known != tuple(p.shape):
            raise ValueError(f"{name} is {list(p.shape)}, but {list(known)} in the symmetry")
    devices = {p.device for p in parameters.values()}
    if len(devices) > 1:
        raise ValueError(f"one group's parameters must be on one device, got {devices}")
    inside = [name for name in parameters if name in symmetry.axes]
    outside = {name: p.shape for name, p in parameters.items() if name not in symmetry.axes and p.numel() > 0}
    known = symmetry.restrict(inside)
    full = _extended(one_sided(known) if group["one_sided"] else known, outside)
    coarse = full.coarsen(group["max_block"])
    wide = any(p.dtype is torch.float64 for p in parameters.values())
    work_dtype = torch.float64 if wide else torch.float32
    several = len(coarse.blocks) > 1
    return Plan(
        symmetry=coarse,
        inside=frozenset(inside),
        one_sided=frozenset(name for name in inside if group["one_sided"] and between_groups(known, name)),
        coarsened=tuple(label for label in coarse.groups if label not in full.groups),
        work_dtype=work_dtype,
        floor=RoundingFloor.of(coarse, work_dtype, next(iter(devices))) if several else None,
    )


def coverage_of(group: Mapping[str, Any], plan: Plan) -> list[Coverage]:
    """One row per tensor of the group."""
    sizes: dict[str, list[int]] = {name: [] for name in group["param_names"]}
    for block in plan.symmetry.blocks:
        for name in dict.fromkeys(piece.tensor for piece in block.pieces):
            sizes[name].append(block.copies)
    taken = set(plan.coarsened)
    rows = []
    for name, p in zip(group["param_names"], group["params"], strict=True):
        rule = _rule(plan, name, sizes[name])
        if p.numel():
            labels = dict.fromkeys(a for part in plan.symmetry.layouts[name].parts for a in part.labels if a in taken)
            rule += f", coarsened along {', '.join(labels)}" if labels else ""
        rows.append(Coverage(name, rule if p.numel() else "empty, left alone", p.numel()))
    return rows


def _rule(plan: Plan, name: str, sizes: Sequence[int]) -> str:
    if name in plan.one_sided:
        return f"one side free, blocks of {sizes}"
    return f"symmetry, blocks of {sizes}" if name in plan.inside else "one scalar per tensor"


def check_saved(states: Mapping[str, Mapping[str, Any]], plan: Plan, dtype: torch.dtype) -> None:
    """`states`: what was saved for each parameter of a group, by name; the statistics are with the first.

    Raises ValueError unless the statistics have this plan's blocks and this dtype, and momentum its parameter's shape.
    """
    first = next(iter(states.values()), {})
    moments: Sequence[Tensor] = first.get("moments", [])
    if any(m.dtype is not dtype for m in moments):
        raise ValueError(
            f"saved statistics are {moments[0].dtype}, this optimizer's are {dtype}: give it the same statistics_dtype"
        )
    if moments:
        _check_blocks(first.get("blocks"), plan.block_sizes)
    for name, state in states.items():
        if "momentum_buffer" in state:
            found, expected = list(state["momentum_buffer"].shape[1:]), list(plan.symmetry.shapes[name])
            if found != expected:
                raise ValueError(f"saved momentum of {name} is {found}, the parameter is {expected}: another model")


def _check_blocks(found: Sequence[Sequence[int]] | None, expected: Sequence[Sequence[int]]) -> None:
    if found is None:
        raise ValueError("the saved state has no blocks: it is that of another optimizer, or of another version")
    if len(found) != len(expected):
        raise ValueError(f"the saved state has {len(found)} blocks, this optimizer {len(expected)}: another model")
    for k, (theirs, mine) in enumerate(zip(found, expected, strict=True)):
        if list(theirs) != list(mine):
            raise ValueError(
                f"saved block {k} is {_in_words(theirs)}, this optimizer's is {_in_words(mine)}:"
                " another model or symmetry"
            )


def _in_words(sizes: Sequence[int]) -> str:
    return f"{sizes[0]} x dimension {sizes[1]} ({sizes[2]} coordinates)"


def check_hyperparameters(group: Mapping[str, Any], after_schedule: bool = False) -> None:
    """Raises ValueError for a setting out of range; a schedule may set lr to 0."""
    lr = group["lr"]
    if isinstance(lr, bool) or not (math.isfinite(lr) and (lr > 0 or (after_schedule and lr == 0))):
        raise ValueError(f"lr must be positive and finite, got {lr}")
    for key, low, high, closed in (
        ("beta", 0.0, 1.0, False),
        ("momentum", 0.0, 1.0, False),
        ("damping", 0.0, math.inf, False),
        ("exponent", -1.0, 0.0, True),
        ("weight_decay", 0.0, math.inf, False),
    ):
        value = group[key]
        if isinstance(value, bool) or not (low <= value < high or (closed and value == high)):
            raise ValueError(f"{key} must lie in [{low:g}, {high:g}{']' if closed else ')'}, got {value}")
    for key in ("nesterov", "of_momentum", "one_sided"):
        if not isinstance(group[key], bool):
            raise ValueError(f"{key} must be true or false, got {group[key]!r}")
    for key in ("update_every", "max_block", "statistics_every"):
        value = group[key]
        if isinstance(value, bool) or not (isinstance(value, int) and value >= 1):
            raise ValueError(f"{key} must be a whole number of at least 1, got {value}")


def _extended(symmetry: WeightSymmetry, outside: Mapping[str, torch.Size]) -> WeightSymmetry:
    """The symmetry with further tensors, each with axes of its own under O(n): one scalar per tensor."""
    axes, shapes, groups = dict(symmetry.axes), dict(symmetry.shapes), dict(symmetry.groups)
    for name, shape in outside.items():
        shapes[name] = tuple(shape) or (1,)
        labels = tuple(f"outside:{name}:{d}" for d in range(len(shapes[name])))
        axes[name] = labels
        groups.update(dict.fromkeys(labels, Group.ORTHOGONAL))
    return WeightSymmetry(axes, shapes, groups, symmetry.sizes)
