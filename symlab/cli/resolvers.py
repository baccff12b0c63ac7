"""The names of new directories, as OmegaConf resolvers for conf/base.yaml; importing this module registers them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from omegaconf import OmegaConf

from symlab.rundir.directory import run_name

LONGEST = 80  # characters of the readable part


def sweep_subdir(overrides: Iterable[str]) -> str:
    """The directory of one run of a sweep: what was overridden, readable, and 8 digits of its hash.

    The same overrides, in any order, give the same name, so that a sweep can be continued; the name holds
    letters, digits and . _ - only.
    """
    ordered = sorted(str(override) for override in overrides)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(ordered)).strip("-._")[:LONGEST]
    digest = hashlib.sha256("\n".join(ordered).encode("utf-8")).hexdigest()[:8]
    return f"{readable}-{digest}" if readable else f"run-{digest}"


def register() -> None:
    OmegaConf.register_new_resolver("run_name", run_name, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("sweep_subdir", sweep_subdir, replace=True)


register()
