"""Loss of plasticity: tasks of permuted pixels one after the other, with and without removed symmetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from symlab.protocols.axis_checks import check_axis, check_member, check_positive, check_whole
from symlab.protocols.plasticity_numbers import NAMES, Windows, plasticity_numbers
from symlab.protocols.plasticity_training import Arm, Learners, Plan
from symlab.protocols.study import Ground, Number, Row, Study, Tables, Watch

if TYPE_CHECKING:
    import pandas

    from symlab.data.dataset import Dataset


def plasticity(
    ground: Ground,
    *,
    hidden: int = 64,
    tasks: int = 30,
    epochs: int = 4,
    batch_size: int = 32,
    lr: float = 0.01,
    decays: Sequence[float] = (0.001, 0.01, 0.1),
    sigmas: Sequence[float] = (0.01, 1.0),
    noise: float = 0.01,
    shrink: float = 0.5,
    perturb: float = 0.1,
    shown_decay: float = 0.001,
    early: int = 3,
    late: int = 10,
) -> Study:
    """Accuracy, rank of the last hidden layer, dead units and weights after each of `tasks` permutations of the pixels.

    Source: Ziyin, Xu and Chuang (ICLR 2025), permuted MNIST: vanilla collapses after about 6 tasks, syre does not;
    Ziyin (ICML 2024). Settings ours: a ReLU perceptron with two hidden layers of `hidden` units learns each task for
    `epochs` epochs with Adam, at a rate at which the plain net does lose its plasticity (ten times the usual one).

    Arms: vanilla; decay (coupled, every value of `decays`); noise on the weights after every step; shift, which is
    `remove_symmetry` with every value of `decays` and `sigmas`, and has decay as its control; shrink and perturb (Ash
    and Adams, 2020) at the start of every task, theta <- `shrink` theta + noise. `noise` and `perturb` are standard
    deviations in units of 1/sqrt(fan in), as sigma is. All arms of a seed have one start, permutations and batches.

    metrics has a row per task and net: test_accuracy at the end of the task, online_accuracy on its batches before they
    are learned, rank (singular values above 1 % of the largest, of the last hidden layer on the test rows),
    effective_dimension, dead_fraction of both hidden layers, weight_norm (of theta). `lines` are its rows at
    `shown_decay`, `strong` at the largest decay, `late` the means over the last `late` tasks. The first `early` tasks
    are what those are compared with.

    Raises ValueError for a value out of range, and for data that is not classes of rows.
    """
    data = ground.need_data()
    if data.num_classes is None:
        raise ValueError(f"data {data.name} has no classes: name some with labels, e.g. data=digits")
    wholes = {"hidden": hidden, "tasks": tasks, "epochs": epochs, "batch_size": batch_size}
    for key, value in (wholes | {"early": early, "late": late}).items():
        check_whole(key, value, least=1)
    if not batch_size <= data.num_train:
        raise ValueError(
            f"batch_size must be at most the {data.num_train} training rows of {data.name}, got {batch_size}"
        )
    if not early + late <= tasks:
        raise ValueError(f"early + late must be at most tasks={tasks}, got {early} + {late}")
    for key, number in {"lr": lr, "noise": noise, "perturb": perturb}.items():
        check_positive(key, number)
    if not 0 < shrink < 1:
        raise ValueError(f"shrink must lie between 0 and 1, both excluded, got {shrink}")
    check_axis("decays", decays, positive=True)
    check_axis("sigmas", sigmas, positive=True)
    check_member("shown_decay", shown_decay, "decays", decays)
    arms = (
        Arm("vanilla"),
        Arm("decay", tuple((decay, 0.0) for decay in decays)),
        Arm("noise", noise=noise),
        Arm("shift", tuple((decay, sigma) for decay in decays for sigma in sigmas)),
        Arm("shrink and perturb", shrink=shrink, perturb=perturb),
    )
    plan = Plan(data, ground.seeds, hidden, tasks, epochs, batch_size, lr)
    return PlasticityStudy(ground, plan, arms, shown_decay, Windows(early, late, tasks))


@dataclass(frozen=True)
class PlasticityStudy:
    """One part per arm; all its seeds, decays and sigmas side by side."""

    ground: Ground
    plan: Plan
    arms: tuple[Arm, ...]
    shown_decay: float
    windows: Windows

    @property
    def title(self) -> str:
        """What was run."""
        plan = self.plan
        return (
            f"Permuted {_name(plan.data)}, ReLU net 2 x {plan.hidden}, Adam lr {plan.lr:g}, {plan.epochs} epochs a task"
        )

    @property
    def figures(self) -> Mapping[str, str]:
        """Over tasks at the shown and at the largest decay, and the last tasks over decay."""
        over_tasks = dict.fromkeys(("accuracy", "online", "rank", "dead", "norm"), "lines")
        at_strong_decay = dict.fromkeys(("strong_accuracy", "strong_rank"), "strong")
        return over_tasks | at_strong_decay | {"late": "late"}

    @property
    def references(self) -> Mapping[str, float]:
        """Of guessing."""
        return {"chance": 1 / self.plan.data.output_size}

    def parts(self) -> Sequence[str]:
        """The arms."""
        return [arm.name for arm in self.arms]

    def run(self, part: str, watch: Watch) -> Tables | None:
        """All tasks of one arm; goes on after the last task that was saved."""
        (arm,) = (arm for arm in self.arms if arm.name == part)
        learners = Learners(self.plan, arm, self.ground.dtype, self.ground.device)
        rows: list[Row] = []
        done, kept = 0, watch.saved()
        if kept is not None:
            learners.restore(kept["learners"])
            done, rows = kept["task"], kept["rows"]
        for task in range(done, self.plan.tasks):
            if watch.due():
                watch.save({"task": task, "rows": rows, "learners": learners.state()})
            watch.say(f"task {task + 1} of {self.plan.tasks}")
            before = learners.state()
            online = learners.learn(task, watch.stopped)
            if online is None:
                watch.save({"task": task, "rows": rows, "learners": before})
                return None
            rows += learners.measured(task, online)
        return self._tables(rows)

    def number_names(self) -> Sequence[str]:
        """See `plasticity_numbers`."""
        return NAMES

    def numbers(self, tables: Mapping[str, pandas.DataFrame]) -> dict[str, Number]:
        """The statements, each with its spread over seeds."""
        settings = next(arm.settings for arm in self.arms if arm.name == "shift")
        decays, sigmas = (sorted({pair[k] for pair in settings}) for k in (0, 1))
        shown, strong = (self.shown_decay, sigmas[0]), (decays[-1], sigmas[-1])
        return plasticity_numbers(tables["metrics"], self.ground.seeds, self.windows, shown, strong)

    def _tables(self, rows: list[Row]) -> Tables:
        strongest = max(decay for arm in self.arms for decay, _ in arm.settings)
        tables: Tables = {"metrics": rows, "late": self.windows.late_means(rows)}
        for name, decay in (("lines", self.shown_decay), ("strong", strongest)):
            own = [row for row in rows if row["decay"] in (0.0, decay)]
            tables[name] = [{**row, "curve": curve(row, f"decay {decay:g}")} for row in own]
        tables["late"] = [{**row, "curve": curve(row, "decay")} for row in tables["late"] if row["decay"]]
        return tables


def curve(row: Row, decay: str) -> str:
    """The arm; `decay` and the sigma of the shift for those that have them."""
    shift = f", shift {row['sigma']:g}/√d" if row["sigma"] else ""
    return f"{decay}{shift}" if row["decay"] else str(row["arm"])


def _name(data: Dataset) -> str:
    return f"{data.name} ({data.num_train} rows)"
