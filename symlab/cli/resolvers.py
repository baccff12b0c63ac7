"""The names of new directories, as OmegaConf resolvers for conf/base.yaml; importing this module registers them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable

from omegaconf import OmegaConf

from symlab.rundir.directory import run_name

LONGEST = 80  # characters of the readable part


def sweep_subdir(overrides: Iterable[str], constant: Collection[str] = ()) -> str:
    """The directory of one run of a sweep: the overrides that are swept over, readable, and 8 digits of their hash.

    The same overrides, in any order, give the same name, so that a sweep can be continued; the name holds
    letters, digits and . _ - only. `constant` are the keys that are the same in all runs of the sweep: they do not
    count, so that a sweep continued with another value finds its runs, and their saved configs decide if that may be.
    """
    ordered = sorted(str(override) for override in overrides)
    swept = [override for override in ordered if override.partition("=")[0] not in constant]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(swept)).strip("-._")[:LONGEST]
    digest = hashlib.sha256("\n".join(swept).encode("utf-8")).hexdigest()[:8]
    return f"{readable}-{digest}" if readable else f"run-{digest}"


def register() -> None:
    OmegaConf.register_new_resolver("run_name", run_name, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("sweep_subdir", sweep_subdir, replace=True)


register()
