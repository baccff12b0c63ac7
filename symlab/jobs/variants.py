"""Tables of variants of one network over many training runs: spread over seeds, paired tests, divergences; no torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
from matplotlib.figure import Figure

from symlab.comparison.tables import markdown_table, number, p_value, span, spread
from symlab.comparison.variants import (
    MEASURES,
    Trial,
    best_rows,
    measured,
    measures_of,
    natural,
    pair_rows,
    variant_rows,
)
from symlab.plots.grouping import common_setting, comparable_settings, group_labels, key_values, without_key
from symlab.rundir import BadInput, Outcome, RunDir
from symlab.rundir.recorded import RecordedRun, read_run, run_paths

PlotFunction = Callable[..., Figure]
Row = dict[str, Any]
ENDED = ("completed", "diverged")
FIGURE_COLUMNS = ("step", "epoch", "batch_loss", "test_accuracy")
TITLES = {
    "final_epoch_loss": "training loss over the last epoch",
    "test_accuracy": "test accuracy, %",
    "best_test_accuracy": "best test accuracy, %",
}
SHOWN = ("final_epoch_loss", "test_accuracy")
"""Measures that the console shows."""
LISTED = 8  # settings and variants in a message
KEY_FIGURES = ("trials", "diverged", "missing", "paired_seeds")
"""What a sweep's table shows of each run's summary, by dotted name."""

logger = logging.getLogger("symlab")


@dataclass(frozen=True)
class Member:
    """One run with its place: everything but variant and seed is the setting."""

    run: RecordedRun
    setting: str
    variant: str
    seed: str

    @property
    def ended(self) -> bool:
        return self.run.status in ENDED


def variants(
    run: RunDir,
    *,
    runs: list[Path] | Path,
    plots: Mapping[str, PlotFunction] | None,
    variant: str = "model.shortcut",
    baseline: str | None = None,
    confidence: float = 0.95,
    title: str | None = None,
) -> Outcome:
    """mean and std over seeds of each variant's test accuracy and last epoch's mean batch loss, and paired differences.

    `runs`: as in `symlab plot`. `variant`: the key (or group) of the runs' configs that tells the variants apart; runs
    that differ in anything else but seed, machine and paths are of different settings, say learning rates, and are
    never averaged. `baseline`: the variant that the others are compared with, None: the first by name. Runs are paired
    by seed. Diverged runs count: in the tables beside the numbers, in `better` and `p` as worse than any other. Runs
    that have not ended are named and counted as missing; those without the key `variant` are left out and counted.

    Writes variants.csv, pairs.csv and best.csv (see `symlab.comparison.variants`), trials.csv (one row per run),
    curves.csv (what the figures show), report.md and one figure per plot and data set.

    Raises BadInput for an unknown key, fewer than two variants, no baseline, no common seed, or two ended runs of one
    setting, variant and seed.
    """
    if not 0 < confidence < 1:
        raise BadInput(f"confidence must lie between 0 and 1, got {confidence}")
    members, without = _members([read_run(path) for path in run_paths(runs)], variant)
    baseline = _baseline(members, variant, baseline)
    members = sorted(_unique(members), key=lambda one: (one.variant != baseline, one.variant, natural(one.seed)))
    ended = [member for member in members if member.ended]
    trials = [_trial(member) for member in ended]
    missing = _missing(members)
    pairs = pair_rows(trials, baseline, confidence)
    if not pairs:
        raise BadInput(
            f"runs: within no setting do two variants share a seed among the runs that ended: {_seeds(members)}"
        )
    tables = {"variants": variant_rows(trials, missing), "pairs": pairs}
    parts = _parts(members)
    tables["best"] = best_rows(tables["variants"], parts.__getitem__)
    for name, rows in {**tables, "trials": _trial_rows(members, trials), "curves": _curves(ended)}.items():
        run.replace_rows(rows, table=name)
    heading = title or common_setting([without_key(member.run.config, variant) for member in members])
    sections = _sections(tables, measures_of(trials), baseline, confidence)
    run.save_report("report.md", _report(sections, heading, without))
    for name in SHOWN:
        logger.info("%s", sections.get(name, ""))
    logger.info("all of it: %s", run.path / "report.md")
    figures = _figures(run, ended, parts, plots or {}, heading, len(members) - len(ended))
    counts = {"trials": len(trials), "diverged": sum(trial.diverged for trial in trials)}
    counts |= {"missing": len(members) - len(ended), "paired_seeds": max(row["pairs"] for row in pairs)}
    return Outcome("completed", 0, {**counts, "baseline": baseline, **tables, "figures": figures})


# ---- which run is which


def _members(runs: Sequence[RecordedRun], variant: str) -> tuple[list[Member], int]:
    """The runs that have the key, and how many have not. An estimate, whatever its end, is no trial."""
    untrained = [run for run in runs if run.config.get("estimate") or (run.completed and not run.rows)]
    for run in untrained:
        logger.info("left out, no metrics: %s", run.path)
    runs = [run for run in runs if run not in untrained]
    if not runs:
        raise BadInput(f"runs: none of the {len(untrained)} runs holds metrics, the first is {untrained[0].path}")
    try:
        values = key_values([run.config for run in runs], variant)
    except ValueError as error:
        raise BadInput(f"variant={variant}: {str(error).removeprefix('key: ')}") from error
    known = [(run, value) for run, value in zip(runs, values, strict=True) if value is not None]
    if len(known) < len(runs):
        logger.info("left out, without %s: %d runs", variant, len(runs) - len(known))
    labels = group_labels([without_key(run.config, variant) for run, _ in known])
    return [
        Member(run, label or "all", value, _seed(run.config)) for (run, value), label in zip(known, labels, strict=True)
    ], len(runs) - len(known)


def _seed(config: Mapping[str, Any]) -> str:
    """The run's seed, with the data's where it has one that is not 0."""
    data = config.get("data")
    of_data = data.get("seed") if isinstance(data, Mapping) else None
    return f"{config.get('seed')}, data {of_data}" if of_data else str(config.get("seed"))


def _baseline(members: Sequence[Member], variant: str, baseline: str | None) -> str:
    names = sorted({member.variant for member in members})
    if len(names) < 2:
        raise BadInput(f"variant={variant}: all {len(members)} runs have {names[0]}; a comparison needs two variants")
    if baseline is not None and baseline not in names:
        raise BadInput(f"baseline={baseline}: no run has it; {variant} is one of {', '.join(names)}")
    return baseline or names[0]


def _unique(members: Sequence[Member]) -> list[Member]:
    """One run per setting, variant and seed: the one that ended."""
    places: dict[tuple[str, str, str], list[Member]] = {}
    for member in members:
        places.setdefault((member.setting, member.variant, member.seed), []).append(member)
    kept = []
    for place, own in places.items():
        ended = [member for member in own if member.ended]
        if len(ended) > 1:
            raise BadInput(
                f"runs: two runs are {' / '.join(place)} (setting, variant, seed): {ended[0].run.path} and"
                f" {ended[1].run.path}; name the runs that count, e.g. runs='[runs/train/A,runs/train/B]'"
            )
        kept.append((ended or own)[-1])
        for member in own:
            if member is not kept[-1]:
                logger.info("left out, %s, another run is in its place: %s", member.run.status, member.run.path)
    return kept


def _missing(members: Sequence[Member]) -> dict[tuple[str, str], str]:
    """(setting, variant) -> its seeds that have no ended run, of all seeds of the setting, e.g. "2 (running), 3"."""
    variants = list(dict.fromkeys(member.variant for member in members))
    found = {}
    for setting in dict.fromkeys(member.setting for member in members):
        own = [member for member in members if member.setting == setting]
        seeds = sorted({member.seed for member in own}, key=natural)
        for variant in variants:
            runs = {member.seed: member for member in own if member.variant == variant}
            lacking = [
                f"{seed} ({runs[seed].run.status})" if seed in runs else seed
                for seed in seeds
                if seed not in runs or not runs[seed].ended
            ]
            if lacking:
                found[setting, variant] = ", ".join(lacking)
                logger.warning("missing, %s, %s: seeds %s", setting, variant, found[setting, variant])
    return found


def _seeds(members: Sequence[Member]) -> str:
    """The seeds that ended of each setting and variant, those of the first settings."""
    found: dict[str, list[str]] = {}
    for member in members:
        own = found.setdefault(f"{member.setting}, {member.variant}", [])
        own += [member.seed] if member.ended else []
    lines = [f"{name}: {', '.join(seeds) or 'none'}" for name, seeds in found.items()]
    return "; ".join(lines[:LISTED]) + (f"; and {len(lines) - LISTED} more" if len(lines) > LISTED else "")


def _trial(member: Member) -> Trial:
    diverged = member.run.status == "diverged"
    try:
        values = {} if diverged else measured(member.run.rows)
    except ValueError as error:
        raise BadInput(f"{member.run.path}/metrics.csv: {error}") from error
    return Trial(member.setting, member.variant, member.seed, diverged, values)


def _parts(members: Sequence[Member]) -> dict[str, str]:
    """Setting -> name of the data (and loss) whose numbers compare; "" where all runs have the same."""
    names = comparable_settings([member.run.config for member in members])
    return {member.setting: name for member, name in zip(members, names, strict=True)}


# ---- tables


def _trial_rows(members: Sequence[Member], trials: Sequence[Trial]) -> list[Row]:
    values = {(trial.setting, trial.variant, trial.seed): trial.values for trial in trials}
    rows = []
    for member in members:
        row: Row = {"setting": member.setting, "variant": member.variant, "seed": member.seed}
        row |= {"status": member.run.status, "epoch": (member.run.rows or [{}])[-1].get("epoch")}
        own = values.get((member.setting, member.variant, member.seed), {})
        rows.append({**row, **own, "run": str(member.run.path)})
    return rows


def _curves(members: Sequence[Member]) -> list[Row]:
    return [
        {"setting": member.setting, "variant": member.variant, "run": str(member.run.path), "status": member.run.status}
        | {column: row.get(column) for column in FIGURE_COLUMNS}
        for member in sorted(members, key=lambda one: natural(one.setting))
        for row in member.run.rows
    ]


def _figures(
    run: RunDir,
    members: Sequence[Member],
    parts: Mapping[str, str],
    plots: Mapping[str, PlotFunction],
    heading: str,
    missing: int,
) -> list[str]:
    """Paths of the figures: each plot for each part; an accuracy where there is one."""
    title = f"{heading} ({missing} runs not drawn: not ended)" if missing else heading
    paths = []
    for part in dict.fromkeys(parts.values()):
        table = pandas.DataFrame(_curves([member for member in members if parts[member.setting] == part]))
        table = table.dropna(axis="columns", how="all")
        for name, plot in plots.items():
            if name != "accuracy" or "test_accuracy" in table.columns:
                figure = plot(table, {}, title=f"{part}: {title}" if part else title)
                paths.append(str(run.save_figure(f"{name}_{part}" if part else name, figure)[0]))
    return paths


# ---- the report


def _report(sections: Mapping[str, str], heading: str, without: int) -> str:
    notes = [
        "mean ± std over completed trials (n - 1 in the divisor); diverged ones are counted beside.",
        "difference, interval, d (mean difference over its standard deviation), t test: pairs that both completed.",
        "better, p (exact signed-rank test): all pairs, a diverged trial being worse than any other.",
        "(Holm): corrected over the settings. All digits: variants.csv, pairs.csv, best.csv, trials.csv.",
    ]
    notes += [f"{without} runs without the key of the variants are left out."] if without else []
    return "\n\n".join([f"# Variants: {heading}", *sections.values(), "\n".join(f"- {note}" for note in notes)]) + "\n"


def _sections(
    tables: Mapping[str, Sequence[Row]], measures: Sequence[str], baseline: str, confidence: float
) -> dict[str, str]:
    """Measure -> heading, spreads, verdict and tests."""
    found = {}
    for name in measures:
        scale = 100.0 if name.endswith("accuracy") else 1.0
        rows = [row for row in tables["pairs"] if row["measure"] == name]
        found[name] = "\n\n".join(
            [
                f"## {TITLES[name][0].upper()}{TITLES[name][1:]}",
                markdown_table(_spreads(tables, name, scale)),
                f"Minus {baseline}, over the seeds both have. {_verdict(rows, name)}",
                markdown_table(_tests(rows, confidence, scale)),
            ]
        )
    return found


def _verdict(rows: Sequence[Row], measure: str) -> str:
    """How often each variant is better than the baseline."""
    word = "higher" if MEASURES[measure] else "lower"
    texts = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        better, pairs = (sum(row[column] for row in own) for column in ("better", "pairs"))
        settings = sum(2 * row["better"] > row["pairs"] for row in own)
        texts.append(
            f"{variant} is {word} in {better} of {pairs} pairs, in most pairs of {settings} of {len(own)} settings."
        )
    return " ".join(texts)


def _spreads(tables: Mapping[str, Sequence[Row]], measure: str, scale: float) -> list[dict[str, str]]:
    """One row per setting, a column per variant; the best setting of each is marked."""
    best = {(row["variant"], row["setting"]) for row in tables["best"] if row["measure"] == measure}
    found: dict[str, dict[str, str]] = {}
    for row in tables["variants"]:
        key, variant = row["setting"], row["variant"]
        text = spread(_times(row[f"{measure}_mean"], scale), _times(row[f"{measure}_std"], scale))
        text += " (best)" if (variant, key) in best and len(tables["variants"]) > 2 else ""
        text += f"; {row['diverged']} of {row['trials']} diverged" if row["diverged"] else f"; n={row['trials']}"
        text += f"; missing {row['missing']}" if row["missing"] else ""
        found.setdefault(key, {"setting": key})[variant] = text
    return list(found.values())


def _tests(rows: Sequence[Row], confidence: float, scale: float) -> list[dict[str, str]]:
    several = len({row["variant"] for row in rows}) > 1
    return [
        {"setting": row["setting"]}
        | ({"variant": row["variant"]} if several else {})
        | {
            "pairs": f"{row['pairs']} ({row['completed_pairs']} completed)",
            "difference": number(_times(row["difference"], scale)),
            f"{100 * confidence:g} % interval": span(_times(row["low"], scale), _times(row["high"], scale)),
            "d": number(row["effect_size"]),
            "p (t)": p_value(row["p_t"]),
            "better": f"{row['better']} of {row['pairs']}",
            "p": p_value(row["p"]),
            "p (Holm)": p_value(row["p_holm"]),
        }
        for row in rows
    ]


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else scale * value
