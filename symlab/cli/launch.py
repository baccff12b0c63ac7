"""Composes ahead and checks, makes the directory, then lets Hydra run the job or the sweep."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from symlab.cli import families, resume, several, sweep, validation
from symlab.cli.arguments import Arguments, override_text, pasteable
from symlab.cli.completion import without_spaces
from symlab.cli.compose import compose, config_sources, expand, is_group, parse, resolved, translated
from symlab.cli.help import job_help
from symlab.cli.listing import config_dir
from symlab.cli.safety import check_hydra_node
from symlab.cli.signals import Stopped
from symlab.cli.task import Task
from symlab.cli.validation import SEARCH, SPACE
from symlab.rundir import BadInput, RunDir
from symlab.rundir.outcome import COMPLETED


def launch(job: str, arguments: Arguments, words: Sequence[str], show_tracebacks: bool) -> int:
    """One command line behind its job word; returns the exit code. Raises BadInput before anything runs."""
    with config_sources(job, arguments.config_dir, arguments.config_name):
        directory, overrides = resume.split(arguments.overrides, arguments.multirun)
        orders: families.Orders = {}
        if directory is None or arguments.multirun:
            overrides, orders = families.rewritten(job, arguments.config_name, overrides)
        own = [override for override in overrides if override.is_hydra_override()]
        composed_from = overrides if directory is None or arguments.multirun else own
        config = check_all(job, arguments.config_name, composed_from)
        several.check(job, arguments)
        if arguments.help:
            print(job_help(job, arguments, config))
            return COMPLETED
        task = Task(job, shlex.join(["symlab", *words]), show_tracebacks, directory is not None, orders=orders)
        if arguments.show:
            return _show(task, arguments, overrides)
        texts = [str(override.input_line) for override in overrides]
        if arguments.multirun or str(config.hydra.mode) == "RunMode.MULTIRUN":
            return _sweep(task, arguments, config, overrides, directory)
        if directory is not None:
            return _resume(task, arguments, overrides, directory)
        validation.bind(job, resolved(config), Path.cwd())
        return _single(task, arguments, texts, _new_directory(config, "run"))


def check_all(job: str, name: str | None, overrides: Sequence[Override]) -> DictConfig:
    """Compose every combination of group choices that is asked for, and check each one's Hydra node.

    Returns the first. Raises BadInput for a choice or key that does not exist, or a node that would run code.
    """
    configs = _check(job, name, overrides)
    typed = {override.get_key_element() for override in overrides}
    params = configs[0].hydra.sweeper.get("params") or {}
    more = parse([f"{key}={value}" for key, value in params.items() if key not in typed], multirun=True)
    if more:
        _check(job, name, [*overrides, *more])  # what the sweeper will add to each run
    return configs[0]


def _check(job: str, name: str | None, overrides: Sequence[Override]) -> list[DictConfig]:
    varied = [o for o in overrides if o.is_sweep_override() and (is_group(o) or o.is_hydra_override())]
    single = {str(o.input_line): expand([o])[0][0] for o in overrides if o not in varied}
    configs = []
    for combination in expand(varied):
        chosen = dict(zip([str(o.input_line) for o in varied], combination, strict=True))
        texts = [(single | chosen)[str(o.input_line)] for o in overrides]
        configs.append(compose(job, name, texts))
        with translated(texts):
            check_hydra_node(configs[-1].hydra)
    return configs


def _new_directory(config: DictConfig, kind: str) -> Path:
    """The directory that the config asks for; one that ends in a fresh name is made at once, and exclusively."""
    with translated([]):
        path = resume.directory(f"hydra.{kind}.dir", str(config.hydra[kind].dir))
        raw = OmegaConf.to_container(config.hydra[kind], resolve=False)
    fresh = isinstance(raw, dict) and str(raw["dir"]).endswith("/${run_name:}")
    return RunDir.create(path.parent).path if fresh else path


def _show(task: Task, arguments: Arguments, overrides: Sequence[Override]) -> int:
    """--cfg, --info, --hydra-help: Hydra's own output."""
    _run_hydra(task, arguments, [*arguments.show], [str(override.input_line) for override in overrides])
    return COMPLETED


def _single(task: Task, arguments: Arguments, overrides: list[str], path: Path) -> int:
    if not task.resume:
        if RunDir(path).holds_run:
            raise BadInput(
                f"{path} already holds a run; take another hydra.run.dir, or resume=... to continue that run"
            )
        path.mkdir(parents=True, exist_ok=True)
    run = RunDir(path)
    _run_hydra(task, arguments, [], [*overrides, override_text("hydra.run.dir", str(path))])
    return sweep.exit_code_of(run)


def _resume(task: Task, arguments: Arguments, overrides: Sequence[Override], path: Path) -> int:
    run = resume.open_run(task.job, path)
    own = [str(override.input_line) for override in overrides if override.is_hydra_override()]
    config = resume.changed_config(task.job, run, [o for o in overrides if not o.is_hydra_override()])
    if run.recorded_status == "completed" and config == resume.load_config(run):
        print(f"already completed: {run.path}")
        return COMPLETED
    validation.bind(task.job, config, Path.cwd())
    continued = Task(task.job, task.command_line, task.show_tracebacks, resume=True, config=config)
    return _single(continued, arguments, own, run.path)


def _sweep(
    task: Task, arguments: Arguments, config: DictConfig, overrides: Sequence[Override], directory: Path | None
) -> int:
    if directory is not None:
        path = resume.open_sweep(task.job, directory)
    else:
        path = _new_directory(config, "sweep")
        sweep.refuse_used(path)
        path.mkdir(parents=True, exist_ok=True)
    texts = [str(override.input_line) for override in overrides]
    constant = [f"'{o.get_key_element()}'" for o in overrides if not (o.is_sweep_override() or o.is_hydra_override())]
    texts += [f"hydra.job.config.override_dirname.exclude_keys=[{','.join(constant)}]"] if constant else []
    interrupted = None
    try:
        _run_hydra(task, arguments, ["--multirun"], [*texts, override_text("hydra.sweep.dir", str(path))])
    except Stopped as stop:
        interrupted = stop.exit_code
    runs = sweep.runs_in(path)
    print(f"sweep directory: {os.path.relpath(path)}")
    print(sweep.table(task.job, runs))
    if interrupted is not None:
        again = "" if task.resume else f" {pasteable('resume', os.path.relpath(path))}"
        print(f"interrupted; a run that is not in the table was not started; to continue: {task.command_line}{again}")
    return sweep.exit_code(runs) if interrupted is None else interrupted


def hydra_completion(job: str, overrides: Sequence[str], line: str | None) -> int:
    """Hydra's completion of a line without its job word, or its script for a shell (`line` None)."""
    environment: Any = {} if line is None else {"COMP_LINE": line}
    arguments = Arguments(job, (), False, False, False, (), True, None, None)
    said = io.StringIO()
    with config_sources(job, None, None), contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):
        os.environ.update(environment)
        _run_hydra(Task(job, ""), arguments, ["--shell-completion"], list(overrides))
    text = said.getvalue()
    if line is not None and SPACE in text and SPACE not in line:
        with config_sources(job, None, None):
            text = text if SEARCH in compose(job, None, []) else without_spaces(text)
    print(text, end="")
    return COMPLETED


def _run_hydra(task: Task, arguments: Arguments, flags: Sequence[str], overrides: Sequence[str]) -> None:
    """hydra.main with that command line; a BadInput from a job or Hydra's own errors leave as BadInput."""
    decorated = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=task.job)(task)
    name = override_text("hydra.job.name", task.job)
    own = ["--config-name", arguments.config_name] if arguments.config_name else []
    own_overrides = [] if "--shell-completion" in flags else [name]
    GlobalHydra.instance().clear()
    with _argv(["symlab", *own, *flags, *overrides, *own_overrides]), translated(overrides):
        decorated()


@contextlib.contextmanager
def _argv(words: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before
