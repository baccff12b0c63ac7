"""How well one model's own structured matrix stands for that of the ensemble, block by block.

Legend: S  models;  k  isotypic block;  D_k  its multiplicity;  m_k  copies;  M_k [m_k, m_k];  a, b  tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from symlab.curvature.measures import correlations, cosines, tensor_rows
from symlab.symmetry import WeightSymmetry

WHOLE = "all"
"""The part of a block that is all of it; the others are called `<tensor> x <tensor>`."""


@dataclass(frozen=True)
class PartQuality:
    """One part of one block: the entries of M_k (or of M_k[a, b]) of single models against the ensemble's."""

    block: str  # its axes
    part: str  # WHOLE, or a pair of tensors
    entries: int
    correlation: float  # Pearson's r, mean over the models
    correlation_std: float  # over the models
    cosine: float
    cosine_std: float
    norm: float  # Frobenius norm of the ensemble's part
    single_norm: float  # mean over models of the Frobenius norm of a single one's


def sample_blocks(
    symmetry: WeightSymmetry, u: Mapping[str, Tensor], v: Mapping[str, Tensor] | None = None
) -> list[Tensor]:
    """M_k = sym(U_k V_k^T) / D_k of each sample [S, m_k, m_k], from u and v [S, *shape]; v None: u."""
    left = symmetry.split(symmetry.with_sample_dimension(u))
    right = left if v is None else symmetry.split(symmetry.with_sample_dimension(v))
    found = []
    for block, a, b in zip(symmetry.blocks, left, right, strict=True):
        product = a @ b.mT / block.dimension  # [S, m_k, m_k]
        found.append(product if v is None else (product + product.mT) / 2)
    return found


def single_model_quality(
    symmetry: WeightSymmetry, singles: Sequence[Tensor], ensemble: Sequence[Tensor]
) -> list[PartQuality]:
    """Mean over models of r(M_k of one model, M_k of the ensemble), for each block and pair of tensors within it.

    `singles`: per block [S, m_k, m_k], see `sample_blocks`; `ensemble`: per block [m_k, m_k]. Correlation and cosine
    run over all entries of the part (both triangles of M_k); nan where one of the two is constant, or zero.
    """
    found = []
    for block, rows, single, mean in zip(symmetry.blocks, tensor_rows(symmetry), singles, ensemble, strict=True):
        name = "{" + ", ".join(block.axes) + "}"
        single = single.double()
        mean = mean.to(single)
        found.append(_quality(name, WHOLE, single, mean))
        if len(rows) < 2:
            continue
        for i, a in enumerate(rows):
            for b in list(rows)[i:]:
                p, q = rows[a][:, None].to(single.device), rows[b].to(single.device)
                found.append(_quality(name, f"{a} x {b}", single[:, p, q], mean[p, q]))
    return found


def _quality(block: str, part: str, single: Tensor, mean: Tensor) -> PartQuality:
    x, y = single.flatten(1), mean.flatten()  # [S, F], [F]
    r, cosine = correlations(x, y), cosines(x, y)  # [S]
    return PartQuality(
        block=block,
        part=part,
        entries=len(y),
        correlation=float(r.mean()),
        correlation_std=_std(r),
        cosine=float(cosine.mean()),
        cosine_std=_std(cosine),
        norm=float(y.norm()),
        single_norm=float(x.norm(dim=1).mean()),
    )


def _std(values: Tensor) -> float:
    return float(values.std()) if len(values) > 1 else float("nan")
