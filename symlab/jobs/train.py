"""Train one model with one optimizer on one data set, from a seed to metrics, a summary and a figure."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from symlab.constraint.cost import zero_share
from symlab.data.streamed import AnyDataset, BadImageError
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.training.best import Best
from symlab.training.build import (
    SAMPLE_ROWS,
    build_model,
    build_optimizer,
    check_observer,
    check_parts,
    is_natural_loss,
    number_of_parameters,
    synchronise,
)
from symlab.training.compilation import try_compiled
from symlab.training.estimate import cost_of_run
from symlab.training.evaluations import Evaluations
from symlab.training.execution import Execution, find_precision, make_execution
from symlab.training.factories import (
    ConstraintFactory,
    DataFactory,
    Loss,
    ModelFactory,
    OptimizerFactory,
    PlotFunction,
    Schedule,
    name_of,
)
from symlab.training.fit import Event, fit
from symlab.training.keeper import Keeper
from symlab.training.loss_scale import LossScale
from symlab.training.losses import reported
from symlab.training.place import find_dtype, repeatable
from symlab.training.processes import joined
from symlab.training.progress import progress_bar
from symlab.training.ranges import check_at_least
from symlab.training.rates import Rates
from symlab.training.signals import StopRequest, stop_on_signals
from symlab.training.sources import training_batches
from symlab.training.state import Training
from symlab.training.summary import cost_figures, result_figures
from symlab.training.update import DivergedError
from symlab.training.weight_average import WeightAverage

SEVERAL_PROCESSES = True
"""Started by torchrun or srun as several processes, they share each batch and train one model."""

RESUMABLE_CHANGES = (
    "channels_last",
    "checkpoint_every_s",
    "compile",
    "device",
    "epochs",
    "max_steps",
    "plot",
    "progress",
    "targets",
    "threads",
)
"""Keys that may differ when a run is resumed. `channels_last`, `compile`, `device` and `threads` change rounding,
`epochs` the schedules that know the run's length, `max_steps` where the run ends, with a row of its own; with the same
values the resumed run equals the uninterrupted one bit for bit."""

KEY_FIGURES = (
    *("step", "final.train_loss", "final.test_loss", "final.test_accuracy", "best.value", "time_s"),
    *("estimate.steps", "estimate.step_time_s.mean", "estimate.hours"),
)
"""What a sweep's table shows of each run's summary, by dotted name."""

logger = logging.getLogger("symlab")


def train(
    run: RunDir,
    *,
    model: ModelFactory,
    data: DataFactory,
    optimizer: OptimizerFactory,
    schedule: Schedule,
    loss: Loss,
    plot: PlotFunction,
    constraint: ConstraintFactory | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    threads: int | None = None,
    deterministic: bool = True,
    amp: str | None = None,
    channels_last: bool = False,
    compile: bool = False,
    epochs: int = 200,
    max_steps: int | None = None,
    batch_size: int | None = None,
    accumulate: int = 1,
    drop_last: bool = False,
    clip_norm: float | None = None,
    ema: float | None = None,
    sync_batch_norm: bool = False,
    warmup_steps: int = 0,
    eval_every: int | None = None,
    eval_batch_size: int = 5000,
    eval_train_size: int | None = None,
    targets: Sequence[float] = (),
    checkpoint_every_s: float = 60.0,
    estimate: bool = False,
    progress: bool = True,
) -> Outcome:
    """w_{t+1} = optimizer(w_t, gradient of `loss` on batch t, lr x schedule(t)) for `epochs` passes over the data.

    Writes metrics.csv (a row before the first update, every `eval_every` updates and after the last), checkpoints,
    summary.json and the figure (named after the plot: `loss`) into `run`. A checkpoint `last` that is there already is
    continued: killed at any moment and called again, metrics (but for time_s) and weights equal the uninterrupted run's
    bit for bit on the CPU.

    `constraint` changes the model's weights into functions of others, which are then what is trained.

    `seed` fixes the initial weights, the order of batches and dropout; the data has a seed of its own. `batch_size`
    None is the full batch; see `symlab.training.batches.Batches` for the last batch of an epoch. `eval_every` is in
    updates, None: once per epoch; `eval_train_size` the number of training rows for train_loss, None: all, 0: none.
    `targets` are test losses whose first step is reported. `warmup_steps` linear steps come before the schedule.

    `max_steps` ends the run after that many updates, whose rates are those of the run of all epochs. `amp` bf16 or fp16
    computes products and convolutions in that precision, `channels_last` images in the layout [B, H, W, C], `compile`
    forward pass and loss by torch.compile, in updates and evaluations alike. `accumulate`, `clip_norm`: see
    `symlab.training.execution.Execution`; `ema` is the decay of a `WeightAverage`, which is evaluated and is best in
    the place of the weights. `estimate` times a few updates, reports what the run would cost, and trains nothing.

    Started as several processes (torchrun, srun) each takes its share of every batch, and rank 0 alone writes: the run
    is that of one process to rounding, but for batch norm without `sync_batch_norm`, and dropout.

    SIGTERM, SIGUSR1 and SIGINT save a checkpoint and end with status interrupted and exit code 128 + signal; a loss,
    gradient or weight that is not finite ends with status diverged and exit code 3.

    Raises BadInput, before the first step, for values, devices and shapes that cannot work.
    """
    check_at_least(1, epochs=epochs, max_steps=max_steps, accumulate=accumulate)
    check_at_least(1, eval_every=eval_every, eval_batch_size=eval_batch_size)
    check_at_least(0, seed=seed, eval_train_size=eval_train_size, checkpoint_every_s=checkpoint_every_s)
    check_at_least(0, **{f"targets[{i}]": level for i, level in enumerate(targets)})
    kind = find_dtype(dtype)
    with (
        stop_on_signals() as stop,
        joined(device) as (processes, place),
        repeatable(seed, place, threads, deterministic),
    ):
        with processes.first_goes_first():
            dataset = data().to(place, kind)
        net = build_model(model, dataset, seed, place, kind, constraint)
        references = _references(dataset, is_natural_loss(loss, net, dataset))
        how = make_execution(find_precision(amp, place, kind), channels_last, compile, accumulate, clip_norm, processes)
        training = _training(net, optimizer, dataset, how, ema)
        synchronise(net, sync_batch_norm, processes, place)  # after the optimizer, which may trace the model
        title = f"{_named(model, constraint, optimizer)} on {dataset.name}, {_batch(batch_size)}, seed {seed}"
        _try_figure(plot, dataset, references, title)
        with training_batches(dataset, batch_size, seed, drop_last=drop_last, share=processes.share) as batches:
            check_parts(net, batches, accumulate)
            per_epoch = batches.steps_per_epoch
            rates = Rates(schedule, warmup_steps, epochs * per_epoch)
            total = min(rates.total_steps, max_steps or rates.total_steps)
            train_rows = dataset.num_train if eval_train_size is None else eval_train_size
            evaluations = Evaluations(dataset, reported(loss), eval_every or per_epoch, eval_batch_size, train_rows)
            best = Best("test_loss" if dataset.num_classes is None else "test_accuracy")
            keeper = Keeper(run, training, best, seed=seed, steps_per_epoch=per_epoch, every_s=checkpoint_every_s)

            torch.manual_seed(seed)  # dropout must not depend on what the factories drew
            _begin(run, keeper, rates, total, place, dtype, anew=estimate)
            processes.wrap(net, place)
            if compile:
                try_compiled(training, batches, loss)
            parts, asked = (training, batches, loss, rates, evaluations), partial(processes.stopped, stop)
            if estimate:
                return _estimated(run, stop, partial(cost_of_run, *parts, total, asked))
            step_seconds: list[float] = []
            message = _record(run, fit(*parts, asked, max_steps=max_steps), keeper, step_seconds, total, progress)

        summary = _ending(training, total, stop, message)
        summary |= result_figures(run.read_rows(), best, targets, references)
        summary |= _setting(training, dataset, place, dtype, seed) | cost_figures(step_seconds, place)
        run.write_summary(summary)
        if summary["status"] != "interrupted" and summary["evaluations"] and processes.writes:
            _draw(run, plot, references, title=title)
        _log_end(summary)
        # a signal during the last moments does not undo the run, but a sweep must still learn of it
        exit_code = stop.exit_code if summary["status"] == "completed" else summary["exit_code"]
        return Outcome(summary["status"], exit_code, summary)


def _training(
    net: torch.nn.Module, optimizer: OptimizerFactory, dataset: AnyDataset, how: Execution, ema: float | None
) -> Training:
    if ema is not None and not 0 <= ema < 1:
        raise BadInput(f"ema must be at least 0 and below 1 (a decay such as 0.999), or null, got {ema}")
    if ema is not None and torch.finfo(next(net.parameters()).dtype).bits < 32:
        raise BadInput(
            f"ema={ema}: averages of bfloat16 weights stand still, their steps being rounded away: use"
            " dtype=float32 (with amp=bf16), or ema=null"
        )
    how.lay_out(net)
    average = None if ema is None else WeightAverage(net, ema)
    training = Training(net, build_optimizer(optimizer, net, dataset.head(SAMPLE_ROWS)[0]), how, average)
    check_observer(training.optimizer, how)
    return training


def _named(model: ModelFactory, constraint: ConstraintFactory | None, optimizer: OptimizerFactory) -> str:
    under = "" if constraint is None else f" under {name_of(constraint)}"
    return f"{name_of(model)}{under} with {name_of(optimizer)}"


def _batch(batch_size: int | None) -> str:
    return "full batch" if batch_size is None else f"batch {batch_size}"


def _references(dataset: AnyDataset, comparable: bool) -> dict[str, float]:
    if dataset.references and not comparable:
        logger.warning("the loss is not the natural one of data %s: its references are left out", dataset.name)
    return dict(dataset.references) if comparable else {}


def _begin(
    run: RunDir, keeper: Keeper, rates: Rates, total: int, place: torch.device, dtype: str, *, anew: bool
) -> None:
    """Continue from a checkpoint if there is one (unless `anew`), and say what starts."""
    rates.check()  # a bad schedule stops here, before the first step
    training, processes = keeper.training, keeper.training.how.processes
    resumed = not anew and keeper.resume()
    if training.step > total:
        raise BadInput(
            f"the checkpoint has {training.step} updates, more than the {total} that epochs or max_steps ask for"
        )
    threads = torch.get_num_threads()
    where = {"device": str(place), "processes": processes.share.world, "threads": threads}
    run.write_environment({**where, "dtype": dtype, "seed": keeper.seed})
    logger.info(
        "%s %s at step %d of %d: %d parameters, %s, device %s, %d threads%s",
        "continuing" if resumed else "starting",
        run.path,
        training.step,
        total,
        number_of_parameters(training.model),
        dtype,
        place,
        threads,
        f" in each of {processes.share.world} processes" if processes.several else "",
    )


def _estimated(run: RunDir, stop: StopRequest, cost_of: Callable[[], dict[str, Any]]) -> Outcome:
    """The outcome of a run that was not made: what it would cost."""
    try:
        cost = cost_of()
    except DivergedError as error:
        logger.error("diverged: %s", error)
        return Outcome("diverged", 3, {"message": str(error)})
    step, hours = cost["step_time_s"], cost["hours"]
    logger.info(
        "estimate: %d updates of %.4g s (mean; quartiles %.4g, %.4g, %.4g), %d evaluations of %.4g s: %.4g hours",
        *(cost["steps"], step["mean"], step["low"], step["median"], step["high"]),
        *(cost["evaluations"], cost["evaluation_time_s"], hours),
    )
    status = "interrupted" if stop() else "completed"
    summary = {"status": status, "exit_code": stop.exit_code, "estimate": cost}
    run.write_summary(summary)
    return Outcome(status, stop.exit_code, summary)


def _record(
    run: RunDir, events: Iterable[Event], keeper: Keeper, step_seconds: list[float], total: int, progress: bool
) -> str | None:
    """Write rows and checkpoints as they come; returns what went wrong if the run diverged."""
    message = None
    said = Repeats(keeper.training.how.scale)
    with progress_bar(total, keeper.training.step, progress) as bar:
        try:
            for event in events:
                if event.row is not None:
                    run.append_rows([event.row])
                    keeper.best.offer(event.row, keeper.training.evaluated_model)
                said.look(event.step)
                if event.seconds is not None:
                    step_seconds.append(event.seconds)
                    bar.set_postfix_str(f"loss {event.batch_loss:.3g}", refresh=False)
                    bar.update()
                keeper.save_when_due()
        except DivergedError as error:
            message = str(error)
        except BadImageError:
            keeper.save()
            logger.error("saved at step %d: with a sound file in its place, resume= continues", keeper.training.step)
            raise
    keeper.save()
    return message


class Repeats:
    """Says when a batch had to be differentiated again with a smaller loss scale."""

    def __init__(self, scale: LossScale | None) -> None:
        self.scale, self.known = scale, 0 if scale is None else scale.repeats

    def look(self, step: int) -> None:
        if self.scale is not None and self.scale.repeats > self.known:
            self.known = self.scale.repeats
            logger.info(
                "step %d: fp16 gradients overflowed, the batch was repeated with loss scale %g (%d repeats in all)",
                *(step, self.scale.value, self.known),
            )


def _ending(training: Training, total: int, stop: StopRequest, message: str | None) -> dict[str, Any]:
    """Status and exit code. A signal that came after the last evaluation did not interrupt anything."""
    if message is not None:
        status, exit_code = "diverged", 3
    elif training.evaluated == total:
        status, exit_code = "completed", 0
    else:
        status, exit_code = "interrupted", stop.exit_code
    return {
        "status": status,
        "exit_code": exit_code,
        "message": message,
        "step": training.step,
        "total_steps": total,
        "time_s": training.seconds,
    }


def _setting(training: Training, dataset: AnyDataset, place: torch.device, dtype: str, seed: int) -> dict[str, Any]:
    scale = training.how.scale
    return {
        "data": dataset.name,
        "train_rows": dataset.num_train,
        "test_rows": dataset.num_test,
        "parameters": number_of_parameters(training.model),
        "seed": seed,
        "device": str(place),
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "processes": training.how.processes.share.world,
        "loss_scale": None if scale is None else scale.state(),
        "constrained_zero_fraction": zero_share(training.evaluated_model),  # |theta| <= 1e-6; null: nothing constrained
    }


def _try_figure(plot: PlotFunction, dataset: AnyDataset, references: Mapping[str, float], title: str) -> None:
    """Draw a row of this data's columns, so that a figure that does not fit the data stops here and not at the end."""
    import pandas

    columns = ["step", "epoch", "lr", "train_loss", "test_loss", "batch_loss", "time_s"]
    columns += [] if dataset.num_classes is None else ["train_accuracy", "test_accuracy"]
    plot(pandas.DataFrame([dict.fromkeys(columns, 1.0)]), references, title=title)


def _draw(run: RunDir, plot: PlotFunction, references: Mapping[str, float], *, title: str) -> None:
    """The figure, by the plot's name, from the rows on disk, so that it shows what a later redraw will show."""
    import pandas

    run.save_figure(name_of(plot), plot(pandas.DataFrame(run.read_rows()), references, title=title))


def _log_end(summary: Mapping[str, Any]) -> None:
    if summary["message"]:
        logger.error("diverged, everything so far is kept: %s", summary["message"])
    final, best = summary["final"] or {}, summary["best"]
    logger.info(
        "%s at step %d of %d: test loss %s, best %s %s at step %s, %.1f s of training",
        summary["status"],
        summary["step"],
        summary["total_steps"],
        _short(final.get("test_loss")),
        best["metric"],
        _short(best["value"]),
        best["step"],
        summary["time_s"],
    )


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
