"""Show the symmetry that symlab finds in a model, and the pattern of every matrix that respects it."""

import logging
from typing import Any, Protocol

import numpy as np
import torch
from matplotlib.figure import Figure

from symlab.rundir import BadInput, Outcome, RunDir
from symlab.symmetry import InvariantOperator, WeightSymmetry, infer_symmetry
from symlab.training.build import SAMPLE_ROWS, build_model
from symlab.training.factories import DataFactory, ModelFactory

KEY_FIGURES = ("parameters", "factors", "mean_factors")

logger = logging.getLogger("symlab")


class StructurePlot(Protocol):
    """Draws a matrix [P, P] whose rows belong to named layers."""

    def __call__(self, matrix: np.ndarray, layers: dict[str, int], *, title: str) -> Figure: ...


def structure(
    run: RunDir,
    *,
    model: ModelFactory,
    data: DataFactory,
    plot: StructurePlot,
    max_block: int | None = None,
    max_figure: int = 1000,
    seed: int = 0,
) -> Outcome:
    """Sigma = direct sum over blocks k of M_k (x) I_{D_k}: which axes, groups and blocks the model's weights have.

    Writes metrics.csv, one row per block: its axes, copies m_k, dimension D_k (the multiplicity of its eigenvalues),
    its tensors; and, for models of at most `max_figure` weights, the figure `structure`: a random matrix with this
    symmetry (equal entries have equal colours), the pattern of the mean gradient covariance, Hessian, GGN and Fisher.

    Raises BadInput for values out of range.
    """
    if max_block is not None and not max_block >= 1:
        raise BadInput(f"max_block must be at least 1, got {max_block}")
    dataset = data().to(torch.device("cpu"), torch.float32)
    net = build_model(model, dataset, seed, torch.device("cpu"), torch.float32)
    symmetry = infer_symmetry(net, dataset.train_inputs[:SAMPLE_ROWS])
    if max_block is not None:
        symmetry = symmetry.coarsen(max_block)
    run.write_environment({"device": "cpu", "seed": seed})
    run.append_rows(block_rows(symmetry))
    summary = {
        "status": "completed",
        "parameters": symmetry.num_parameters,
        "factors": symmetry.num_factors,
        "mean_factors": symmetry.num_mean_factors,
        "axes": {name: list(labels) for name, labels in symmetry.axes.items()},
        "groups": {label: group.value for label, group in symmetry.groups.items()},
    }
    run.write_summary(summary)
    logger.info("%s\n%s", symmetry, "\n".join(str(block) for block in symmetry.blocks))
    logger.info(
        "%d weights; a symmetric matrix that respects the symmetry has %d independent numbers, a vector %d",
        *(summary[key] for key in ("parameters", "factors", "mean_factors")),
    )
    if symmetry.num_parameters <= max_figure:
        layers = {name: int(np.prod(shape)) for name, shape in symmetry.shapes.items()}
        title = f"random matrix with the symmetry: {symmetry.num_factors} independent entries"
        run.save_figure("structure", plot(random_operator(symmetry, seed).dense().numpy(), layers, title=title))
    return Outcome("completed", 0, summary)


def block_rows(symmetry: WeightSymmetry) -> list[dict[str, Any]]:
    """One row per isotypic block."""
    return [
        {
            "block": index,
            "axes": " ".join(block.axes),
            "copies": block.copies,
            "dimension": block.dimension,
            "tensors": " ".join(dict.fromkeys(piece.tensor for piece in block.pieces)),
        }
        for index, block in enumerate(symmetry.blocks)
    ]


def random_operator(symmetry: WeightSymmetry, seed: int) -> InvariantOperator:
    """Symmetric, the entries of each M_k independent Gaussians, so that different numbers have different colours."""
    generator = torch.Generator().manual_seed(seed)
    matrices = []
    for block in symmetry.blocks:
        gaussian = torch.randn(block.copies, block.copies, generator=generator, dtype=torch.float64)  # [m, m]
        matrices.append((gaussian + gaussian.mT) / 2)
    return InvariantOperator(symmetry, matrices)
