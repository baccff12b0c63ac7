"""PSGD Kron (pytorch-optimizer's)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from symlab.optim.checks import check_count, check_fraction, check_not_negative, check_rate
from symlab.optim.guarded import LibraryOptimizer, library, named_parameters


def kron(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    momentum: float = 0.9,
    update_every: int | None = None,
    weight_decay: float = 0.0,
    max_size_triangular: int = 8192,
    seed: int = 0,
) -> LibraryOptimizer:
    """W <- W - lr clip(P M), P = Q^T Q fitted so that it approximates E[g g^T]^(-1/2)  (Li, 2018 and 2024, PSGD Kron).

    Q = Q_1 x ... x Q_k, one factor per dimension;  M <- momentum M + (1 - momentum) G, divided by 1 - momentum^t.
    For a matrix, with A = Q_1 M Q_2^T and B = Q_1^(-T) V Q_2^(-1), V of normal random numbers:
    Q_1 <- Q_1 - 0.1 triu(A A^T - B B^T) Q_1 / ||A A^T + B B^T||, and so on for each dimension. Q_d is upper triangular;
    diagonal for a size of 1 or above `max_size_triangular`, and for vectors. The update is scaled down to a root mean
    square of 1.1 where it is above. Weight decay, on tensors of two and more dimensions, is decoupled:
    W <- W - lr weight_decay W.

    Q is renewed at updates 1, 1 + update_every, ...; None: at each of the first 500, then ever more rarely, down to
    every 33rd. Random numbers depend on `seed` and the number of the update alone. Q is float32.

    `lr` in (0, 100], `momentum` in [0, 1), `update_every` >= 1, `weight_decay` >= 0. `inputs` is not used.

    Raises ValueError or TypeError for a number out of range, ImportError without the package pytorch-optimizer.
    """
    check_rate("lr", lr)
    check_fraction("momentum", momentum)
    if update_every is not None:
        check_count("update_every", update_every)
    check_not_negative("weight_decay", weight_decay)
    check_count("max_size_triangular", max_size_triangular)
    if isinstance(seed, bool) or not (isinstance(seed, int) and seed >= 0):
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    # the library renews when its count of updates reaches 1 / probability: half a step of room for rounding
    probability = None if update_every is None else min(1.0, 1 / (update_every - 0.5))
    group = {"params": named_parameters(model), "lr": lr, "momentum": momentum, "weight_decay": weight_decay}
    group |= {"pre_conditioner_update_probability": probability, "max_size_triangular": max_size_triangular}
    group["update_counter"] = (update_every or 1) - 1  # the first update is one that renews
    return LibraryOptimizer([group], library("Kron", "kron"), {}, _rule, seed=seed)


def _rule(p: Tensor, group: Mapping[str, Any]) -> str:
    largest = group["max_size_triangular"]
    factors = [f"{n} x {n}" if p.ndim >= 2 and 1 < n <= largest else f"diagonal {n}" for n in p.shape]
    return f"factors {', '.join(factors)}" if factors else "one scalar"
