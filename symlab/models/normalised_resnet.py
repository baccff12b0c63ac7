"""Normalised residual networks: smooth, with every Jacobian under control whatever the weights (MacDonald et al.,
NeurIPS 2023, Theorem 5.1), and the same nets without normalisation or without skip connections.

Shapes: N rows, d_0 = product of input_shape, d_l widths, C = d_L = output_size.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from symlab.models.activations import activation_module
from symlab.models.sizes import checked_width

SMOOTH = ("tanh", "softplus", "sigmoid", "sin")
"""Activations that are smooth and whose derivative is at most 1."""


class WeightNormalised(nn.Module):
    """wn(w) = w / sqrt(epsilon + |w_i|^2), i the row: rows shorter than 1, so ||wn(w)|| < sqrt(rows)."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, weight: Tensor) -> Tensor:
        return weight * torch.rsqrt(self.epsilon + weight.square().sum(1, keepdim=True))

    @staticmethod
    def norm_bound(rows: int, columns: int) -> float:
        """The least number that no operator norm of a matrix of this size reaches."""
        return math.sqrt(rows)


class EntryNormalised(nn.Module):
    """en(w) = w / sqrt(epsilon + w^2), entry by entry: all entries in (-1, 1), so ||en(w)|| < sqrt(rows x columns)."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, weight: Tensor) -> Tensor:
        return weight * torch.rsqrt(self.epsilon + weight.square())

    @staticmethod
    def norm_bound(rows: int, columns: int) -> float:
        """The least number that no operator norm of a matrix of this size reaches."""
        return math.sqrt(rows * columns)


NORMALISATIONS: dict[str, type[WeightNormalised | EntryNormalised] | None] = {
    "weight": WeightNormalised,
    "entry": EntryNormalised,
    "none": None,
}


class ResidualBlock(nn.Module):
    """f(x) = I x + r V phi(U x), U [inner, d_in], V [d_out, inner] as normalised, or without the first term.

    `r` makes the branch's operator norm smaller than the `branch_norm` of `normalised_resnet` everywhere, since
    |phi'| <= 1. I [d_out, d_in] has all its singular values 1 (d_out <= d_in).
    """

    skip: Tensor | None

    def __init__(self, down: nn.Linear, up: nn.Linear, activation: str, factor: float, skip: Tensor | None) -> None:
        super().__init__()
        self.down, self.up, self.factor = down, up, factor
        self.activation = activation_module(activation)
        self.register_buffer("skip", skip, persistent=False)

    def branch(self, inputs: Tensor) -> Tensor:
        """g(x) = r V phi(U x)."""
        return self.factor * self.up(self.activation(self.down(inputs)))

    def forward(self, inputs: Tensor) -> Tensor:
        branch = self.branch(inputs)  # [N, d_out]
        return branch if self.skip is None else inputs @ self.skip.mT + branch


def normalised_resnet(
    input_shape: tuple[int, ...],
    output_size: int,
    generator: torch.Generator,
    *,
    widths: Sequence[int] = (32, 16),
    inner: int | None = None,
    normalisation: str = "entry",
    epsilon: float = 1.0,
    skip: bool = True,
    shrink: str = "first",
    branch_norm: float | None = 0.9,
    activation: str = "tanh",
) -> nn.Sequential:
    """f_L o ... o f_1, f_1(x) = A x with A [d_1, d_0] normalised, f_l(x) = I_l x + r_l V_l phi(U_l x), no biases.

    MacDonald et al., NeurIPS 2023, Theorem 5.1. The children are flatten, first, block2, ..., blockL; d_1 ... d_{L-1}
    are the `widths`, d_L the output size. `normalisation` of A, V and U: weight (`WeightNormalised`), entry
    (`EntryNormalised`), or none: the plain net. r_l = `branch_norm` / (bound of ||V|| x bound of ||U||), so that the
    branch's Jacobian is below `branch_norm` <= 1 at all weights; a plain net, for which no bound exists, has the r_l of
    `weight`; branch_norm None: r_l = 1. I_l keeps the `first` d_l coordinates or takes the `average` of neighbouring
    ones times the root of their number; both have all singular values 1. `skip` false leaves I_l out. `inner`: number
    of rows of U, None: as many as it has columns. The theorem's conditions are skip, a normalisation, branch_norm < 1
    and widths that do not grow; other nets can be built, to compare.

    Raw weights, which are what is trained, are N(0, 1 / fan_in), in float32 on the CPU, from `generator`, and the same
    for every normalisation and skip.

    Raises ValueError or TypeError for a width below 1, an unknown normalisation, shrink or activation, an activation
    that is not smooth with a derivative of at most 1, and an epsilon or branch_norm out of range.
    """
    sizes = [checked_width("widths", width) for width in widths]
    sizes = [checked_width("input_shape", math.prod(input_shape)), *sizes, checked_width("output_size", output_size)]
    _check(normalisation, epsilon, shrink, branch_norm, activation)
    if inner is not None:
        checked_width("inner", inner)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    layers["first"] = _linear(sizes[0], sizes[1], generator, normalisation, epsilon)
    for number, (d_in, d_out) in enumerate(pairwise(sizes[1:]), start=2):
        middle = d_in if inner is None else inner
        down = _linear(d_in, middle, generator, normalisation, epsilon)
        up = _linear(middle, d_out, generator, normalisation, epsilon)
        factor = 1.0 if branch_norm is None else branch_norm / _norms(normalisation, d_in, middle, d_out)
        identity = shrinking(d_out, d_in, shrink) if skip else None
        layers[f"block{number}"] = ResidualBlock(down, up, activation, factor, identity)
    return nn.Sequential(layers)


def shrinking(rows: int, columns: int, kind: str) -> Tensor:
    """I [rows, columns] with min(rows, columns) singular values, all of them 1.

    first: ones on the diagonal. average: row i takes the mean of its share of neighbouring columns, times the root of
    their number; with more rows than columns there is nothing to average, and it is the first.
    """
    if kind == "first" or rows >= columns:
        return torch.eye(rows, columns)
    identity = torch.zeros(rows, columns)
    owner = torch.arange(columns) * rows // columns  # [columns], the row that takes each of them
    identity[owner, torch.arange(columns)] = 1.0
    return identity / identity.sum(1, keepdim=True).sqrt()


def _linear(d_in: int, d_out: int, generator: torch.Generator, normalisation: str, epsilon: float) -> nn.Linear:
    layer = nn.Linear(d_in, d_out, bias=False, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.normal_(0.0, d_in**-0.5, generator=generator)
    kind = NORMALISATIONS[normalisation]
    if kind is not None:
        parametrize.register_parametrization(layer, "weight", kind(epsilon))
    return layer


def _norms(normalisation: str, d_in: int, middle: int, d_out: int) -> float:
    """The product of the two bounds."""
    kind = NORMALISATIONS[normalisation] or WeightNormalised
    return kind.norm_bound(middle, d_in) * kind.norm_bound(d_out, middle)


def _check(normalisation: str, epsilon: float, shrink: str, branch_norm: float | None, activation: str) -> None:
    if normalisation not in NORMALISATIONS:
        raise ValueError(f"normalisation must be one of {', '.join(NORMALISATIONS)}, got {normalisation!r}")
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    if shrink not in ("first", "average"):
        raise ValueError(f"shrink must be first or average, got {shrink!r}")
    if branch_norm is not None and not 0 < branch_norm <= 1:
        raise ValueError(f"branch_norm must be above 0 and at most 1, or null for no rescaling, got {branch_norm}")
    if activation not in SMOOTH:
        raise ValueError(
            f"activation must be smooth with a derivative of at most 1: one of {', '.join(SMOOTH)}, got {activation!r}"
        )
