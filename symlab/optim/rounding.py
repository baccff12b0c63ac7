"""Which isotypic blocks hold nothing but the rounding errors of a gradient.

Legend: k  block;  M_k [m_k, m_k]  running second moment;  D_k  dimension of its irreducible piece;  T  tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from symlab.symmetry import WeightSymmetry

FACTOR = 16.0
"""Roundings of an entry that may add up, in units of the machine epsilon."""


@dataclass(frozen=True)
class RoundingFloor:
    """D_k tr M_k <= (16 epsilon)^2 sum over tensors T of block k of E|g_T|^2: block k is rounding error.

    E|g_T|^2 = sum over the pieces of T in all blocks of D_k tr M_k[piece, piece]. A gradient may vanish in a block
    exactly, as the antisymmetric part of W does in h^T W h; what is left there is noise, and a preconditioner that is
    relative to each block would blow it up to a full step.
    """

    copy_block: Tensor  # [sum m_k] block of each copy
    copy_tensor: Tensor  # [sum m_k] tensor of each copy
    copy_dimension: Tensor  # [sum m_k] D_k of each copy
    members: Tensor  # [K, T] 1 where the block holds a piece of the tensor
    epsilon: float

    @classmethod
    def of(cls, symmetry: WeightSymmetry, dtype: torch.dtype, device: torch.device) -> "RoundingFloor":
        """For gradients computed in `dtype`, with moments on `device`."""
        order = {name: i for i, name in enumerate(symmetry.axes)}
        blocks, tensors, dimensions = [], [], []
        members = torch.zeros(len(symmetry.blocks), len(order))
        for k, block in enumerate(symmetry.blocks):
            for piece in block.pieces:
                copies = piece.stop - piece.start
                blocks += [k] * copies
                tensors += [order[piece.tensor]] * copies
                dimensions += [float(block.dimension)] * copies
                members[k, order[piece.tensor]] = 1.0
        return cls(
            torch.tensor(blocks, device=device),
            torch.tensor(tensors, device=device),
            torch.tensor(dimensions, device=device),
            members.to(device),
            torch.finfo(dtype).eps,
        )

    def is_rounding(self, moments: Sequence[Tensor]) -> Tensor:
        """[K] of the moments M_k; True as well for a block of zeros."""
        energy = torch.cat([m.diagonal() for m in moments]) * self.copy_dimension  # [sum m_k]
        K, T = self.members.shape
        of_block = energy.new_zeros(K).index_add_(0, self.copy_block, energy)  # [K]
        of_tensor = energy.new_zeros(T).index_add_(0, self.copy_tensor, energy)  # [T]
        return of_block <= (FACTOR * self.epsilon) ** 2 * (self.members.to(energy.dtype) @ of_tensor)
