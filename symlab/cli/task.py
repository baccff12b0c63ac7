"""One run, from Hydra's call to its outcome on disk. Hydra's launchers may call it in another process."""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from symlab.cli import resolvers, resume, several, validation
from symlab.cli.arguments import pasteable
from symlab.cli.compose import resolved
from symlab.cli.families import Orders, in_order
from symlab.cli.signals import Stopped, received
from symlab.cli.sweep import RESUME_ERROR
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.outcome import BAD_INPUT, COMPLETED, FAILED

resolvers.register()

INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError)  # bad input, while no row is written

logger = logging.getLogger("symlab")
file_logger = logging.getLogger("symlab.file")


@dataclass(frozen=True)
class Task:
    """What Hydra calls for each run: picklable, so that launchers can send it to other processes."""

    job: str
    command_line: str
    show_tracebacks: bool = False
    resume: bool = False
    config: Mapping[str, Any] | None = None  # of a single resumed run, instead of the composed one
    orders: Orders = field(default_factory=dict)  # of the labels of families, as typed

    def __call__(self, cfg: DictConfig) -> str:
        """Status of the run; raises Stopped if a signal ended it, so that a sweep ends too."""
        hydra = HydraConfig.get()
        run = RunDir(hydra.runtime.output_dir)
        with run.claimed(), quiet_logging():
            continued = self.resume and run.holds_run
            arguments, config = self._bind(run, cfg, Path(hydra.runtime.cwd), continued)
            if config is None:
                return "failed"
            if continued and self.config is None and self._is_done(run, config):
                return "completed"
            return self._run(run, arguments, config, continued)

    def _bind(
        self, run: RunDir, cfg: DictConfig, cwd: Path, continued: bool
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Arguments and config; (_, None) if they cannot work, which is then on record."""
        try:
            config = in_order(resolved(cfg), self.orders) if self.config is None else self.config
            return validation.bind(self.job, config, cwd)
        except BadInput as error:
            if not continued:
                run.write_config(OmegaConf.to_yaml(cfg), _overrides())
            self._fail(run, error, continued)
            return {}, None

    def _is_done(self, run: RunDir, config: Mapping[str, Any]) -> bool:
        """Whether this run of a resumed sweep is completed already."""
        resume.check_same(run, config, validation.resumable_changes(self.job) or ())
        if run.recorded_status != "completed":
            return False
        logger.info("already completed: %s", run.path)
        return True

    def _run(self, run: RunDir, arguments: Mapping[str, Any], config: Mapping[str, Any], continued: bool) -> str:
        try:
            self._record_start(run, config, continued)
            logger.info("run directory: %s", run.path)
            job = validation.job_function(self.job)
            if (stopped := received()) is not None:
                raise stopped  # it was swallowed on the way, as in a callback that cannot raise
            several.announce_start(self.job, config)
            outcome = job(run, **arguments)
        except KeyboardInterrupt as interruption:
            number = interruption.number if isinstance(interruption, Stopped) else int(signal.SIGINT)
            outcome = Outcome("interrupted", 128 + number, {"message": "stopped outside of the job's loop"})
        except (Exception, SystemExit) as error:  # code that a config names may call sys.exit
            if (stopped := received()) is not None:
                raise stopped from error
            self._fail(run, error, continued)
            return "failed"
        code = COMPLETED if outcome.status == "completed" else outcome.exit_code  # a late signal does not undo a run
        run.write_summary({**outcome.summary, "status": outcome.status, "exit_code": code})
        if outcome.status == "interrupted":
            path = os.path.relpath(run.path, HydraConfig.get().runtime.cwd)
            command = f"symlab {self.job.replace('_', '-')} {pasteable('resume', path)}"
            logger.warning("interrupted; to resume: %s", command)
        if outcome.exit_code > 128:
            raise Stopped(outcome.exit_code - 128)
        return outcome.status

    def _record_start(self, run: RunDir, config: Mapping[str, Any], continued: bool) -> None:
        if continued:
            run.replace_config(resume.to_yaml(config))
        else:
            run.write_config(resume.to_yaml(config), _overrides())
        known = {key: config[key] for key in ("device", "threads", "seed") if key in config}
        cwd = str(HydraConfig.get().runtime.cwd)
        run.write_environment({"command_line": self.command_line, "cwd": cwd, "job": self.job, **known})
        if continued and not run.has_checkpoint("last"):
            run.truncate_rows(-1)  # nothing to continue from: the run starts anew

    def _fail(self, run: RunDir, error: Exception | SystemExit, continued: bool) -> None:
        """Record the failure; a resumed run that could not even start keeps the outcome that it had."""
        text = "".join(traceback.format_exception(error))
        bad_input = isinstance(error, INPUT_ERRORS) and run.rows_written == 0
        message = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.filename is None:
            message += f" (run directory {run.path})"
        logger.error("%s", message if bad_input else f"{type(error).__name__}: {message} (traceback in {run.path})")
        (logger if self.show_tracebacks else file_logger).error("%s", text)
        before = run.read_summary()
        try:
            if bad_input and continued and before:
                run.write_summary({**before, RESUME_ERROR: message})
            else:
                run.mark_failed(text, BAD_INPUT if bad_input else FAILED)
        except OSError as problem:
            logger.error("cannot record the failure: %s", problem)


@contextmanager
def quiet_logging() -> Iterator[None]:
    """On a full disk say so once, not with a traceback for every line that the log file cannot take."""
    before, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        yield
    finally:
        logging.raiseExceptions = before


def _overrides() -> list[str]:
    return [str(override) for override in HydraConfig.get().overrides.task]
