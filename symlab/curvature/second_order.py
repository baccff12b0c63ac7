"""Hessian, GGN, Fisher and empirical Fisher of many small models, exact and dense, averaged over all rows.

All with the scale of the loss itself: a mean over the n rows, and whatever factor 1/2 or 1/C a row's loss has.

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
from symlab.curvature.problem import Problem


def hessians(problem: Problem, parameters: Mapping[str, Tensor], *, symmetrise: bool = True) -> Tensor:
    """d^2 L / d theta^2 of each model [S, P, P], from parameters [S, *shape].

    Forward over reverse mode: entries (i, j) and (j, i) differ by rounding, which `symmetrise` averages out (False: as
    they come, so that the asymmetry can be measured). At a kink the result is what torch differentiates: the
    derivative of ReLU at exactly 0 is 0, and the kink itself has no second derivative.
    """

    def one(own: dict[str, Tensor]) -> Tensor:
        vector = problem.flatten(own)
        total = torch.zeros((), dtype=vector.dtype, device=vector.device)
        for inputs, targets, share in problem.batches():

            def slope(theta: Tensor, x: Tensor = inputs, y: Tensor = targets) -> Tensor:
                return grad(lambda t: problem.loss(problem.outputs(problem.unflatten(t), x), y))(theta)

            total = total + share * jacfwd(slope, randomness="same")(vector)
        return total

    found = over_models(problem, one, parameters)  # [S, P, P]
    return (found + found.mT) / 2 if symmetrise else found


def ggns(problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
    """(1/n) sum_r J_r^T H_r J_r of each model [S, P, P]: the generalised Gauss-Newton matrix (Schraudolph, 2002)."""
    return _sandwiches(problem, parameters, lambda f, y: row_curvatures(problem.loss, f, y))


def fishers(problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
    """(1/n) sum_r E_y[g_r g_r^T] of each model [S, P, P], g_r = J_r^T d_r at a label y of the model's own law.

    The exact expectation, see `label_law`.

    Raises:
        ValueError: the loss does not say the law.
    """
    law = label_law(problem)
    return _sandwiches(problem, parameters, lambda f, y: law.second_moment(f))


def empirical_fishers(problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
    """(1/n) sum_r g_r g_r^T of each model [S, P, P], g_r the gradient of row r's loss. Not centred."""

    def one(own: dict[str, Tensor]) -> Tensor:
        total = torch.zeros((), dtype=problem.dtype, device=problem.inputs.device)
        for inputs, targets, share in problem.batches():
            slopes = row_slopes(problem.loss, problem.outputs(own, inputs), targets)  # [B, C]
            rows = _row_gradients(problem, own, inputs, slopes)  # [B, P]
            total = total + share / len(inputs) * rows.mT @ rows
        return total

    return over_models(problem, one, parameters)


def _sandwiches(
    problem: Problem, parameters: Mapping[str, Tensor], middle: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """(1/n) sum_r J_r^T B_r J_r [S, P, P], B_r [C, C] = middle(outputs, targets) of row r."""

    def one(own: dict[str, Tensor]) -> Tensor:
        total = torch.zeros((), dtype=problem.dtype, device=problem.inputs.device)
        for inputs, targets, share in problem.batches():
            between = middle(problem.outputs(own, inputs), targets)  # [B, C, C]
            jacobian = _jacobians(problem, own, inputs)  # [B, C, P]
            product = (between @ jacobian).flatten(0, 1)  # [B C, P]
            total = total + share / len(inputs) * jacobian.flatten(0, 1).mT @ product
        return (total + total.mT) / 2

    return over_models(problem, one, parameters)


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
