"""Time on a device that works on while Python goes ahead."""

import time

import torch


def seconds(device: torch.device) -> float:
    """time.perf_counter() once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
