"""Hessian, GGN, Fisher and empirical Fisher of many small models, exact and dense, averaged over all rows.

All with the scale of the loss itself: a mean over the n rows, and whatever factor 1/2 or 1/C a row's loss has. Where
all weights belong to linear layers they are computed by unit and row (see `layered`), otherwise with a derivative per
weight; the results are the same.

Legend: S  models;  n  rows;  C  outputs;  P  weights;  J_r [C, P]  derivative of row r's outputs in the weights;
H_r [C, C]  second derivatives of row r's loss in its outputs;  d_r [C]  its first derivative.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from symlab.curvature.ensemble import over_models
from symlab.curvature.forward_mode import jacfwd
from symlab.curvature.label_law import label_law, row_curvatures, row_slopes
from symlab.curvature.layered import Middle, layer_index, layered_hessian, layered_outer, layered_sandwich
from symlab.curvature.problem import Problem

_OfRows = Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]
"""(parameters of one model, inputs, targets) -> [P, P], a mean over these rows."""


def hessians(problem: Problem, parameters: Mapping[str, Tensor], *, symmetrise: bool = True) -> Tensor:
    """d^2 L / d theta^2 of each model [S, P, P], from parameters [S, *shape].

    Forward over reverse mode. With a derivative per weight, entries (i, j) and (j, i) differ by rounding, which
    `symmetrise` averages out (False: as they come, so that the asymmetry can be measured). At a kink the result is what
    torch differentiates: the derivative of ReLU at exactly 0 is 0, and the kink itself has no second derivative.
    """
    if problem.layers is not None:
        index = layer_index(problem)
        return _over_rows(problem, parameters, "hessians", lambda *rows: layered_hessian(problem, index, *rows))

    def of_rows(own: Mapping[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        def slope(theta: Tensor) -> Tensor:
            return grad(lambda t: problem.loss(problem.outputs(problem.unflatten(t), inputs), targets))(theta)

        return jacfwd(slope, randomness="same")(problem.flatten(own))

    found = _over_rows(problem, parameters, "hessians", of_rows)  # [S, P, P]
    return (found + found.mT) / 2 if symmetrise else found


def ggns(problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
    """(1/n) sum_r J_r^T H_r J_r of each model [S, P, P]: the generalised Gauss-Newton matrix (Schraudolph, 2002)."""
    return _sandwiches(problem, parameters, "ggns", lambda f, y: row_curvatures(problem.loss, f, y))


def fishers(problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
    """(1/n) sum_r E_y[g_r g_r^T] of each model [S, P, P], g_r = J_r^T d_r at a label y of the model's own law.

    The exact expectation, see `label_law`.

    Raises:
        ValueError: the loss does not say the law.
    """
    law = label_law(problem)
    return _sandwiches(problem, parameters, "fishers", lambda f, y: law.second_moment(f))


def empirical_fishers(problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
    """(1/n) sum_r g_r g_r^T of each model [S, P, P], g_r the gradient of row r's loss at its label. Not centred."""
    if problem.layers is not None:
        index = layer_index(problem)
        return _over_rows(problem, parameters, "empirical_fishers", lambda *rows: layered_outer(problem, index, *rows))

    def of_rows(own: Mapping[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        slopes = row_slopes(problem.loss, problem.outputs(own, inputs), targets)  # [B, C]
        rows = _row_gradients(problem, own, inputs, slopes)  # [B, P]
        return rows.mT @ rows / len(inputs)

    return _over_rows(problem, parameters, "empirical_fishers", of_rows)


def _over_rows(problem: Problem, parameters: Mapping[str, Tensor], key: str, of_rows: _OfRows) -> Tensor:
    """The mean over all rows [S, P, P] from that over batches of rows."""

    def one(own: dict[str, Tensor]) -> Tensor:
        parts = [share * of_rows(own, inputs, targets) for inputs, targets, share in problem.batches()]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    return over_models(problem, one, parameters, key=key)


def _sandwiches(problem: Problem, parameters: Mapping[str, Tensor], key: str, middle: Middle) -> Tensor:
    """(1/n) sum_r J_r^T B_r J_r [S, P, P], B_r [C, C] = middle(outputs, targets) of row r."""
    if problem.layers is not None:
        index = layer_index(problem)

        def layered(own: Mapping[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            return layered_sandwich(problem, index, own, inputs, targets, middle)

        return _over_rows(problem, parameters, key, layered)

    def of_rows(own: Mapping[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        between = middle(problem.outputs(own, inputs), targets)  # [B, C, C]
        jacobian = _jacobians(problem, own, inputs)  # [B, C, P]
        total = jacobian.flatten(0, 1).mT @ (between @ jacobian).flatten(0, 1) / len(inputs)
        return (total + total.mT) / 2

    return _over_rows(problem, parameters, key, of_rows)


def _jacobians(problem: Problem, own: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """J_r of each row [B, C, P] of one model: C backward passes, or P forward ones where rows depend on each other."""
    vector = problem.flatten(own)
    if problem.coupled:
        return jacfwd(lambda t: problem.outputs(problem.unflatten(t), inputs), randomness="same")(vector)

    def row(x: Tensor) -> Tensor:
        return jacrev(lambda t: problem.outputs(problem.unflatten(t), x.unsqueeze(0))[0])(vector)  # [C, P]

    return vmap(row, randomness=problem.randomness())(inputs)


def _row_gradients(problem: Problem, own: Mapping[str, Tensor], inputs: Tensor, slopes: Tensor) -> Tensor:
    """J_r^T d_r of each row [B, P] of one model, `slopes` d [B, C]."""
    if problem.coupled:
        return torch.einsum("bcp,bc->bp", _jacobians(problem, own, inputs), slopes)
    vector = problem.flatten(own)

    def row(x: Tensor, d: Tensor) -> Tensor:
        return grad(lambda t: problem.outputs(problem.unflatten(t), x.unsqueeze(0))[0] @ d)(vector)

    return vmap(row, randomness=problem.randomness())(inputs, slopes)
