"""The key figures of a run, as plain values for summary.json."""

import resource
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from symlab.training.best import Best
from symlab.training.targets import first_reached, target_levels


def result_figures(
    rows: Sequence[Mapping[str, Any]], best: Best, targets: Sequence[float], references: Mapping[str, float]
) -> dict[str, Any]:
    """What the metrics say: final row, best evaluation, and steps and seconds until each target loss."""
    reached = first_reached(rows, target_levels(targets, references))
    return {
        "final": dict(rows[-1]) if rows else None,
        "best": {"metric": best.metric, "value": best.value, "step": best.step},
        "evaluations": len(rows),
        "references": dict(references),
        "target_losses": {name: hit["level"] for name, hit in reached.items()},
        "steps_to_target": {name: hit["step"] for name, hit in reached.items()},
        "seconds_to_target": {name: hit["seconds"] for name, hit in reached.items()},
    }


def cost_figures(step_seconds: Sequence[float], device: torch.device) -> dict[str, Any]:
    """Median time of an update (forward, backward, step) since this start, and peak memory."""
    return {
        "step_time_ms": 1000 * statistics.median(step_seconds) if step_seconds else None,
        "peak_memory_mib": peak_memory_mib(device),
    }


def peak_memory_mib(device: torch.device) -> float:
    """On CUDA the largest memory held by tensors, on the CPU the largest resident size of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
