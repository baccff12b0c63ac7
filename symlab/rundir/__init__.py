"""One run's directory: tables, figures, checkpoints, provenance. The only writer of files."""

from symlab.rundir.directory import RunDir
from symlab.rundir.outcome import BadInput, Outcome

__all__ = ["BadInput", "Outcome", "RunDir"]
