"""SymO on the momentum: whiten what the step takes by its own structured second moment."""

from collections.abc import Mapping

from torch import Tensor, nn

from symlab.optim.symo import SymO, symo


def symo_momentum(
    model: nn.Module,
    inputs: Tensor,
    *,
    lr: float,
    beta: float = 0.5,
    momentum: float = 0.9,
    nesterov: bool = False,
    one_sided: bool = True,
    statistics_every: int = 1,
    update_every: int = 1,
    statistics_dtype: str = "float64",
    damping: float = 0.0,
    max_block: int = 512,
    weight_decay: float = 0.0,
    groups: Mapping[str, str] | None = None,
) -> SymO:
    """theta <- theta - lr Sigma_t^(-1/2) b_t, Sigma_t the group-averaged second moment of b_t = momentum b_{t-1} + g_t.

    `SymO` with `of_momentum`, and with `one_sided` for weights from hidden to hidden units. With beta 0 each block of
    the step is the polar factor of b_t's pieces, sqrt(D_k) U V^T of B_k = U S V^T: Muon's rule (Jordan, 2024) on the
    blocks of the symmetry in place of single matrices, and exact. Numbers behind the defaults: docs/symo_ablation.md.

    lr in (0, 100] is about the root mean square of an update, per block. The rest as in `SymO` and `symo`.

    Raises ValueError or TypeError for a number out of range and for groups that name no axis or no group.
    """
    return symo(
        model,
        inputs,
        lr=lr,
        beta=beta,
        momentum=momentum,
        nesterov=nesterov,
        of_momentum=True,
        one_sided=one_sided,
        statistics_every=statistics_every,
        update_every=update_every,
        statistics_dtype=statistics_dtype,
        damping=damping,
        max_block=max_block,
        weight_decay=weight_decay,
        groups=groups,
    )
