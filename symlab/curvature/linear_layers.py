"""Linear layers with the rows of the data last in memory, and nets whose weights all belong to such layers.

Legend: B  rows;  l  number of the layer, in the order of the calls;  a_l [B, in_l]  its inputs;  z_l [B, out_l]  its
outputs before what is added to them;  e_l [out_l, B]  what is added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


class RowsLast(TorchFunctionMode):
    """Computes x W^T + b of inputs [B, in] as (W x^T + b)^T: a batch of such products over models is faster so."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear and args[0].ndim == 2:
            return _linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Tapped(TorchFunctionMode):
    """As `RowsLast`; adds e_l^T to the outputs of the l-th linear layer and keeps its inputs in `inputs`."""

    def __init__(self, added: Sequence[Tensor]) -> None:
        super().__init__()
        self.added = added
        self.inputs: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            self.inputs.append(args[0])
            return _linear(*args, **(kwargs or {})) + self.added[len(self.inputs) - 1].mT
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class LinearLayer:
    """Names of the parameters of one call of `torch.nn.functional.linear`."""

    weight: str
    bias: str | None


def linear_layers(model: nn.Module, parameters: Mapping[str, Tensor], inputs: Tensor) -> tuple[LinearLayer, ...] | None:
    """The layers, in the order of their calls; None unless each parameter is used once, as weight or bias of one.

    Inputs of a layer must be [B, in], B the rows of `inputs` and not, say, rows times positions; nothing else may touch
    a parameter.
    """
    own = {name: p.detach().clone() for name, p in parameters.items()}
    watch = _Watch(own, len(inputs))
    with torch.no_grad(), watch:
        functional_call(model, own, (inputs,))
    used = [name for layer in watch.layers for name in (layer.weight, layer.bias) if name is not None]
    return tuple(watch.layers) if watch.alone and sorted(used) == sorted(own) else None


class _Watch(TorchFunctionMode):
    """Notes which parameters each linear layer uses, and whether any other function sees one."""

    def __init__(self, parameters: Mapping[str, Tensor], rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.names = {id(p): name for name, p in parameters.items()}
        self.layers: list[LinearLayer] = []
        self.alone = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear:
            self._note(*args, **kwargs)
        elif any(id(leaf) in self.names for leaf in tree_leaves((args, kwargs))):
            self.alone = False
        return func(*args, **kwargs)

    def _note(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        name = self.names.get(id(weight))
        if (
            name is None
            or input.ndim != 2
            or len(input) != self.rows
            or (bias is not None and id(bias) not in self.names)
        ):
            self.alone = False
            return
        self.layers.append(LinearLayer(name, None if bias is None else self.names[id(bias)]))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = torch.matmul(weight, input.mT)  # [out, B]
    return (product if bias is None else product + bias.unsqueeze(-1)).mT
