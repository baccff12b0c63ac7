"""`symlab`: splits the command line, checks all that can be checked, hands the run to Hydra, reports the end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import symlab
from symlab.cli import completion, listing
from symlab.cli.arguments import Arguments, parse
from symlab.cli.signals import Stopped, received, stop_on_signal
from symlab.rundir import BadInput
from symlab.rundir.outcome import BAD_INPUT, COMPLETED, FAILED
from symlab.rundir.processes import find_place

FULL_ERROR = "HYDRA_FULL_ERROR"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code.

    0 completed, 1 failed while running, 2 bad input, 3 diverged, 128 + signal when interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        place = find_place()
    except BadInput as error:
        return complain(str(error), BAD_INPUT)
    if place.world == 1:
        return _code(partial(_dispatch, words))
    from symlab.cli import several

    if not place.is_first:
        return _code(partial(several.follow, place))
    code = _code(partial(_dispatch, words))
    several.announce_end(code)
    return code


def _code(command: Callable[[bool], int]) -> int:
    """What the command returns, told whether to show tracebacks; its exceptions become one message and an exit code."""
    wanted = os.environ.get(FULL_ERROR) == "1"
    try:
        with stop_on_signal():
            code = command(wanted)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt as stop:
        return _stopped(stop if isinstance(stop, Stopped) else Stopped(signal.SIGINT))
    except Exception as error:
        stopped = received()
        if stopped is not None:
            return _stopped(stopped)
        if wanted:
            raise
        return _explain(error)


def _explain(error: Exception) -> int:
    """One message and an exit code."""
    match error:
        case BadInput():
            return complain(str(error), BAD_INPUT)
        case BrokenPipeError():
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - nobody reads any more
            return COMPLETED
        case OSError():
            return complain(str(error), FAILED)
        case ValueError() if isinstance(error.__cause__, OSError):  # a log file that cannot be opened
            return complain(str(error.__cause__), FAILED)
    return complain(f"{type(error).__name__}: {error} ({FULL_ERROR}=1 shows where)", FAILED)


def _stopped(stop: Stopped) -> int:
    return complain(f"stopped by {signal.Signals(stop.number).name}", stop.exit_code)


def complain(message: str, code: int) -> int:
    print(f"symlab: error: {message}", file=sys.stderr)
    return code


def _dispatch(words: Sequence[str], show_tracebacks: bool) -> int:
    arguments = parse(words)
    if arguments.completion:
        return _complete(arguments)
    if arguments.version:
        print(f"symlab {symlab.__version__}")
        return COMPLETED
    if arguments.job is None:
        if arguments.overrides:
            raise BadInput(f"{arguments.overrides[0]}: the job comes first: symlab JOB {arguments.overrides[0]}")
        print(listing.overview())
        return COMPLETED
    job = listing.checked_job(arguments.job)
    from symlab.cli.launch import launch  # hydra is imported only where it is needed

    with environment(FULL_ERROR, "1"):
        return launch(job, arguments, list(words), show_tracebacks)


def _complete(arguments: Arguments) -> int:
    from symlab.cli.launch import hydra_completion

    if not completion.is_query(arguments.overrides):
        return hydra_completion(next(iter(listing.jobs())).replace("-", "_"), arguments.overrides, line=None)
    line = completion.line_being_typed()
    job, rest = completion.split_line(line)
    if job is None:
        print("\n".join(completion.complete_job(line)))
        return COMPLETED
    return hydra_completion(job.replace("-", "_"), arguments.overrides, line=rest)


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set one environment variable for the length of a `with` block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
