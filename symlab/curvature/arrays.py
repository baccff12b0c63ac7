"""An estimate as plain arrays by name, as it is saved."""

import numpy as np
import torch
from torch import Tensor

from symlab.curvature.statistics import Estimate
from symlab.symmetry import WeightSymmetry


def matrix_arrays(estimate: Estimate) -> dict[str, np.ndarray]:
    """A matrix: `block_<k>` M_k, `block_names`, `block_dimensions` D_k, `predicted` eigenvalues with `multiplicity`,
    and, where a matrix is kept, `measured` C and `fitted` P(C) [P, P], `spectrum` [P] of C, descending.
    """
    operator = estimate.operator
    blocks = operator.symmetry.blocks
    predicted, multiplicity = operator.eigenvalues()
    arrays = {
        **layer_arrays(operator.symmetry),
        "block_names": np.array([f"{{{', '.join(block.axes)}}} x{block.dimension}" for block in blocks]),
        "block_dimensions": np.array([block.dimension for block in blocks]),
        "predicted": _array(predicted),
        "multiplicity": _array(multiplicity),
    }
    arrays |= {f"block_{k}": _array(matrix) for k, matrix in enumerate(operator.matrices)}
    if estimate.matrix is not None:
        symmetric = (estimate.matrix + estimate.matrix.mT) / 2
        arrays["measured"] = _array(estimate.matrix)
        arrays["fitted"] = _array(operator.dense())
        arrays["spectrum"] = _array(torch.linalg.eigvalsh(symmetric).flip(0))
    return arrays


def vector_arrays(symmetry: WeightSymmetry, measured: Tensor, fitted: Tensor) -> dict[str, np.ndarray]:
    """A vector: `measured` [P] and its projection `fitted` [P]."""
    return {**layer_arrays(symmetry), "measured": _array(measured), "fitted": _array(fitted)}


def layer_arrays(symmetry: WeightSymmetry) -> dict[str, np.ndarray]:
    """`layer_names` and `layer_sizes` of the tensors, in the order of the matrix."""
    sizes = [int(np.prod(shape)) for shape in symmetry.shapes.values()]
    return {"layer_names": np.array(list(symmetry.shapes)), "layer_sizes": np.array(sizes)}


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
