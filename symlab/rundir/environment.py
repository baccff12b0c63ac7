"""Where a run was made: versions, commit, machine, command line. Names no other environment variable."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

REQUIRED = ("torch", "torchvision", "numpy", "hydra-core", "omegaconf", "pandas", "matplotlib")
OPTIONAL = ("scikit-learn", "scipy", "pytorch-optimizer", "optuna")
SLURM = (
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_JOB_NODELIST",
)


def collect() -> dict[str, Any]:
    """Plain values that describe this process; the job adds device, threads and seeds."""
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": _versions(),
        "git": _git(Path(__file__).resolve().parents[2]),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "cpu_available": cpus_available(),
        "gpus": _gpus(),
        "pid": os.getpid(),
        "cwd": os.getcwd(),
        "slurm": {name: os.environ[name] for name in SLURM if name in os.environ},
    }


def cpus_available() -> int | None:
    """Processors that this process may use; None where the system does not say."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version(), "symlab": _version("symlab")}
    versions |= {name: _version(name) for name in REQUIRED}
    return versions | {name: found for name in OPTIONAL if (found := _version(name)) is not None}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(root: Path) -> dict[str, Any] | None:
    """Commit of the checkout that holds the package and whether tracked files differ; None if it is none."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    commit = _git_output(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {
        "commit": commit,
        "dirty": bool(_git_output(root, "status", "--porcelain", "--untracked-files=no")),
    }


def _git_output(root: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """Models of the NVIDIA cards that the driver lists (no CUDA context is made)."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("Model:")]
    return [line.partition(":")[2].strip() for line in lines]
