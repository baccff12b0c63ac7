"""A job whose name has two words."""

from symlab.rundir import Outcome, RunDir


def two_words(run: RunDir) -> Outcome:
    return Outcome(summary={"words": 2})
