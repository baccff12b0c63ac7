"""The global random state that dropout and its like draw from."""

import torch


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """State of torch's global generator on the CPU and, for a CUDA device, on that device (uint8 tensors)."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Write back what `random_state` returned; a CUDA state is only used on a CUDA device."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
