"""What is to be computed of a stretch's Jacobian: one setting for many models and steps."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from symlab.curvature.jacobian_spectrum import METHODS, SingularValues, singular_values
from symlab.curvature.jacobian_stretch import Stretch

BATCHES, NORMS = ("joint", "per_sample"), ("train", "eval")


@dataclass(frozen=True)
class Measurement:
    """`batch` joint: the Jacobian of all rows together; per_sample: each row's own. `norm` train: batch norm with the
    statistics of the rows; eval: with the running ones. The rest as in `jacobian_spectrum.singular_values`.

    Raises:
        ValueError: an unknown batch, norm or method, a number out of range.
    """

    start: str
    end: str
    batch: str = "joint"
    norm: str = "train"
    method: str = "auto"
    memory_gib: float = 1.0
    probes: int = 10
    lanczos_steps: int = 60

    def __post_init__(self) -> None:
        for name, options in (("batch", BATCHES), ("norm", NORMS), ("method", METHODS)):
            value = getattr(self, name)
            if value not in options:
                raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}")
        for name, least in (("probes", 2), ("lanczos_steps", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.memory_gib > 0:
            raise ValueError(f"memory_gib must be positive, got {self.memory_gib}")

    def stretch(self, model: nn.Module, inputs: Tensor) -> Stretch:
        """The stretch of the model at its present weights, for the rows `inputs` [B, *]. Raises as `Stretch.of`."""
        return Stretch.of(model, inputs, self.start, self.end, batch_statistics=self.norm == "train")

    def of(self, model: nn.Module, inputs: Tensor, seed: int) -> SingularValues:
        """Its singular values; `seed` is of the random vectors of lanczos. Raises as `singular_values`."""
        return singular_values(
            self.stretch(model, inputs),
            per_row=self.batch == "per_sample",
            memory_gib=self.memory_gib,
            method=self.method,
            probes=self.probes,
            steps=self.lanczos_steps,
            generator=torch.Generator().manual_seed(seed),
        )

    def __str__(self) -> str:
        rows = "joint batch" if self.batch == "joint" else "row by row"
        return f"d {self.end} / d {self.start}, {rows}, batch norm in {self.norm} mode"
