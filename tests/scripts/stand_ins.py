"""Stand-ins for srun, scontrol and symlab, so that the sbatch scripts run without a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
RECORD = """\
calls={calls}
number=$(find "$calls" -name '{name}.*' | wc -l)
{{ printf '%s\\0' "$@" "$PWD" "${{OMP_NUM_THREADS:-}}"; }} >"$calls/{name}.$number"
"""
SRUN = (
    RECORD
    + """\
while [[ "$1" == --* ]]; do shift; done
code=0
"$@" || code=$?
if [[ -n "${{SIGNAL_SHELL:-}}" ]]; then kill "-$SIGNAL_SHELL" "$PPID"; fi
exit "$code"
"""
)
SCONTROL = RECORD + 'exit "${{SCONTROL_CODE:-0}}"\n'
SYMLAB = (
    RECORD
    + """\
for word in "$@"; do
  case "$word" in
    -m) file=multirun.yaml ;;
    hydra.run.dir=*) folder="${{word#*=}}" ;;
  esac
done
if [[ -n "${{folder:-}}" ]]; then mkdir -p "$folder" && touch "$folder/${{file:-config.yaml}}"; fi
exit "${{SYMLAB_CODE:-0}}"
"""
)


@dataclass(frozen=True)
class Call:
    """One call of a stand-in: its arguments, the folder it ran in and OMP_NUM_THREADS."""

    arguments: tuple[str, ...]
    cwd: str
    threads: str


@dataclass(frozen=True)
class Cluster:
    """Runs sbatch scripts as SLURM would: a copy of the script, its directives ignored, SLURM's variables set."""

    folder: Path

    @property
    def submit_dir(self) -> Path:
        return self.folder / "where sbatch was called"

    def run(
        self, script: str, *arguments: str, task: int | None = None, **environment: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Start the script once as job 7, or as a task of array 40; variables that are None are left out."""
        number = {"SLURM_JOB_ID": "7"}
        if task is not None:
            number = {"SLURM_JOB_ID": str(41 + task), "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": str(task)}
        slurm = {**number, "SLURM_SUBMIT_DIR": str(self.submit_dir), "SLURM_CPUS_PER_TASK": "3"}
        spooled = shutil.copy(SCRIPTS / script, self.folder / "spool" / "slurm_script")
        return subprocess.run(
            ["bash", spooled, *arguments],
            env=self._environment({**slurm, **environment}),
            cwd=self.folder / "spool",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def calls(self, name: str) -> list[Call]:
        """What `srun`, `scontrol` or `symlab` was called with, in order."""
        found = []
        for number in range(len(list(self.folder.glob(f"calls/{name}.*")))):
            *arguments, cwd, threads = (self.folder / "calls" / f"{name}.{number}").read_text().split("\0")[:-1]
            found.append(Call(tuple(arguments), cwd, threads))
        return found

    def arguments(self, name: str = "symlab") -> list[tuple[str, ...]]:
        return [call.arguments for call in self.calls(name)]

    def _environment(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        here = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SYMLAB_", "OMP_"))}
        merged = {**here, "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", **changes}
        return {key: value for key, value in merged.items() if value is not None}


def make_cluster(folder: Path) -> Cluster:
    """A cluster whose programs are the stand-ins."""
    cluster = Cluster(folder)
    for name in ("bin", "calls", "spool", cluster.submit_dir.name):
        (folder / name).mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("symlab", SYMLAB)):
        program = folder / "bin" / name
        program.write_text("#!/usr/bin/env bash\n" + text.format(calls=f"'{folder / 'calls'}'", name=name))
        program.chmod(0o755)
    return cluster
