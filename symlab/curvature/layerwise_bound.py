"""How regular a net's outputs are as a function of its weights, and what each layer contributes to that.

Source: MacDonald et al., "On skip connections and normalisation layers in deep optimisation" (NeurIPS 2023),
Proposition 4.6 (equation 12).

Legend: F = f_L o ... o f_1  net;  N  rows of data, all of them inputs of F at once;  d_l  size of the outputs of layer
l for one row;  p_l  weights of layer l, P = sum p_l;  D  derivative in the weights, J  derivative in the layer's input;
lambda(A)  smallest eigenvalue of A A^T;  G  blocks of Jf_l: N where rows do not depend on each other, else 1;
m_l = N d_l / G  size of a block's outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap


@dataclass(frozen=True)
class LayerJacobians:
    """Both derivatives of every layer at the present weights, layers in the order of application."""

    names: tuple[str, ...]
    parameter: tuple[Tensor, ...]  # Df_l, each [G, m_l, p_l]; p_l = 0 for a layer without weights
    input: tuple[Tensor, ...]  # Jf_l, each [G, m_l, m_{l-1}]

    def contributions(self) -> list[Tensor]:
        """Jf_L ... Jf_{l+1} Df_l, each [N d_L, p_l]: the columns of DF that belong to layer l."""
        found: list[Tensor] = []
        after: Tensor | None = None  # [G, m_L, m_l]
        for own, step in zip(reversed(self.parameter), reversed(self.input), strict=True):
            found.append((own if after is None else after @ own).flatten(0, 1))
            after = step if after is None else after @ step
        return found[::-1]

    def derivative(self) -> Tensor:
        """DF [N d_L, P]."""
        return torch.cat(self.contributions(), 1)


@dataclass(frozen=True)
class LayerTerm:
    """One layer's part in the bound. `parameter` is lambda(Df_l), `input` lambda(Jf_l); `term` lambda(Df_l)
    prod_{k>l} lambda(Jf_k), equation 12's; `exact` lambda(Jf_L ... Jf_{l+1} Df_l), which it bounds from below.
    """

    layer: str
    parameter: float
    input: float
    term: float
    exact: float


@dataclass(frozen=True)
class LowerBound:
    """lambda(DF) >= sum_l exact_l (Weyl) >= sum_l term_l (equation 12); all terms are at least 0.

    `largest` is the largest eigenvalue of DF DF^T, the scale of rounding: lambda is known to about 1e-16 x
    sqrt(lambda x largest).
    """

    value: float  # lambda(DF)
    largest: float
    terms: tuple[LayerTerm, ...]  # of the layers with weights

    @property
    def exact_sum(self) -> float:
        """sum_l lambda(Jf_L ... Df_l)."""
        return sum(term.exact for term in self.terms)

    @property
    def bound(self) -> float:
        """The right-hand side of equation 12."""
        return sum(term.term for term in self.terms)

    @property
    def carrier(self) -> str:
        """The layer with the largest term."""
        return max(self.terms, key=lambda term: term.term).layer


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """f_1 ... f_L by name: the children of a sequential net, of another net the net itself as its only layer."""
    return dict(model.named_children()) if isinstance(model, nn.Sequential) else {"net": model}


def lowest(matrix: Tensor) -> float:
    """lambda(A) = smallest eigenvalue of A A^T, by singular values: of [..., m, n] the least over the leading ones.

    0 for m > n. Precise relative to ||A||: sqrt(lambda) is known to about eps ||A||.
    """
    rows, columns = matrix.shape[-2:]
    if rows > columns:
        return 0.0
    return float(torch.linalg.svdvals(matrix)[..., -1].min().square())


def layer_jacobians(layers: dict[str, nn.Module], inputs: Tensor, *, coupled: bool = False) -> LayerJacobians:
    """Df_l and Jf_l of each layer, by reverse mode, `inputs` [N, ...].

    `coupled`: a row's outputs depend on the other rows (batch norm in training mode); then there is one block of all
    rows. Layers without parameters have p_l = 0. Weights, buffers and modes are left as they are.

    Raises ValueError without layers, or where a layer's outputs have another number of rows than its inputs.
    """
    if not layers:
        raise ValueError("there is no layer, so there is no derivative")
    rows, parts = inputs, []
    for name, layer in layers.items():
        parameter, step = _of_one(layer, rows, coupled)
        parts.append((name, parameter, step))
        with torch.no_grad():
            outputs = _apply(layer)(dict(layer.named_parameters()), rows)
        if len(outputs) != len(rows):
            raise ValueError(f"layer {name} makes {len(outputs)} rows of {len(rows)}: each row must stay one row")
        rows = outputs
    names, parameters, steps = zip(*parts, strict=True)
    return LayerJacobians(names, parameters, steps)


def lower_bound(model: nn.Module, inputs: Tensor, *, coupled: bool = False) -> LowerBound:
    """lambda(DF) at the model's present weights and its lower bound by layers, for the outputs of all rows together.

    The layers are those of `layers_of`. Cost: N d_L backward passes and singular values of an [N d_L, P] matrix, so it
    is meant for small nets, in float64.

    Raises ValueError as `layer_jacobians`, and for a model without weights.
    """
    jacobians = layer_jacobians(layers_of(model), inputs, coupled=coupled)
    own = [lowest_of_stack(block) for block in jacobians.parameter]
    steps = [lowest_of_stack(block, diagonal=True) for block in jacobians.input]
    contributions = jacobians.contributions()
    terms, following = [], 1.0
    for place in reversed(range(len(own))):
        if jacobians.parameter[place].shape[-1]:
            exact = lowest(contributions[place])
            terms.append(LayerTerm(jacobians.names[place], own[place], steps[place], own[place] * following, exact))
        following *= steps[place]
    if not terms:
        raise ValueError("the model has no weights: there is nothing to differentiate in")
    derivative = torch.cat(contributions, 1)  # [N d_L, P]
    squares = torch.linalg.svdvals(derivative).square()
    value = float(squares[-1]) if len(squares) == len(derivative) else 0.0
    return LowerBound(value, float(squares[0]), tuple(reversed(terms)))


def lowest_of_stack(blocks: Tensor, *, diagonal: bool = False) -> float:
    """lambda of [G, m, n] as one matrix: the blocks on its `diagonal`, or under each other."""
    if blocks.shape[-1] == 0:
        return 0.0
    return lowest(blocks if diagonal else blocks.flatten(0, 1))


def _apply(layer: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """f(weights, rows), on copies of the buffers."""

    def call(weights: dict[str, Tensor], rows: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in layer.named_buffers()}
        found: Tensor = functional_call(layer, {**weights, **buffers}, (rows,))
        return found

    return call


def _of_one(layer: nn.Module, rows: Tensor, coupled: bool) -> tuple[Tensor, Tensor]:
    """Df [G, m, p] and Jf [G, m, m'] of one layer."""
    call = _apply(layer)
    weights = {name: p.detach() for name, p in layer.named_parameters() if p.requires_grad}
    fixed = {name: p.detach() for name, p in layer.named_parameters() if not p.requires_grad}

    def outputs(own: dict[str, Tensor], some: Tensor) -> Tensor:
        return call({**own, **fixed}, some).flatten()

    both = jacrev(outputs, argnums=(0, 1))
    if coupled:
        by_weights, by_rows = both(weights, rows.detach())
        by_weights, by_rows = {name: part[None] for name, part in by_weights.items()}, by_rows[None]
    else:
        by_weights, by_rows = vmap(both, in_dims=(None, 0))(weights, rows.detach().unsqueeze(1))
    step = by_rows.flatten(2)  # [G, m, m']
    columns = [part.flatten(2) for part in by_weights.values()]
    return (torch.cat(columns, 2) if columns else step[:, :, :0]), step
