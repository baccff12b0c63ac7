"""Compare optimizers: tuned alike on validation data, then run from the same starts on the same batches."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from symlab.comparison.content import Question
from symlab.comparison.cost import memory, step_costs
from symlab.comparison.ledger import CURVES, RESULTS, TRIALS, Ledger
from symlab.comparison.numbers import names
from symlab.comparison.outcome import Measured, conclude
from symlab.comparison.plan import Plan, check_plan, evaluation_interval
from symlab.comparison.run_trial import TrialRunner
from symlab.comparison.session import Session, Ticker
from symlab.comparison.settings import foreign_code
from symlab.comparison.trial import Task, Trial
from symlab.comparison.tuning import Objective, SearchFactory, Tuner
from symlab.comparison.workers import RUN_ERRORS, devices_of_workers
from symlab.optim.coverage import coverage_table
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.bands import check_bands
from symlab.training.factories import DataFactory, Loss, ModelFactory, OptimizerFactory, PlotFunction, Schedule
from symlab.training.place import find_device, repeatable
from symlab.training.progress import progress_bar
from symlab.training.ranges import check_at_least
from symlab.training.signals import StopRequest, stop_on_signals
from symlab.training.targets import target_levels

RESUMABLE_CHANGES = (
    "device",
    "eval_train_size",
    "expected",
    "objective",
    "optimizers",
    "plots",
    "progress",
    "reference",
    "report_steps",
    "rounds",
    "schedule_of",
    "schedules",
    "search",
    "seeds",
    "targets",
    "threads",
    "timing_repeats",
    "trials",
    "tuning_seeds",
    "workers",
)
"""Every run is found again by all that it depends on, so what changes here means other runs, and none is done twice."""

KEY_FIGURES = ("runs", "diverged", "failed", "wall_s")

logger = logging.getLogger("symlab")


def compare(
    run: RunDir,
    *,
    model: ModelFactory,
    data: DataFactory,
    optimizers: Mapping[str, OptimizerFactory],
    schedules: Mapping[str, Schedule],
    loss: Loss,
    search: SearchFactory,
    plots: Mapping[str, PlotFunction],
    steps: int = 200,
    batch_size: int | None = None,
    warmup_steps: int = 0,
    seeds: int | Sequence[int] = 10,
    vary_data: bool = False,
    trials: int = 30,
    rounds: int = 3,
    tuning_seeds: Sequence[int] = (1000,),
    validation_fraction: float = 0.2,
    objective: Objective = "validation_loss",
    schedule_of: Mapping[str, str] | None = None,
    reference: str | None = None,
    targets: Sequence[float] = (),
    report_steps: Sequence[int] = (),
    expected: Mapping[str, Sequence[float]] | None = None,
    eval_every: int | None = None,
    eval_batch_size: int = 5000,
    eval_train_size: int | None = None,
    timing_repeats: int = 5,
    workers: int | None = None,
    threads: int = 1,
    device: str = "auto",
    dtype: str = "float32",
    deterministic: bool = True,
    progress: bool = True,
) -> Outcome:
    """Every optimizer: `trials` settings tried on `tuning_seeds`, the best of them run from each of `seeds`.

    Tuning. A setting is a point in the optimizer's own space (`_tune_` of its yaml) times that of a schedule; each of
    `schedules` gets an equal share of the trials. Settings are tried with `validation_fraction` of the training rows
    held out and the `objective` measured there after `steps` updates, its mean over `tuning_seeds`. The first half of
    the trials covers the declared space; the rest, in `rounds` - 1 parts, ever smaller boxes around the best so far,
    which may leave the declared range. A best value at the edge of all that was tried is flagged. Every optimizer has
    the same number of trials. trials=0: the configured values, with schedule_of[optimizer] or else the first schedule.

    Reported runs. From each seed all optimizers start from the same weights, see the same batches and are measured at
    the same updates, on all training rows and the test rows. `vary_data`: the data's seed is the run's. Diverged runs
    are counted and kept as the worst. Statistics over seeds, against `reference` (None: the first optimizer).

    Runs take place in `workers` processes (None: as many as processors or GPUs allow, 0: in this one) of `threads`
    threads. Each is on record when it ends, under a key made of all that it depends on; resume=DIRECTORY does those
    that are missing, also for other values of RESUMABLE_CHANGES. `timing_repeats` blocks of ten interleaved steps of
    all optimizers, alone at the end, give the time per step (0: not measured).

    Tables: tuned, trials, results, curves, targets, at_steps, summary, cost, coverage (.csv); summary.json, report.md,
    report.html, figures. `expected`: bands for the numbers in the summary. Exit code 1 if a reported run failed.

    Raises BadInput, before the first run, for values, devices and shapes that cannot work.
    """
    began = time.perf_counter()
    check_at_least(1, steps=steps, threads=threads, eval_batch_size=eval_batch_size, eval_every=eval_every)
    check_at_least(1, **{f"report_steps[{i}]": step for i, step in enumerate(report_steps)})
    check_at_least(0, workers=workers, timing_repeats=timing_repeats)
    plan = Plan(
        optimizers=optimizers,
        schedules=schedules,
        schedule_of=dict(schedule_of or {}),
        steps=steps,
        eval_every=eval_every or evaluation_interval(steps, report_steps),
        eval_train_size=eval_train_size,
        seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        tuning_seeds=tuple(tuning_seeds),
        trials=trials,
        rounds=rounds,
        objective=objective,
        search=search,
    )
    check_plan(plan)
    task = Task(
        model=model,
        data=data,
        loss=loss,
        steps=steps,
        batch_size=batch_size,
        warmup_steps=warmup_steps,
        eval_batch_size=eval_batch_size,
        dtype=dtype,
        vary_data=vary_data,
        validation_fraction=validation_fraction,
        deterministic=deterministic,
    )
    task.check_data()
    place = find_device(device)
    setting = Question.of(plan, task, reference, targets, report_steps, dict(expected or {}), place, threads)
    with stop_on_signals() as stop:
        runner = TrialRunner(task, place, threads)
        coverage = _try_all(runner, plan, setting)
        run.write_environment({"device": str(place), "dtype": dtype, "threads": threads})
        devices = devices_of_workers(device, place, workers, threads)
        session = Session(task, Ledger(run, made_with(run, plan, task, place, threads)), place, devices, threads, stop)
        tuners, reported = _all_runs(run, plan, session, progress)
        costs = _costs(runner, reported, timing_repeats, fresh=bool(devices), stop=stop)
        if stop():
            return _interrupted(session, plan, stop)
        session.ledger.settle((TRIALS, RESULTS, CURVES), session.used)
        session.ledger.place(session.places)
        work = {"wall_s": time.perf_counter() - began, "run_s": session.seconds, "runs_done": session.done}
        measured = Measured([t.summary() for t in tuners], coverage, *costs, {**work, "workers": len(devices)})
        return conclude(run, setting, measured, plots, stop.exit_code)


def _try_all(runner: TrialRunner, plan: Plan, setting: Question) -> list[dict[str, Any]]:
    """Build every optimizer once on the data of the first reported and the first tuning run, so that what cannot work
    ends here; returns the rows of coverage.csv. Raises BadInput."""
    rows = []
    for label in plan.optimizers:
        with repeatable(plan.seeds[0], runner.device, runner.threads, deterministic=False):
            dataset, training, _, _ = runner.build(plan.fixed(label, plan.seeds[0]))
        table = coverage_table(training.model, training.optimizer)
        rows += [{"optimizer": label, **row._asdict()} for row in table]
    for tuner in plan.tuners():
        for family in tuner.families:  # with fewer rows: a batch may not fit
            with repeatable(plan.seeds[0], runner.device, runner.threads, deterministic=False):
                runner.build(family.template)
    if plan.trials and plan.objective == "validation_accuracy" and dataset.num_classes is None:
        raise BadInput(f"objective=validation_accuracy needs classes, and data {dataset.name} is a regression")
    known = names(
        plan.optimizers, setting.report_steps, dataset.references, target_levels(setting.targets, dataset.references)
    )
    try:
        check_bands(setting.expected, known)
    except ValueError as error:
        raise BadInput(str(error)) from error
    return rows


def _all_runs(run: RunDir, plan: Plan, session: Session, progress: bool) -> tuple[list[Tuner], list[Trial]]:
    """Tuning, tuned.csv and the reported runs, as far as nobody stops them."""
    total = plan.tuning_runs + plan.reported_runs
    parts = (run.path, total, plan.tuning_runs, plan.reported_runs, len(session.devices))
    logger.info("%s: %d runs (%d to tune, %d to report), %d workers", *parts)
    with progress_bar(total, 0, progress) as bar:
        session.tick = Ticker(total, bar.update)
        tuners = plan.tuners()
        session.tune(tuners)
        if tuners and not session.stop():
            run.replace_rows([tuner.summary() for tuner in tuners], "tuned")
        reported = plan.reported(tuners)
        if not session.stop():
            session.report(reported)
    return tuners, reported


def _costs(
    runner: TrialRunner, reported: Sequence[Trial], repeats: int, *, fresh: bool, stop: StopRequest
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of cost.csv and of memory.csv; none without `repeats`, and none of time where a step cannot be made."""
    by_label = {trial.label: trial for trial in reversed(reported)}
    if not repeats or stop():
        return [], []
    try:
        return step_costs(runner, by_label, repeats, stop), memory(runner, by_label, fresh=fresh, stop=stop)
    except RUN_ERRORS as error:
        logger.warning("time and memory of a step could not be measured: %s: %s", type(error).__name__, error)
        return [], []


def made_with(run: RunDir, plan: Plan, task: Task, place: torch.device, threads: int) -> str:
    """Code, versions and machine of this start in a line, to be held against those of other starts."""
    start = run.read_environment()[-1]
    versions, git = start["versions"], start["git"] or {}
    commit = f" {str(git.get('commit'))[:12]}{' (changed)' if git.get('dirty') else ''}" if git else ""
    machine = f"{place.type} of {start['host']}, {threads} threads"
    foreign = foreign_code([*plan.optimizers.values(), *plan.schedules.values(), task.model, task.data, task.loss])
    own = f", {foreign}" if foreign else ""
    return f"symlab {versions['symlab']}{commit}, torch {versions['torch']}{own}, {machine}"


def _interrupted(session: Session, plan: Plan, stop: StopRequest) -> Outcome:
    total = plan.tuning_runs + plan.reported_runs
    logger.warning("stopped: %d of %d runs are on record", session.done + session.known, total)
    summary = {"status": "interrupted", "exit_code": stop.exit_code, "runs_done": session.done, "runs": total}
    session.ledger.run.write_summary(summary)
    return Outcome("interrupted", stop.exit_code, summary)
