"""Random vectors whose outer products average to Hessian, GGN and Fishers: for models too large for a P x P matrix.

Legend: S  models;  n  rows;  C  outputs;  J_r [C, P], H_r [C, C], d_r [C]  as in second_order;  s_r  independent random
signs.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import grad, vjp

from symlab.curvature.ensemble import over_models
from symlab.curvature.forward_mode import jvp
from symlab.curvature.label_law import label_law, row_curvatures, row_slopes
from symlab.curvature.problem import Problem

Tensors = dict[str, Tensor]


def hessian_probes(
    problem: Problem, parameters: Mapping[str, Tensor], generator: torch.Generator
) -> tuple[Tensors, Tensors]:
    """(H z, z) of each model, z random signs: E[(H z) z^T] = H since E[z z^T] = I. One Hessian-vector product each.

    `parameters` [S, *shape]; so are u and v of the result. The signs come from `generator` (CPU).
    """
    z = {name: signs(x.shape, generator, x.dtype).to(x.device) for name, x in parameters.items()}

    def one(own: Tensors, direction: Tensors) -> Tensors:
        total: Tensors = {}
        for inputs, targets, share in problem.batches():
            slope = grad(lambda p, x=inputs, y=targets: problem.loss(problem.outputs(p, x), y))
            part = jvp(slope, (own,), (direction,))[1]
            total = {name: share * x + total[name] if total else share * x for name, x in part.items()}
        return total

    return over_models(problem, one, parameters, z), z


def ggn_probes(
    problem: Problem, parameters: Mapping[str, Tensor], generator: torch.Generator
) -> tuple[Tensors, Tensors]:
    """(u, u) of each model, u = n^(-1/2) sum_r J_r^T L_r s_r with L_r L_r^T = H_r: E[u u^T] is the GGN.

    One backward pass; L_r costs C^3 per row, so for very many classes prefer `fisher_probes`, which has the same
    expectation for cross-entropy.

    Raises:
        ValueError: the loss is not convex in the outputs, so H_r has no root.
    """
    _check_convex(problem)
    n, C = problem.num_rows, problem.num_outputs

    def cotangent(outputs: Tensor, targets: Tensor, s: Tensor) -> Tensor:
        root = _psd_root(row_curvatures(problem.loss, outputs, targets))  # [B, C, C]
        return (root @ s.unsqueeze(-1)).squeeze(-1)

    count = _count(parameters)
    u = _backward(problem, parameters, cotangent, signs((count, n, C), generator, problem.dtype))
    return u, u


def fisher_probes(
    problem: Problem, parameters: Mapping[str, Tensor], generator: torch.Generator
) -> tuple[Tensors, Tensors]:
    """(u, u) of each model, u = n^(-1/2) sum_r s_r J_r^T d_r at labels drawn from its own law: E[u u^T] is the Fisher.

    Raises:
        ValueError: the loss does not say the law.
    """
    law = label_law(problem)
    n, C, count = problem.num_rows, problem.num_outputs, _count(parameters)
    noise = torch.stack([law.noise(n, C, generator) for _ in range(count)])  # [S, n, ...]
    s = signs((count, n, 1), generator, problem.dtype)

    def cotangent(outputs: Tensor, targets: Tensor, s: Tensor, noise: Tensor) -> Tensor:
        return s * law.sampled_score(outputs, noise)

    u = _backward(problem, parameters, cotangent, s, noise)
    return u, u


def empirical_fisher_probes(
    problem: Problem, parameters: Mapping[str, Tensor], generator: torch.Generator
) -> tuple[Tensors, Tensors]:
    """(u, u) of each model, u = n^(-1/2) sum_r s_r g_r: E[u u^T] is the empirical Fisher. One backward pass."""
    s = signs((_count(parameters), problem.num_rows, 1), generator, problem.dtype)

    def cotangent(outputs: Tensor, targets: Tensor, s: Tensor) -> Tensor:
        return s * row_slopes(problem.loss, outputs, targets)

    u = _backward(problem, parameters, cotangent, s)
    return u, u


def signs(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Independent +1 and -1, on the CPU."""
    return torch.randint(0, 2, shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1).to(dtype)


def _backward(
    problem: Problem, parameters: Mapping[str, Tensor], cotangent: Callable[..., Tensor], *random: Tensor
) -> Tensors:
    """n^(-1/2) sum_r J_r^T c_r of each model, c [B, C] = cotangent(outputs, targets, random numbers of these rows)."""
    n = problem.num_rows
    many = _count(parameters) > 1

    def one(own: Tensors, *numbers: Tensor) -> Tensors:
        total: Tensors = {}
        start = 0
        for inputs, targets, _ in problem.batches():
            outputs, pull = (_linearised if many else _linearised_one)(problem, own, inputs)
            chosen = [x[start : start + len(inputs)] for x in numbers]
            part = pull(cotangent(outputs, targets, *chosen).to(outputs) / n**0.5)
            total = {name: x + total[name] if total else x for name, x in part.items()}
            start += len(inputs)
        return total

    return over_models(problem, one, parameters, *(x.to(problem.inputs.device) for x in random))


def _linearised(problem: Problem, own: Tensors, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensors]]:
    """Outputs [B, C], and the map from slopes in them to slopes in the weights."""
    outputs, pull, *_ = vjp(lambda p: problem.outputs(p, inputs), own)
    return outputs, lambda slopes: pull(slopes)[0]


def _linearised_one(problem: Problem, own: Tensors, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensors]]:
    """As `_linearised` by a plain backward pass, outside of vmap, which is faster: see `gradients`."""
    leaves = {name: x.detach().requires_grad_() for name, x in own.items()}
    with torch.enable_grad():
        outputs = problem.outputs(leaves, inputs)

    def pull(slopes: Tensor) -> Tensors:
        found = torch.autograd.grad(outputs, list(leaves.values()), slopes, materialize_grads=True)
        return dict(zip(leaves, found, strict=True))

    return outputs.detach(), pull


def _psd_root(matrices: Tensor) -> Tensor:
    """L with L L^T = each matrix [B, C, C]; eigenvalues below zero, which rounding makes, count as zero."""
    values, vectors = torch.linalg.eigh(matrices)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)


def _check_convex(problem: Problem) -> None:
    rows = min(problem.num_rows, 8)
    outputs = torch.randn(rows, problem.num_outputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    curvatures = row_curvatures(problem.loss, outputs.to(problem.inputs.device, problem.dtype), problem.targets[:rows])
    values = torch.linalg.eigvalsh(curvatures)  # [B, C]
    if float(values.min()) < -1e-4 * float(values.abs().max()):
        raise ValueError(
            f"the loss is not convex in the outputs (eigenvalue {float(values.min()):.3g} of its second derivatives): "
            "its GGN has no root to draw from; estimate it with dense=True"
        )


def _count(parameters: Mapping[str, Tensor]) -> int:
    return len(next(iter(parameters.values())))
