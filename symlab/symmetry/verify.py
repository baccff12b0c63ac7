"""Every axis tried on the model: the output must not change when a random group element moves the axis.

    || f(g theta, x) - f(theta, x) || <= rtol || f(theta, x) ||    for each output tensor, g acting on one axis

Up to EACH axes are moved one by one. More are numbered 1, 2, ..., and pass b moves all those whose number has bit b:
every axis is moved, every two axes are told apart by some pass (so a missing merge of two axes shows), and 500 axes
take 9 passes. If such a pass fails, its axes are tried one by one to name the wrong one; the error of an axis is then
the largest of its passes.

theta and x are random: the model's parameters and the inputs plus Gaussian noise of their own size (of 1/sqrt(fan
in) for a parameter that is zero), so that no fault hides behind zero-initialised layers, equal units or zero
inputs. The model is in eval mode (no dropout, no fused attention) and computes in float64, or in its own dtype if
its forward pass fixes one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from symlab.symmetry.groups import Group, random_matrix
from symlab.symmetry.tracing import Inputs, Trace, call_model

EACH = 32
SHOWN = 8  # axes named in one error
DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}


Move = Callable[[Tensor, int], Tensor]  # a tensor and a dimension -> the tensor with that dimension moved

# name -> for each dimension its segments -> for each segment its factors -> (label of the axis, size)
Layouts = Mapping[str, Sequence[Sequence[Sequence[tuple[str, int]]]]]


@dataclass(frozen=True)
class MovedAxis:
    """One axis: its size n, its group, and the (name, dimension) of every parameter that it indexes."""

    label: str
    size: int
    group: Group
    places: tuple[tuple[str, int], ...]


def verify_axes(
    model: nn.Module,
    inputs: Inputs,
    trace: Trace,
    axes: Sequence[MovedAxis],
    layouts: Layouts,
    rtol: float | None,
    seed: int,
) -> dict[str, float]:
    """Relative error of each axis, by label.

    layouts: the axes of every parameter and of the buffers that follow them (running statistics, which are positive:
    these move without signs). rtol: largest relative error allowed; None: the square root of the machine epsilon of
    the dtype (1.5e-8 in float64). Raises ValueError if an axis fails (names it and its parameters) or if the outputs
    are not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    dtype = _computing_dtype(trace)
    state = _random_state(trace, set(layouts), dtype, generator)
    points = tree_map(lambda x: _noisy(x, dtype, generator), inputs)
    errors = dict.fromkeys((axis.label for axis in axes), 0.0)
    with _quiet(model, trace), torch.no_grad(), _NoDropout():
        before = _outputs(model, state, points, seed)
        if not all(torch.isfinite(output).all() for output in before):
            raise ValueError(
                f"cannot verify axes: the outputs of {type(model).__name__} at random weights are not finite; use "
                "verify=False if its parameters are limited to a range (a logarithm, a square root)"
            )

        def error(moved: Sequence[MovedAxis]) -> tuple[float, float]:
            elements = {axis.label: moving_element(axis.group, axis.size, generator) for axis in moved}
            after = _outputs(model, _moved(state, trace, layouts, elements), points, seed)
            return _worst(before, after, rtol)

        for moved in _passes(axes):
            found, allowed = error(moved)
            if not found <= allowed:
                _name_wrong(moved, found, allowed, error)
            for axis in moved:
                errors[axis.label] = max(errors[axis.label], found)
    return errors


def _passes(axes: Sequence[MovedAxis]) -> list[list[MovedAxis]]:
    """The axes that are moved together."""
    if len(axes) <= EACH:
        return [[axis] for axis in axes]
    bits = range(len(axes).bit_length())
    return [[axis for number, axis in enumerate(axes, start=1) if number >> bit & 1] for bit in bits]


def _name_wrong(
    moved: Sequence[MovedAxis],
    found: float,
    allowed: float,
    error: Callable[[Sequence[MovedAxis]], tuple[float, float]],
) -> NoReturn:
    """Raise for the first axis that fails by itself, or for all of them together."""
    wrong = list(moved)
    for axis in moved if len(moved) > 1 else ():
        alone, limit = error([axis])
        if not alone <= limit:
            wrong, found, allowed = [axis], alone, limit
            break
    texts = [
        f"{axis.label!r} ({', '.join(f'{name}[dim {dim}]' for name, dim in axis.places)}) is no {axis.group.value}"
        for axis in wrong[:SHOWN]
    ]
    raise ValueError(
        f"axis {'; or axis '.join(texts)} symmetry of the model: a random group element "
        f"changes the output by {found:.1e} of its norm, allowed {allowed:.1e}. A handler claims too much; "
        "pass verify=False only to look at the axes, or write them with WeightSymmetry(axes, shapes, groups)"
    )


def moving_element(group: Group, n: int, generator: torch.Generator) -> Tensor:
    """A random element [n, n] of the group that moves every unit.

    A cycle of all n; for signed permutations with random signs, both of which occur; for O(n) a Haar matrix.
    """
    if group is Group.ORTHOGONAL:
        return random_matrix(group, n, generator)
    order = torch.randperm(n, generator=generator)
    matrix = torch.zeros(n, n, dtype=torch.float64)
    matrix[order, order.roll(1)] = 1.0
    if group is Group.SIGNED_PERMUTATION:
        signs = torch.randint(0, 2, (n,), generator=generator) * 2.0 - 1.0
        signs[0], signs[-1] = 1.0, -1.0
        matrix *= signs.double()[:, None]
    return matrix


def _computing_dtype(trace: Trace) -> torch.dtype | None:
    """float64; None (each tensor's own) if the forward pass names a dtype or holds constants, or without float64."""
    for node in trace.graph.nodes:
        arguments = [*node.args, *node.kwargs.values()]
        named = any(isinstance(a, torch.dtype) and a.is_floating_point and a is not torch.float64 for a in arguments)
        value = node.meta.get("val")
        own = node.op != "placeholder" and not node.all_input_nodes and isinstance(value, Tensor) and value.ndim > 0
        if named or (own and value.is_floating_point() and value.dtype is not torch.float64):
            return None
    return None if any(tensor.device.type == "mps" for tensor in trace.parameters.values()) else torch.float64


def _noisy(x: Tensor, dtype: torch.dtype | None, generator: torch.Generator, scale: float = 1.0) -> Tensor:
    """x + Gaussian noise of the root mean square of x, or of `scale` if x is zero; integers as they are."""
    if not x.is_floating_point():
        return x.clone()
    exact = x.detach().double() if dtype is not None else x.detach().float()
    size = exact.square().mean().sqrt()
    size = torch.where(size > 0, size, torch.full_like(size, scale))
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(exact)
    return (exact + size * noise).to(dtype or x.dtype)


def _random_state(
    trace: Trace, followers: set[str], dtype: torch.dtype | None, generator: torch.Generator
) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, tensor in trace.parameters.items():
        fan_in = max(1, tensor[0].numel()) if tensor.ndim > 1 else 1
        state[name] = _noisy(tensor, dtype, generator, scale=fan_in**-0.5)
    for name, tensor in trace.buffers.items():
        copy = tensor.detach().clone()
        copy = copy.to(dtype) if dtype is not None and copy.is_floating_point() else copy
        if name in followers:  # running statistics: a positive shift, so that variances stay positive
            copy = copy + torch.rand(copy.shape, generator=generator).to(copy)
        state[name] = copy
    return state


def _moved(
    state: Mapping[str, Tensor], trace: Trace, layouts: Layouts, elements: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The state with these axes moved in all places: parts and factors of dimensions as well."""
    moves = {label: _move(element) for label, element in elements.items()}
    statistics = any(name not in trace.parameters for name in layouts)
    signless = {label: _move(element.abs()) for label, element in elements.items() if statistics}
    moved = dict(state)
    for name, layout in layouts.items():
        for dim, segments in enumerate(layout):
            if any(label in elements for segment in segments for label, _ in segment):
                follows = moves if name in trace.parameters else signless
                moved[name] = _moved_dimension(moved[name], dim, segments, follows)
    return moved


def _moved_dimension(
    tensor: Tensor, dim: int, segments: Sequence[Sequence[tuple[str, int]]], moves: Mapping[str, Move]
) -> Tensor:
    sizes = [[size for _, size in segment] for segment in segments]
    pieces = []
    for segment, own, piece in zip(segments, sizes, tensor.split([math.prod(s) for s in sizes], dim), strict=True):
        viewed = piece.unflatten(dim, own)
        for k, (label, _) in enumerate(segment):
            if label in moves:
                viewed = moves[label](viewed, dim + k)
        pieces.append(viewed.reshape(piece.shape))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def _move(element: Tensor) -> Move:
    """T, dim -> sum_j g[i, j] T[.., j, ..]; by index if g is a signed permutation, which is exact in every dtype."""
    if not bool((element.count_nonzero(dim=1) == 1).all()):
        return lambda tensor, dim: torch.tensordot(element.to(tensor), tensor, dims=([1], [dim])).movedim(0, dim)
    source = element.abs().argmax(dim=1)
    signs = element.gather(1, source[:, None])  # [n, 1]

    def by_index(tensor: Tensor, dim: int) -> Tensor:
        picked = tensor.index_select(dim, source.to(tensor.device))
        if bool((signs > 0).all()):
            return picked
        return picked * signs.to(tensor).reshape(-1, *(1,) * (tensor.ndim - 1 - dim))

    return by_index


def _outputs(model: nn.Module, state: Mapping[str, Tensor], points: Inputs, seed: int) -> list[Tensor]:
    """Floating outputs; the forward pass gets its own copy of the state and the same random numbers each time."""
    for generator in _generators(state.values()):
        generator.manual_seed(seed)
    copies = {name: tensor.clone() for name, tensor in state.items()}
    result = call_model(model, copies, tree_map(torch.clone, points))
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _worst(before: Sequence[Tensor], after: Sequence[Tensor], rtol: float | None) -> tuple[float, float]:
    """The relative change of the output that changes most against what is allowed, and what is allowed there."""
    worst = (0.0, 0.0)
    for old, new in zip(before, after, strict=True):
        allowed = torch.finfo(old.dtype).eps ** 0.5 if rtol is None else rtol
        size = old.double().norm().item()
        error = (new.double() - old.double()).norm().item() / (size or 1.0)
        if not error <= allowed:
            return error, allowed
        worst = max(worst, (error, allowed))
    return worst


def _generators(tensors: Iterable[Tensor]) -> list[torch.Generator]:
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    return [torch.default_generator, *(torch.cuda.default_generators[device.index] for device in devices)]


class _NoDropout(TorchFunctionMode):
    """Dropout of every kind is the identity, also where the forward pass asks for it in eval mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if getattr(func, "__name__", "").rstrip("_123d") in DROPOUTS:
            return args[0] if args else named["input"]
        return func(*args, **named)


@contextlib.contextmanager
def _quiet(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Eval mode, nothing compiled, with training flags and random states put back afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    generators = _generators([*trace.parameters.values(), *trace.buffers.values()])
    states = [generator.get_state() for generator in generators]
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for module, _ in flags:
            module.training = False
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, flag in flags:
            module.training = flag
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
