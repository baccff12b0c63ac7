"""A stretch of a model's layers as a function of its own: y = stretch(x), cut out of any model by its modules' names.

Legend: B  rows;  x [B, *]  the tensor that enters the module `start`;  y [B, *]  what the module `end` gives.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

INPUTS, LOGITS = "inputs", "logits"
"""Names of the model's own inputs and outputs, where no submodule has them."""


@dataclass(frozen=True)
class Stretch:
    """x -> y of one model at its present weights, for the rows `inputs` of the whole model; see `Stretch.of`.

    A call runs the model on `inputs` with the tensor that enters `start` replaced by x, and stops behind `end`.
    Weights, buffers, modes and hooks of the model are as before afterwards, and nothing is random; torch.func's vjp,
    jvp and vmap pass through.
    """

    model: nn.Module
    inputs: Tensor  # [B, *]
    start: str
    end: str
    batch_statistics: bool
    point: Tensor  # x [B, *], where the derivative is taken
    output: Tensor  # y [B, *] there
    mixes: bool  # whether a row of y depends on other rows of x
    saved_bytes: int  # that a backward pass through the stretch keeps

    @classmethod
    def of(
        cls,
        model: nn.Module,
        inputs: Tensor,
        start: str = INPUTS,
        end: str = LOGITS,
        *,
        batch_statistics: bool = False,
    ) -> "Stretch":
        """From the input of the module `start` to the output of the module `end` (names as in `named_modules`).

        `inputs` and `logits` are the model's own. The model is in eval mode, so dropout is off; with `batch_statistics`
        its batch norms use the statistics of the rows, as in training, and remember none.

        Raises:
            ValueError: a name that there is not; a module that is not called, or called twice; y does not depend on x,
                or also on the model's inputs around `start` (the derivative would be partial); x or y is no floating
                tensor; the model draws random numbers.
            FloatingPointError: a number of x or y is not finite.
        """
        first, last = _path(model, start, INPUTS), _path(model, end, LOGITS)
        names = (start, end)
        with _modes(model, batch_statistics):
            plain = _plain_pass(model, inputs, first, last, names)
            point = plain.point.detach()
            mixes = _check_dependence(model, inputs, point, first, last, names)
            saved = _saved_bytes(model, inputs, point, first, last)
        return cls(model, inputs, first, last, batch_statistics, point, plain.output, mixes, saved)

    def __call__(self, x: Tensor) -> Tensor:
        """y [B, *] for x [B, *]."""
        with _modes(self.model, self.batch_statistics):
            return _run(self.model, self.inputs, self.start, self.end, x).output

    def row(self, index: int) -> "Stretch":
        """The stretch of one row alone.

        Raises:
            ValueError: rows depend on each other.
        """
        if self.mixes:
            raise ValueError("rows depend on each other (batch norm with the batch's statistics): no row stands alone")
        one = slice(index, index + 1)
        rest = (
            self.batch_statistics,
            self.point[one],
            self.output[one],
            False,
            self.saved_bytes // len(self.point) + 1,
        )
        return Stretch(self.model, self.inputs[one], self.start, self.end, *rest)


@dataclass
class _Pass:
    """What a forward pass met."""

    points: list[Tensor]
    outputs: list[Tensor]
    started_before_end: bool = False

    @property
    def point(self) -> Tensor:
        return self.points[0]

    @property
    def output(self) -> Tensor:
        return self.outputs[0]


class _Reached(Exception):
    """The end of the stretch: what comes behind it is not computed."""


def _run(model: nn.Module, inputs: Tensor, start: str, end: str, x: Tensor | None, *, whole: bool = False) -> _Pass:
    """A forward pass with x in place of what enters `start` (None: as it is); `whole`: also the layers behind `end`."""
    found = _Pass([], [])

    def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not args or not isinstance(args[0], Tensor):
            raise ValueError(f"module {start!r} is not given a tensor as its first argument: take another start")
        found.points.append(args[0])
        return None if x is None else (x.clone(), *args[1:])  # a clone: the module may work in place

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not isinstance(output, Tensor):
            raise ValueError(f"module {end!r} gives a {type(output).__name__}, not a tensor: take another end")
        found.started_before_end = found.started_before_end or bool(found.points)
        found.outputs.append(output.clone())  # a clone: the next module may work in place
        if not whole:
            raise _Reached

    state = {name: p.detach() for name, p in model.named_parameters()}
    state |= {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    handles = [model.get_submodule(start).register_forward_pre_hook(enter)]
    handles.append(model.get_submodule(end).register_forward_hook(leave))
    try:
        functional_call(model, state, (inputs,))
    except _Reached:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def _modes(model: nn.Module, batch_statistics: bool) -> Iterator[None]:
    """Eval mode, batch norms by the batch's statistics on demand; on exit every module is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    tracked = [(norm, norm.track_running_stats) for norm in norms]
    model.eval()
    if batch_statistics:
        for norm in norms:
            norm.training, norm.track_running_stats = True, False  # torch then neither reads nor moves the buffers
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for norm, track in tracked:
            norm.track_running_stats = track


@torch.no_grad()
def _plain_pass(model: nn.Module, inputs: Tensor, start: str, end: str, names: tuple[str, str]) -> _Pass:
    """The whole model on its inputs, looked at."""
    devices = [inputs.device] if inputs.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        before = _random_states(inputs)
        found = _run(model, inputs, start, end, None, whole=True)
        if any(not torch.equal(a, b) for a, b in zip(before, _random_states(inputs), strict=True)):
            raise ValueError("the model draws random numbers in eval mode, so it has no Jacobian: switch its noise off")
    for role, name, calls in (("start", names[0], found.points), ("end", names[1], found.outputs)):
        if len(calls) != 1:
            times = "never" if not calls else f"{len(calls)} times"
            raise ValueError(f"{role}={name}: the model calls this module {times} in a forward pass; it must be once")
    if not found.started_before_end:
        raise ValueError(f"end={names[1]} is computed before start={names[0]}: exchange them")
    for role, name, tensor in (("start", names[0], found.point), ("end", names[1], found.output)):
        if not tensor.is_floating_point():
            raise ValueError(f"{role}={name}: {tensor.dtype} activations have no derivative")
        if not bool(tensor.isfinite().all()):
            raise FloatingPointError(f"{role}={name}: an activation is not finite")
    return found


def _check_dependence(
    model: nn.Module, inputs: Tensor, point: Tensor, start: str, end: str, names: tuple[str, str]
) -> bool:
    """Does y depend on x, and on the model's inputs by x alone? Returns whether rows depend on each other."""
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad():
        x, origin = point.clone().requires_grad_(), inputs.detach().clone().requires_grad_()
        y = _run(model, origin, start, end, x).output
        weights = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)
        through, around = (None, None)
        if y.requires_grad:
            through, around = torch.autograd.grad(
                (y * weights).sum(), (x, origin), retain_graph=True, allow_unused=True
            )
    if through is None:
        raise ValueError(f"the output of end={names[1]} does not depend on the input of start={names[0]}")
    if around is not None:
        raise ValueError(
            f"the output of end={names[1]} depends on the model's inputs also around start={names[0]} (a skip"
            " connection passes by it), so the derivative would be partial: take a start that everything passes"
            " through, such as a whole block"
        )
    if len(y) != len(x) or len(x) < 2:
        return len(y) != len(x)
    (own,) = torch.autograd.grad((y[0] * weights[0]).sum(), x)
    return bool(own[1:].any())


def _saved_bytes(model: nn.Module, inputs: Tensor, point: Tensor, start: str, end: str) -> int:
    """Of the distinct tensors that autograd keeps for the backward pass from y to x."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _run(model, inputs.detach(), start, end, point.clone().requires_grad_())
    return sum(storages.values())


def _random_states(inputs: Tensor) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return states + ([torch.cuda.get_rng_state(inputs.device)] if inputs.is_cuda else [])


def _path(model: nn.Module, name: str, whole: str) -> str:
    """Path of the module called `name`; "" is the model itself, which `whole` names too."""
    modules: Mapping[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    if name in modules and name:
        return name
    if name == whole:
        return ""
    if name in (INPUTS, LOGITS):
        raise ValueError(
            f"a stretch begins with {INPUTS} and ends with {LOGITS}, or with modules: {name} is its other end"
        )
    known = [INPUTS, LOGITS, *filter(None, modules)]
    near = get_close_matches(name, known, 4, 0.4) or known[:: math.ceil(len(known) / 12)]
    raise ValueError(f"the model has no module {name!r}; it has for instance {', '.join(near)}")
