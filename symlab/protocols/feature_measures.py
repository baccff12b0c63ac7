"""How much features hold: their dimension, their rank, and what a linear probe reads out of them.

Legend: S  nets;  N  rows;  F  features;  K  classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from symlab.constraint.measures import effective_dimension


def directions(features: Tensor) -> Tensor:
    """[S, N, F] float64: f / ||f|| minus the mean over rows, what a loss of cosines sees; zero rows stay zero."""
    rows = functional.normalize(features.double(), dim=-1)
    return rows - rows.mean(-2, keepdim=True)


def direction_rank(features: Tensor, cut_off: float) -> Tensor:
    """[S]: #{i: s_i / sqrt(N) > cut_off}, s singular values of `directions`: 0 if all rows have one direction.

    The scale is that of the rows' length 1, not the largest s: features that have collapsed altogether have rank 0.
    """
    return (torch.linalg.svdvals(directions(features)) / features.shape[-2] ** 0.5 > cut_off).sum(-1).double()


def direction_dimension(features: Tensor, cut_off: float) -> Tensor:
    """[S]: participation ratio (sum l)^2 / sum l^2 of the covariance of `directions`; 0 where all l <= cut_off^2."""
    rows = directions(features)
    alive = rows.square().sum(-1).mean(-1) > cut_off**2
    return torch.where(alive, effective_dimension(rows), 0.0)


def probe_accuracy(
    train: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor, classes: int, ridge: float
) -> Tensor:
    """[S]: accuracy of W = argmin ||f W - T||^2 / N + ridge ||W||^2, T one-hot, both centred, on the test rows.

    train [S, N, F], test [S, N', F]: divided by the root mean square of the entries of `train`, so that the scale of
    the features does not matter, but small directions are read only as far as `ridge` lets.
    """
    rows, new = train.double(), test.double()
    size = rows.square().mean((-2, -1), keepdim=True).sqrt()
    size = torch.where(size > 0, size, 1.0)
    rows, new = rows / size, new / size
    mean = rows.mean(-2, keepdim=True)
    rows, new = rows - mean, new - mean
    wanted = functional.one_hot(labels, classes).double()  # [N, K]
    share = wanted.mean(0)
    gram = rows.mT @ rows / len(labels) + ridge * torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
    weights = torch.linalg.solve(gram, rows.mT @ (wanted - share) / len(labels))  # [S, F, K]
    found = (new @ weights + share).argmax(-1)  # [S, N']
    return (found == test_labels).double().mean(-1)
