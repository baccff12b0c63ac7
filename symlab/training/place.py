"""Where and how precisely a run computes: device, dtype, threads, repeatability."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from symlab.rundir import BadInput

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def find_device(name: str) -> torch.device:
    """The device called `name`: cpu, cuda, cuda:i, or auto (CUDA if there is a device, else the CPU).

    Raises BadInput for another name and for a CUDA device that is not there.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda:0" if count else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index.isdecimal() or name == "cuda"):
        raise BadInput(f"device must be auto, cpu, cuda or cuda:<number>, got {name!r}")
    if int(index or 0) >= count:
        raise BadInput(f"device={name} is not there: this machine has {count} CUDA devices; use device=auto or cpu")
    return torch.device(f"cuda:{int(index or 0)}")


def find_dtype(name: str) -> torch.dtype:
    """The dtype of weights and data called `name`. Raises BadInput for another than float32, float64, bfloat16."""
    if name not in DTYPES:
        raise BadInput(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def wait_for(device: torch.device) -> None:
    """Return when the device has done what it was given: CUDA works on while Python goes ahead."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def repeatable(seed: int, device: torch.device, threads: int | None, deterministic: bool) -> Iterator[None]:
    """Seed the global generators, set the threads and the deterministic mode; all of it is put back on exit.

    `threads` None leaves torch's number. With `deterministic` torch refuses operations whose result depends on chance,
    and cuDNN and cuBLAS choose repeatable algorithms; without it such operations are allowed, and cuDNN times its
    algorithms at the first batch of each shape and takes the fastest.

    Raises BadInput for a seed that generators do not take and for less than one thread.
    """
    if not 0 <= seed < 2**63:
        raise BadInput(f"seed must be at least 0 and below 2^63, got {seed}")
    if threads is not None and not threads >= 1:
        raise BadInput(f"threads must be at least 1, or null for what PyTorch finds, got {threads}")
    was_threads = torch.get_num_threads()
    was_mode = torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    was_benchmark = torch.backends.cudnn.benchmark
    was_workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            torch.manual_seed(seed)
            if threads is not None:
                torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(deterministic)
            torch.backends.cudnn.benchmark = not deterministic
            if deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            yield
        finally:
            torch.set_num_threads(was_threads)
            torch.use_deterministic_algorithms(was_mode, warn_only=was_warning)
            torch.backends.cudnn.benchmark = was_benchmark
            if was_workspace is None:
                os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
