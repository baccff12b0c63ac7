"""A run in several processes: rank 0 does all that the command line asks for and tells the others what to run."""

from __future__ import annotations

import contextlib
import importlib
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from symlab.cli import validation
from symlab.cli.arguments import Arguments
from symlab.rundir import BadInput, RunDir
from symlab.rundir.outcome import COMPLETED
from symlab.rundir.processes import Place, find_place, meeting

START, END = "start", "end"


def check(job: str, arguments: Arguments) -> None:
    """Raises BadInput for a job or a command that several processes cannot share."""
    place = find_place()
    if place.world == 1 or arguments.help or arguments.show:
        return
    if not getattr(importlib.import_module(f"symlab.jobs.{job}"), "SEVERAL_PROCESSES", False):
        raise BadInput(f"{job} runs in one process, and this command was started as {place.world}")
    if arguments.multirun:
        raise BadInput(
            f"a sweep (-m) runs in one process, and this command was started as {place.world}: start each of its runs"
            " by a command of its own, or as the tasks of an array"
        )


def announce_start(job: str, config: Mapping[str, Any]) -> None:
    """With the run directory ready: the others begin."""
    if find_place().world > 1:
        meeting().announce({START: {"job": job, "config": config}})


def announce_end(code: int) -> None:
    """The others, if they still wait for the start, end with this exit code."""
    with contextlib.suppress(BadInput):  # the message of a port that is taken has been shown
        meeting().announce({END: code})


def follow(place: Place, show_tracebacks: bool) -> int:
    """Any other rank: wait for rank 0's word, run the job with its configuration, leave nothing behind."""
    word = meeting().wait()
    if END in word:
        return int(word[END])
    job, config = word[START]["job"], word[START]["config"]
    logging.getLogger("symlab").setLevel(logging.ERROR)  # rank 0 says the rest
    try:
        arguments, _ = validation.bind(job, config, Path.cwd())
        with tempfile.TemporaryDirectory() as folder:
            outcome = validation.job_function(job)(RunDir(folder), **arguments)
    except (ValueError, TypeError, OSError, ImportError) as error:
        if show_tracebacks:
            raise
        raise BadInput(f"process {place.rank} of {place.world}: {error}") from error
    return COMPLETED if outcome.status == "completed" else int(outcome.exit_code)
