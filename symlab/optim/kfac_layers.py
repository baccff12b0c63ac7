"""Which layers have Kronecker factors, and the factors of one batch.

Legend: B  rows of the batch;  T  positions per row (1 for a linear layer on [B, in], the output's height x width for a
convolution; a layer called twice has as many more);  a [B T, D]  inputs of a layer, one per position, with a last
entry 1 for the bias;  g [B T, O]  derivative of a row's loss in the layer's outputs;  A [D, D], G [O, O]  factors.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from symlab.optim.patch_squares import patch_squares
from symlab.symmetry.parametrized import Behind, parameter_of, weights_behind


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear or convolution layer whose weight, and bias if it has a trainable one, are preconditioned together.

    What is moved are the parameters behind the two: where a parametrization stands between (w = a p + s, constants a
    and s), the gradient in w is that in p divided by a, and so is the change of p that changes w by a given amount.
    """

    name: str
    module: nn.Linear | nn.Conv2d
    weight: str  # names of the parameters in the model
    bias: str | None
    factors: Mapping[str, Tensor]  # attribute -> a, where the attribute is a p + s of its parameter p (`behind`)

    @property
    def sizes(self) -> tuple[int, int]:
        """(D, O)."""
        p = self.parameter
        return p[0].numel() + (self.bias is not None), len(p)

    @property
    def parameter(self) -> nn.Parameter:
        """That of the weight."""
        return parameter_of(self.module, "weight")

    @property
    def parameters(self) -> list[Tensor]:
        """That of the weight, and of the bias if it is preconditioned with it."""
        return [parameter_of(self.module, key) for key in self._keys]

    @property
    def _keys(self) -> list[str]:
        return ["weight"] if self.bias is None or self.module.bias is None else ["weight", "bias"]

    def gradient(self, dtype: torch.dtype) -> Tensor:
        """[O, D]: the gradients in weight and bias side by side; zero where the bias has none."""
        columns = []
        for key, p in zip(self._keys, self.parameters, strict=True):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            columns.append(self._divided(g.to(dtype), key).reshape(len(p), -1))
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def split(self, update: Tensor) -> dict[Tensor, Tensor]:
        """The changes of the parameters that change weight and bias by the update [O, D], in their shapes."""
        D = self.parameter[0].numel()
        parts = zip(self._keys, self.parameters, (update[:, :D], update[:, D:]), strict=False)
        return {p: self._divided(part.reshape(p.shape), key) for key, p, part in parts}

    def _divided(self, x: Tensor, key: str) -> Tensor:
        return x / self.factors[key].to(x) if key in self.factors else x

    def input_factor(self, inputs: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
        """Sum over rows and positions of a a^T [D, D], not divided, and the number B T of terms."""
        x = inputs.to(dtype)
        if isinstance(self.module, nn.Conv2d):
            return self._with_bias(*patch_squares(self.module, x))
        x = x.reshape(-1, x.shape[-1])  # [B T, D]
        return self._with_bias(x.mT @ x, x.sum(0), len(x))

    def output_factor(self, gradients: Tensor, dtype: torch.dtype) -> Tensor:
        """Sum over rows and positions of g g^T [O, O], not divided."""
        g = gradients.to(dtype)
        if isinstance(self.module, nn.Conv2d):
            return sum_of_squares(g.flatten(2))
        g = g.reshape(-1, g.shape[-1])  # [B T, O]
        return g.mT @ g

    def _with_bias(self, squares: Tensor, sums: Tensor, terms: int) -> tuple[Tensor, int]:
        """[[squares, sums], [sums^T, terms]] for a homogeneous last entry."""
        if self.bias is None:
            return squares, terms
        n = len(sums)
        full = squares.new_full((n + 1, n + 1), float(terms))
        full[:n, :n], full[:n, n], full[n, :n] = squares, sums, sums
        return full, terms


def sum_of_squares(x: Tensor) -> Tensor:
    """Sum over b of x_b x_b^T [n, n], from x [B, n, T]."""
    flat = x.transpose(0, 1).reshape(x.shape[1], -1)  # [n, B T]
    return flat @ flat.mT


NO_LAYER = "not of a linear or convolution layer"


class Found(NamedTuple):
    """The layers with factors, and for every other trainable parameter the reason why it has none."""

    layers: list[Layer]
    reasons: dict[str, str]


def find_layers(model: nn.Module, inputs: Tensor) -> Found:
    """The layers `nn.Linear` and `nn.Conv2d` (ungrouped) that a forward pass of `inputs` calls, weight trainable.

    The pass is made in eval mode, without a trace in the model or the global random state. A weight that several
    modules share, or that is used without a call of its layer (as in nn.MultiheadAttention), has no factors; nor has
    one with a parametrization, but for a shift and a constant factor (`symmetry.parametrized.behind`).
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    names = {id(p): name for name, p in trainable.items()}
    owners: dict[int, int] = {}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            owners[id(p)] = owners.get(id(p), 0) + 1
    reasons: dict[str, str] = {}
    candidates = []
    for path, module in model.named_modules():
        every = {key: found for key, found in weights_behind(module) if id(found.parameter) in names}
        own = {key: found for key, found in every.items() if owners[id(found.parameter)] == 1}
        layer, why = _layer_of(path, module, own, names)
        for found in every.values():  # a parametrization comes after the module with the weight, which decides
            shared = owners[id(found.parameter)] > 1
            reasons.setdefault(names[id(found.parameter)], "shared by several layers" if shared else why)
        if layer is not None:
            candidates.append(layer)
    called = _called(model, candidates, inputs) if candidates else set()
    layers = [layer for layer in candidates if layer.name in called]
    covered = {name for layer in layers for name in (layer.weight, layer.bias)}
    return Found(layers, {name: reasons.get(name, NO_LAYER) for name in trainable if name not in covered})


def _layer_of(
    path: str, module: nn.Module, own: Mapping[str, Behind], names: Mapping[int, str]
) -> tuple[Layer | None, str]:
    """The layer of a module with the trainable parameters `own` (by attribute), or why it is none."""
    if not isinstance(module, nn.Linear | nn.Conv2d):
        return None, NO_LAYER
    if type(module).forward not in (nn.Linear.forward, nn.Conv2d.forward):
        return None, f"{type(module).__name__} has a forward of its own"
    if isinstance(module, nn.Conv2d) and module.groups != 1:
        return None, "grouped convolution"
    if "weight" not in own:
        return None, "its layer's weight has no factors"
    if own["weight"].parameter.numel() == 0:
        return None, "empty"
    factors = {key: found.factor for key, found in own.items() if found.factor is not None}
    weight, bias = (names[id(own[key].parameter)] if key in own else None for key in ("weight", "bias"))
    assert weight is not None
    return Layer(path, module, weight, bias, factors), "its layer is not called"


@torch.no_grad()
def _called(model: nn.Module, layers: Sequence[Layer], inputs: Tensor) -> set[str]:
    """The names of those that a forward pass calls."""
    called: set[str] = set()
    modes = {module: module.training for module in model.modules()}
    devices = [inputs.device] if inputs.is_cuda else []

    def mark(name: str) -> Callable[..., None]:
        return lambda module, args, output: called.add(name)

    handles = [layer.module.register_forward_hook(mark(layer.name)) for layer in layers]
    try:
        with torch.random.fork_rng(devices):
            model.eval()
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    return called


class Call(NamedTuple):
    """One call of a layer within a forward pass."""

    layer: int
    edge: GradientEdge  # of the layer's outputs, before anything that happens to them in place
    squares: Tensor  # sum of a a^T [D, D]
    terms: int  # B T


@contextmanager
def recorded(layers: Sequence[Layer], dtype: torch.dtype) -> Iterator[list[Call]]:
    """Collects the calls of layers in the forward passes inside the context."""
    calls: list[Call] = []

    def hook(index: int) -> Callable[..., None]:
        def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if output.requires_grad:
                with torch.no_grad():
                    squares, terms = layers[index].input_factor(args[0].detach(), dtype)
                calls.append(Call(index, get_gradient_edge(output), squares, terms))

        return keep

    handles = [layer.module.register_forward_hook(hook(i)) for i, layer in enumerate(layers)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


class Factors(NamedTuple):
    """A [D, D] = (1/B) sum of a a^T and G [O, O] = (1/(B T)) sum of g g^T: A (x) G has the scale of the mean loss."""

    inputs: Tensor
    outputs: Tensor


def factors_of(
    layers: Sequence[Layer], calls: Sequence[Call], outputs: Tensor, scores: Iterable[Tensor], count: int
) -> dict[str, Factors]:
    """The factors of each layer that was called, by its weight's name, from the model's `outputs` [B, C].

    `scores`: `count` tensors [B, C], derivatives of the rows' losses in the outputs, whose backward passes are added
    up: C that make up the exact expectation, or S draws divided by sqrt(S). Consumes the graph of the outputs.
    """
    total: dict[int, Tensor] = {}
    edges = [call.edge for call in calls]
    used: set[int] = set()
    for k, d in enumerate(scores):
        gradients = torch.autograd.grad(
            outputs, edges, grad_outputs=d.to(outputs.dtype), retain_graph=k + 1 < count, allow_unused=True
        )
        for i, (call, g) in enumerate(zip(calls, gradients, strict=True)):
            if g is not None:
                used.add(i)
                part = layers[call.layer].output_factor(g, call.squares.dtype)
                total[call.layer] = total[call.layer].add_(part) if call.layer in total else part
    found = {}
    for index, output_sum in total.items():
        mine = [call for i, call in enumerate(calls) if call.layer == index and i in used]
        squares = mine[0].squares if len(mine) == 1 else torch.stack([call.squares for call in mine]).sum(0)
        found[layers[index].weight] = Factors(squares / len(outputs), output_sum / sum(call.terms for call in mine))
    return found


def check_factors(factors: Mapping[str, Factors]) -> None:
    """Raises FloatingPointError naming the first layer with a factor that is not finite."""
    if not factors:
        return
    sums = torch.stack([pair.inputs.sum() + pair.outputs.sum() for pair in factors.values()])
    if not bool(sums.isfinite().all()):
        name = list(factors)[int((~sums.isfinite()).nonzero()[0])]
        raise FloatingPointError(f"the Kronecker factors of {name} hold NaN or inf: nothing was changed")


def renew(state: dict[str, Any], factors: Factors, beta: float) -> None:
    """A <- beta A + (1 - beta) A of the batch, from 0, and G alike."""
    for key, new in (("input_factor", factors.inputs), ("output_factor", factors.outputs)):
        if key not in state:
            state[key] = torch.zeros_like(new)
        state[key].lerp_(new, 1 - beta)
