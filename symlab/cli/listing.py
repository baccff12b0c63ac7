"""What there is to run: jobs, groups and options, read from the names of the files in conf/ (no hydra)."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

from symlab.rundir import BadInput

NOT_JOBS = ("base",)


def config_dir() -> Path:
    """conf/ beside the package (a checkout, an editable install), else inside it (a wheel)."""
    package = Path(os.path.abspath(__file__)).parents[1]
    for folder in (package.parent / "conf", package / "conf"):
        if (folder / "base.yaml").is_file():
            return folder
    raise BadInput(f"symlab's configuration is missing: no conf/base.yaml in {package.parent} nor in {package}")


def jobs() -> dict[str, str]:
    """Command -> its one line of help, the first-line comment of conf/<job>.yaml."""
    files = sorted(config_dir().glob("*.yaml"))
    return {file.stem.replace("_", "-"): first_comment(file) for file in files if file.stem not in NOT_JOBS}


def first_comment(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        line = lines.readline()
    return line.lstrip("# ").strip() if line.startswith("#") else ""


def groups(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Group -> its options, over conf/ and any --config-dir; groups of groups are written a/b."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.rglob("*.yaml"):
            group = file.parent.relative_to(folder).as_posix()
            if group != "." and not group.startswith("hydra"):
                found.setdefault(group, set()).add(file.stem)
    return {group: sorted(options) for group, options in sorted(found.items())}


def checked_job(name: str) -> str:
    """The name of the job's config and module.

    Raises BadInput, with the nearest names, if there is no such job.
    """
    known = jobs()
    if name.replace("_", "-") not in known:
        raise BadInput(f"there is no job {name!r}{nearest(name, known)} (symlab --help lists them)")
    return name.replace("-", "_")


def nearest(name: str, known: Iterable[str], what: str = "jobs") -> str:
    """`; did you mean a or b?`, or all that there are, if nothing is near."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.55)
    if close:
        similar = [difflib.SequenceMatcher(None, name, other).ratio() for other in close]
        close = [other for other, ratio in zip(close, similar, strict=True) if ratio > similar[0] - 0.1]
        return f"; did you mean {' or '.join(close)}?"
    return f"; there are the {what} {', '.join(known)}" if known else f"; there are no {what}"


def overview() -> str:
    """The text of `symlab --help`."""
    known = jobs()
    width = max((len(name) for name in known), default=0)
    lines = [f"  {name:<{width}}  {comment}" for name, comment in known.items()]
    return "\n".join(
        [
            "symlab: a laboratory for the symmetries of neural networks",
            "",
            "usage: symlab JOB [KEY=VALUE ...] [-m] [--cfg job] [--config-dir DIR]",
            "",
            "jobs:",
            *lines,
            "",
            "symlab JOB --help            that job's groups and keys",
            "symlab JOB KEY=VALUE         change a key, or choose an option of a group",
            "symlab JOB -m KEY=A,B        one run for each value",
            "symlab JOB resume=DIR        continue a run",
            "symlab --version             the version",
            'eval "$(symlab -sc install=bash)"   complete names with the tab key (also zsh, fish)',
        ]
    )
