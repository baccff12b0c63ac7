"""What is recorded of the singular values of one variant along its training: rows of tables, and arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symlab.curvature.jacobian_spectrum import SingularValues, isometry, isometry_names
from symlab.curvature.random_matrices import LAWS

MEASURED, LAW = "measured", "law"
"""Kinds of rows of a histogram."""

_LAW_POINTS = 400

Row = dict[str, Any]


@dataclass
class VariantPath:
    """One variant of one trial: its losses before each update, its spectra, and why it ended early if it did."""

    variant: str
    losses: dict[int, float | None] = field(default_factory=dict)
    spectra: dict[int, SingularValues] = field(default_factory=dict)
    message: str | None = None

    def rows(self, trial: int, thresholds: Sequence[float]) -> list[Row]:
        """One per step; the columns of the spectrum are None where it was not measured."""
        names, rows = isometry_names(thresholds), []
        for step in sorted({*self.losses, *self.spectra}):
            found = self.spectra.get(step)
            row: Row = {"trial": trial, "variant": self.variant, "step": step, "loss": self.losses.get(step)}
            row["method"] = found.method if found else None
            rows.append(row | (isometry(found, thresholds) if found else dict.fromkeys(names)))
        return rows

    def histogram(self, trial: int, edges: Tensor) -> list[Row]:
        """Density in each bin, the mean over the measured steps."""
        if not self.spectra:
            return []
        density = torch.stack([found.histogram(edges) for found in self.spectra.values()]).mean(0)
        return _bins(trial, self.variant, edges, density)

    def arrays(self) -> dict[str, np.ndarray]:
        """Steps [T], singular values and their shares [T, N]."""
        spectra = list(self.spectra.values())
        values = {"values": [found.values for found in spectra], "shares": [found.shares for found in spectra]}
        stacked = {f"{self.variant}_{name}": torch.stack(each).numpy() for name, each in values.items() if each}
        return {f"{self.variant}_steps": np.array(list(self.spectra), dtype=np.int64), **stacked}


def law_rows(variant: str, law: str, sigma: float, edges: Tensor) -> list[Row]:
    """The density of a law of random matrices on a fine grid, as rows of the histogram that belong to no trial."""
    fine = torch.linspace(float(edges[0]), float(edges[-1]), _LAW_POINTS + 1, dtype=torch.float64)
    return _bins(None, variant, fine, LAWS[law]((fine[1:] + fine[:-1]) / 2, sigma))


def _bins(trial: int | None, variant: str, edges: Tensor, density: Tensor) -> list[Row]:
    kind = LAW if trial is None else MEASURED
    cells = zip(edges[:-1].tolist(), edges[1:].tolist(), density.tolist(), strict=True)
    return [
        {"trial": trial, "variant": variant, "kind": kind, "low": low, "high": high, "density": value}
        for low, high, value in cells
    ]
