"""A real SLURM on this machine, in a directory of its own: munged, slurmctld and one slurmd, stopped by pid file.

Its node has eight GPUs in name: empty files, so that what asks for GPUs gets a place.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo")
SBIN = ("/usr/sbin", "/sbin")

CONFIGURATION = """\
ClusterName=symlab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller_port}
SlurmdPort={daemon_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=10
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=8000 Gres=gpu:8
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes={host} MaxTime=INFINITE State=UP PriorityTier=2
"""


def missing() -> str | None:
    """Why SLURM cannot be started here; None if it can."""
    absent = [name for name in PROGRAMS if _program(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (apt-get install slurm-wlm munge)"
    return None if os.geteuid() == 0 else "starting SLURM's daemons needs root"


class OneNodeSlurm:
    """Commands against the SLURM in `folder`; `environment` is what they and the jobs see."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        own = {name: value for name, value in environment.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        self.environment = {**own, "SLURM_CONF": str(folder / "slurm.conf")}

    def command(self, *words: str, cwd: Path | None = None) -> str:
        """Standard output; fails with both outputs if the command does."""
        done = subprocess.run(
            [_program(words[0]) or words[0], *words[1:]],
            env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, cwd: Path, *words: str) -> str:
        """sbatch from the folder `cwd`; the job's id."""
        return self.command("sbatch", "--parsable", *words, cwd=cwd).strip()

    def job(self, job: str) -> dict[str, str]:
        """JobState, Restarts, ExitCode and the other fields of one job or array task."""
        line = self.command("scontrol", "--oneliner", "show", "job", job)
        return dict(field.split("=", 1) for field in line.split() if "=" in field)

    def wait_for_state(self, job: str, *states: str, seconds: float = 120) -> dict[str, str]:
        wait_until(lambda: self.job(job)["JobState"] in states, f"job {job} in {states}", seconds)
        return self.job(job)

    def cancel_all(self) -> None:
        """End every job of this SLURM, and wait until it has."""
        for job in self.command("squeue", "--noheader", "--format=%i").split():
            self.command("scancel", job)
        wait_until(lambda: not self.command("squeue", "--noheader"), "the end of all jobs", 60)


@contextmanager
def one_node_slurm(folder: Path, environment: Mapping[str, str]) -> Iterator[OneNodeSlurm]:
    """Start munged, slurmctld and slurmd with all their files in `folder`; stop just these three at the end."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    controller_port, daemon_port = _free_ports(2)
    text = CONFIGURATION.format(
        host=socket.gethostname().partition(".")[0],
        folder=folder,
        controller_port=controller_port,
        daemon_port=daemon_port,
    )
    (folder / "slurm.conf").write_text(text)
    for number in range(8):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={folder}/gpu[0-7]\n")
    slurm = OneNodeSlurm(folder, environment)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    with ExitStack() as stack:
        for name in ("munged", "slurmctld", "slurmd"):
            stack.callback(_stop, folder / f"{'munge' if name == 'munged' else name}.pid", name)
        slurm.command("munged", "--force", *(f"--{flag}={folder}/munge.{end}" for flag, end in files.items()))
        slurm.command("slurmctld", "-c")
        slurm.command("slurmd", "-c")
        wait_until(lambda: set(slurm.command("sinfo", "--noheader", "--format=%T").split()) == {"idle"}, "idle", 30)
        stack.callback(slurm.cancel_all)
        yield slurm


def wait_until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SBIN))


def _free_ports(number: int) -> Sequence[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _stop(pid_file: Path, name: str) -> None:
    """End the daemon of that name and pid file, and wait until it is gone."""
    if not pid_file.exists():
        return
    number = int(pid_file.read_text())
    if _running(number) == name:
        os.kill(number, signal.SIGTERM)
        wait_until(lambda: _running(number) != name, f"the end of {name}", 30)


def _running(number: int) -> str | None:
    """The name of the process of that number, None if it has ended."""
    try:
        before, _, after = Path(f"/proc/{number}/stat").read_text().rpartition(")")
    except FileNotFoundError:
        return None
    return None if after.split()[0] == "Z" else before.partition("(")[2]
