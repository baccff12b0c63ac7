"""What is recorded of a net on its way, and of nets at random weights, about the theory of MacDonald et al. (NeurIPS
2023): one row per net and one per layer.

Legend: lambda(DF)  smallest eigenvalue of DF DF^T, see `layerwise_bound`;  L  loss;  H  its Hessian.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from symlab.curvature.layerwise_bound import LowerBound, layers_of, lower_bound
from symlab.curvature.many_starts import ManyStarts, Vectors
from symlab.curvature.smoothness import Landscape, regularity

Row = dict[str, Any]
HESSIAN = ("hessian_largest", "hessian_smallest", "hessian_error")


@dataclass(frozen=True)
class Probe:
    """Measures one net; `products` and `tolerance` are those of the Lanczos runs, see `Landscape.extremes`."""

    landscape: Landscape  # its model is written over
    products: int
    tolerance: float
    seed: int

    def at(self, vector: Tensor) -> tuple[Row, list[Row]]:
        """The row of the net with the weights [P] and the rows of its layers; numbers that are not finite are None, all
        of them where the loss or its gradient is not.
        """
        land = self.landscape
        Vectors.of(land.model).write(land.model, vector)
        found = regularity(land)
        if not math.isfinite(found.excess) or math.isnan(found.gradient_square):
            return self.unknown(), []
        bound = lower_bound(land.model, land.inputs)
        row: Row = {
            "loss": found.excess,
            "gradient_norm": math.sqrt(found.gradient_square),
            **bound_cells(bound),
            **self._hessian_cells(),
            "pl_ratio": found.pl_ratio,
            "output_ratio": found.output_ratio,
        }
        layers = [
            {"layer": t.layer, "parameter": t.parameter, "input": t.input, "term": t.term, "exact": t.exact}
            for t in bound.terms
        ]
        return known(row), [known(layer) for layer in layers]

    def _hessian_cells(self) -> Row:
        """The Hessian's extremes with their error, by Lanczos; None where a product overflows."""
        try:
            found = self.landscape.extremes(
                generator=torch.Generator().manual_seed(self.seed), steps=self.products, tolerance=self.tolerance
            )
        except FloatingPointError:
            return dict.fromkeys(HESSIAN)
        error = max(found.largest_error, found.smallest_error)
        return dict(zip(HESSIAN, (found.largest, found.smallest, error), strict=True))

    def unknown(self) -> Row:
        """The row of a net that is not finite: the same cells without numbers."""
        names = ("loss", "gradient_norm", "regularity", "terms", "bound", "carrier", "largest")
        return dict.fromkeys((*names, *HESSIAN, "pl_ratio", "output_ratio"))


def bound_cells(bound: LowerBound) -> Row:
    """lambda(DF), the sum of the layers' own lambda, equation 12's bound, its largest term's layer."""
    return {
        "regularity": bound.value,
        "terms": bound.exact_sum,
        "bound": bound.bound,
        "carrier": bound.carrier,
        "largest": bound.largest,
    }


def known(row: Mapping[str, Any]) -> Row:
    """The row with None for numbers that are not finite."""
    return {key: None if isinstance(cell, float) and not math.isfinite(cell) else cell for key, cell in row.items()}


def first_layer(model: nn.Module) -> list[slice]:
    """Where the weights of the first layer that has any stand in the vector of all weights."""
    slices = Vectors.of(model).slices()
    sequential = isinstance(model, nn.Sequential)
    for name, layer in layers_of(model).items():
        own = [f"{name}.{inner}" if sequential else inner for inner, _ in layer.named_parameters()]
        if found := [slices[key] for key in own if key in slices]:
            return found
    raise ValueError("the model has no trainable weights")


def path_rows(starts: ManyStarts, probe: Probe, labels: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of all starts at the present step, and of their layers; `labels` are the first cells of each start's.

    rises, largest_rise: updates so far that made the loss larger, and by how much at most. lipschitz: largest |change
    of the gradient| / |step| over the updates since the last recorded step. first_norm: of the first layer's weights.
    """
    where, rows, layers = first_layer(starts.model), [], []
    for s, label in enumerate(labels):
        alive = bool(starts.alive[s])
        head = {**label, "step": starts.step}
        own, parts = probe.at(starts.weights[s]) if alive else (probe.unknown(), [])
        first = torch.cat([starts.weights[s, part] for part in where]).norm()
        path = {
            "alive": alive,
            "rises": int(starts.rises[s]),
            "largest_rise": float(starts.largest_rise[s]),
            "lipschitz": float(starts.lipschitz[s]) if starts.step else None,
            "first_norm": float(first),
            "weight_norm": float(starts.weights[s].norm()),
        }
        rows.append(head | own | known(path))
        layers += [head | part for part in parts]
    return rows, layers


def recorded_steps(steps: int, count: int) -> list[int]:
    """About `count` steps from 0 to `steps`, from 1 on evenly spaced in their logarithm, the last included."""
    if count < 3 or steps < 3:
        return sorted({0, steps})
    spaced = [round(math.exp(math.log(steps) * k / (count - 2))) for k in range(count - 1)]
    return sorted({0, *spaced, steps})
