"""How many models fit into a memory budget, before anything is computed.

Legend: S  models of one chunk;  n  rows;  B  rows of one batch;  C  outputs;  P  weights;  A  bytes that the backward
pass of one model keeps for B rows (measured on a few).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from symlab.curvature.estimate import GRADIENT_QUANTITIES, check_quantity
from symlab.curvature.problem import Problem, seeded
from symlab.symmetry import WeightSymmetry

GIB = 1024**3
CACHE = 40 * 1024**2
"""Working set of a chunk beyond which more models at once are no faster (bytes)."""

_SAMPLE_ROWS = 8
_FLOAT64 = 8
_LEVELS = 6
"""Sizes of groups that an estimate keeps open at once, at most: base * ratio^5 models are more than anyone draws."""


def chunk_size(
    problem: Problem,
    symmetry: WeightSymmetry,
    quantities: Sequence[str],
    dense: bool,
    memory_gib: float,
    folds: int = 10,
) -> int:
    """S = min(floor((budget - sums) / bytes of one model), models that fill the cache), at least 1.

    `sums` is `sums_bytes`, and the bytes of one model are `model_bytes`.

    Raises:
        ValueError: an unknown quantity, a budget that is not positive, sums that do not fit (with their size, and what
            the structured path would need), or one model that does not fit.
    """
    for quantity in quantities:
        check_quantity(quantity)
    if not memory_gib > 0:
        raise ValueError(f"memory_gib must be positive, got {memory_gib}")
    budget = memory_gib * GIB
    sums = sums_bytes(symmetry, quantities, dense, folds)
    P = symmetry.num_parameters
    if sums > budget:
        blocks = as_gib(sums_bytes(symmetry, quantities, False, folds))
        remedy = f"dense=false keeps the blocks alone and needs {blocks}" if dense else "give a larger memory_gib"
        what = f"{P} x {P} matrices" if dense else "blocks"
        names = ", ".join(quantities)
        raise ValueError(f"memory_gib={memory_gib}: the running sums ({what}) of {names} need {as_gib(sums)}; {remedy}")
    each = model_bytes(problem, quantities, dense)
    if sums + each > budget:
        raise ValueError(
            f"memory_gib={memory_gib}: one model needs {as_gib(each)} beside running sums of {as_gib(sums)}; give a "
            f"larger memory_gib or a smaller row_batch (now {problem.row_batch or problem.num_rows} rows)"
        )
    return max(1, min(int((budget - sums) / each), int(CACHE / each)))


def sums_bytes(symmetry: WeightSymmetry, quantities: Sequence[str], dense: bool, folds: int = 10) -> int:
    """Bytes of the estimates' running sums in float64: (folds + 6 open groups + 4) copies of P^2 numbers (dense), or
    (folds + 1 + 4) of sum m_k^2 (structured), and as many of P numbers where a mean gradient is kept.
    """
    P = symmetry.num_parameters
    numbers = P**2 if dense else sum(block.copies**2 for block in symmetry.blocks)
    copies = folds + (_LEVELS if dense else 1) + 4
    total = 0
    for quantity in quantities:
        total += 0 if quantity == "mean_gradient" else numbers
        total += P if quantity in ("mean_gradient", "covariance") else 0
    return _FLOAT64 * copies * total


def model_bytes(problem: Problem, quantities: Sequence[str], dense: bool) -> int:
    """Bytes that one model of a chunk takes at the largest of the quantities.

    Gradients, probes: 4 A + 8 P numbers. Of a net of linear layers (out, in: the largest of them), dense Hessian:
    2 out A (a tangent per unit) + B (out^2 + in^2) + 4 P^2 numbers; dense GGN and Fisher the same with C for out in
    the first term, and B C out^2. Of other nets, dense Hessian: 3 P A (a tangent per weight) + 4 P^2 numbers; GGN and
    Fisher: 2 C A + 3 B C P + 4 P^2 numbers; empirical Fisher: 2 A + 3 B P + 4 P^2 numbers.
    """
    A = activation_bytes(problem)
    P, C = problem.num_parameters, problem.num_outputs
    B = min(problem.row_batch or problem.num_rows, problem.num_rows)
    item = torch.finfo(problem.dtype).bits // 8
    largest = 4 * A + 8 * P * item
    of_matrices = {quantity for quantity in quantities if dense and quantity not in GRADIENT_QUANTITIES}
    if not of_matrices:
        return largest
    if problem.layers is not None:
        out, inner = (max(problem.shapes[layer.weight][d] for layer in problem.layers) for d in (0, 1))
        tangents = max(out if quantity == "hessian" else C for quantity in of_matrices)
        squares = out**2 * (1 if of_matrices <= {"hessian", "empirical_fisher"} else C) + (inner + 1) ** 2
        return max(largest, 2 * tangents * A + (B * squares + 4 * P**2) * item)
    if "hessian" in of_matrices:
        largest = max(largest, 3 * P * A + 4 * P**2 * item)
    if of_matrices & {"ggn", "fisher"}:
        largest = max(largest, 2 * C * A + (3 * B * C * P + 4 * P**2) * item)
    return max(largest, 2 * A + (3 * B * P + 4 * P**2) * item)


def activation_bytes(problem: Problem) -> int:
    """A, from a forward pass of at most 8 rows: what autograd saves of it, parameters and data (shared) left out."""
    rows = min(problem.row_batch or problem.num_rows, problem.num_rows)
    sample = min(rows, _SAMPLE_ROWS)
    parameters = {
        name: p.detach().clone().requires_grad_()
        for name, p in problem.model.named_parameters()
        if name in problem.shapes
    }
    shared = [*parameters.values(), problem.inputs, problem.targets]
    own = {x.untyped_storage().data_ptr() for x in shared}
    saved: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return x

    with seeded(problem), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        outputs = functional_call(problem.model, parameters, (problem.inputs[:sample],))
        problem.loss(outputs, problem.targets[:sample])
    total = sum(saved.values()) + outputs.numel() * outputs.element_size()
    return int(total * rows / sample)


def as_gib(count: float) -> str:
    """Bytes as a readable size."""
    return f"{count / GIB:.3g} GiB" if count >= GIB / 100 else f"{count / 1024**2:.3g} MiB"
