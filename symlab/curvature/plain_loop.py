"""Curvature the plain way, one model after the other with torch.autograd: what the vectorised code is measured against.

Legend: S  models;  P  weights.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from symlab.curvature.problem import Problem


def loop_second_moment(problem: Problem, parameters: Mapping[str, Tensor], steps: int, lr: float) -> Tensor:
    """sum over models of g g^T [P, P], float64, g the gradient after `steps` steps of gradient descent."""
    total = torch.zeros(problem.num_parameters, problem.num_parameters, dtype=torch.float64)
    for net, weights in _models(problem, parameters):
        for _ in range(steps):
            slopes = _gradient(problem, net, weights)
            with torch.no_grad():
                for weight, slope in zip(weights, slopes, strict=True):
                    weight.sub_(slope, alpha=lr)
        vector = torch.cat([slope.flatten() for slope in _gradient(problem, net, weights)]).double()
        total.addr_(vector, vector)
    return total


def loop_hessians_by_row(problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
    """sum over models of the Hessian [P, P], float64: one backward pass per row of the matrix."""
    total = torch.zeros(problem.num_parameters, problem.num_parameters, dtype=torch.float64)
    for net, weights in _models(problem, parameters):
        slope = _differentiable_gradient(problem, net, weights)  # [P]
        rows = [torch.autograd.grad(entry, weights, retain_graph=True) for entry in slope]
        total += torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    return total


def loop_hessians_at_once(problem: Problem, parameters: Mapping[str, Tensor]) -> Tensor:
    """As `loop_hessians_by_row`, with all rows of one matrix in one batched backward pass."""
    P = problem.num_parameters
    total = torch.zeros(P, P, dtype=torch.float64)
    basis = torch.eye(P, dtype=problem.dtype)
    for net, weights in _models(problem, parameters):
        slope = _differentiable_gradient(problem, net, weights)  # [P]
        columns = torch.autograd.grad(slope, weights, basis, is_grads_batched=True)
        total += torch.cat([part.flatten(1) for part in columns], dim=1)
    return total


def loop_gradients(problem: Problem, parameters: Mapping[str, Tensor]) -> None:
    """One forward and backward pass over all rows per model."""
    for net, weights in _models(problem, parameters):
        _gradient(problem, net, weights)


def _models(problem: Problem, parameters: Mapping[str, Tensor]) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """The problem's net with the weights of each model in turn."""
    net = problem.model
    weights = [p for name, p in net.named_parameters() if name in problem.shapes]
    kept = [weight.detach().clone() for weight in weights]
    for s in range(len(next(iter(parameters.values())))):
        for weight, name in zip(weights, problem.shapes, strict=True):
            weight.data.copy_(parameters[name][s])
            weight.requires_grad_()
        yield net, weights
    for weight, value in zip(weights, kept, strict=True):
        weight.requires_grad_(False).copy_(value)


def _loss(problem: Problem, net: nn.Module) -> Tensor:
    return problem.loss(net(problem.inputs), problem.targets)


def _gradient(problem: Problem, net: nn.Module, weights: list[nn.Parameter]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(_loss(problem, net), weights)


def _differentiable_gradient(problem: Problem, net: nn.Module, weights: list[nn.Parameter]) -> Tensor:
    slopes = torch.autograd.grad(_loss(problem, net), weights, create_graph=True)
    return torch.cat([slope.flatten() for slope in slopes])
