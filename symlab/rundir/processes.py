"""Which of the processes of one run this is: started by torchrun, by srun, or alone.

torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; srun sets SLURM_STEP_ID, SLURM_NTASKS,
SLURM_PROCID, SLURM_LOCALID and the step's list of nodes.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from symlab.rundir.outcome import BadInput

if TYPE_CHECKING:
    from torch.distributed import Store

MEET = timedelta(minutes=5)
"""How long a process tries to reach the others at the start."""

WAIT = timedelta(minutes=30)
"""For the other processes, before this one gives up: the longest that one may read data or save alone."""

FIRST_PORT, PORTS = 20000, 12000
"""Below the range from which systems take ports of their own accord."""


@dataclass(frozen=True)
class Place:
    """Process number `rank` of `world`, number `local_rank` on its machine; rank 0 alone writes the run.

    They find each other at `address`:`port`, where torchrun itself listens if `hosted`, else rank 0. `attempt` keeps
    the messages of a start apart from those of one that torchrun had to repeat.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    address: str = ""
    port: int = 0
    hosted: bool = False
    attempt: str = "0"

    @property
    def is_first(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0


def find_place(environment: Mapping[str, str] = os.environ) -> Place:
    """The place that torchrun's or srun's variables give; a single process where there are none.

    In a batch script outside of srun SLURM_NTASKS speaks of the job, not of this process: without SLURM_STEP_ID it does
    not count. Raises BadInput for variables that do not fit together.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        rank, world = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
        local_rank = _number(environment, "LOCAL_RANK", rank)
        hosted = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return _checked(environment, rank, world, local_rank, hosted)
    if "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:
        rank, world = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_NTASKS", 1)
        return _checked(environment, rank, world, _number(environment, "SLURM_LOCALID", rank), False)
    return Place()


def _checked(environment: Mapping[str, str], rank: int, world: int, local_rank: int, hosted: bool) -> Place:
    if not 0 <= rank < world:
        raise BadInput(f"process number {rank} of {world} cannot be: RANK must be in 0..WORLD_SIZE-1")
    if world == 1:
        return Place()
    address = environment.get("MASTER_ADDR") or first_host(
        environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    )
    if "MASTER_PORT" in environment:
        port = _number(environment, "MASTER_PORT")
    else:
        port = port_of(_number(environment, "SLURM_JOB_ID", 0), _number(environment, "SLURM_STEP_ID", 0))
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Place(rank, world, local_rank, address, port, hosted, attempt)


def _number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    text = environment.get(name, "" if otherwise is None else str(otherwise))
    if not text.isdecimal():
        raise BadInput(f"the environment variable {name} must be a whole number, got {text!r}")
    return int(text)


def port_of(job: int, step: int) -> int:
    """A port for a step of a SLURM job: neighbouring jobs, which may share a machine, get different ones."""
    return FIRST_PORT + (17 * job + step) % PORTS


def first_host(nodes: str) -> str:
    """The first name in a list as SLURM writes it: node-a[003-007,9],b1 -> node-a003.

    Raises BadInput for an empty list.
    """
    found = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", nodes)  # up to the first comma outside of brackets
    if found is None:
        raise BadInput("several processes, but no address where they meet: set MASTER_ADDR to the first one's host")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", found.group())


class Meeting:
    """A small store that all processes of a run reach: rank 0 says there what is to be done.

    Raises BadInput where it cannot be reached, and on rank 0 where the port is taken.
    """

    def __init__(self, place: Place) -> None:
        from torch.distributed import PrefixStore, TCPStore

        host = place.is_first and not place.hosted
        try:
            base = TCPStore(place.address, place.port, None, host, MEET, wait_for_workers=False)
        except RuntimeError as error:
            what = "the port is taken" if host else "nobody answers"
            raise BadInput(
                f"{place.world} processes cannot meet at {place.address}:{place.port} ({what}):"
                f" set MASTER_ADDR and MASTER_PORT: {str(error).splitlines()[0]}"
            ) from error
        base.set_timeout(WAIT)
        self.store: Store = PrefixStore(f"symlab/{place.attempt}", base)
        self._groups = 0

    def group_store(self) -> Store:
        """A store of its own for the next group of connections, which every process asks for in the same order."""
        from torch.distributed import PrefixStore

        self._groups += 1
        return PrefixStore(f"group/{self._groups}", self.store)

    def announce(self, message: Mapping[str, Any]) -> None:
        """Rank 0's word to the others; the first one counts."""
        self.store.compare_set("start", "", json.dumps(message))

    def wait(self) -> dict[str, Any]:
        """What rank 0 announced."""
        message: dict[str, Any] = json.loads(self.store.get("start"))
        return message

    def claim(self, what: str, rank: int) -> int:
        """The process that has `what`: this one, unless another has claimed it."""
        return int(self.store.compare_set(f"claim/{what}", "", str(rank)))

    def first_failure(self, reason: str) -> str:
        """`reason`, why this process fails, or that of the process that failed before it."""
        return self.store.compare_set("failure", "", reason).decode()


@functools.cache
def meeting() -> Meeting:
    """The meeting of this process, made once."""
    return Meeting(find_place())
