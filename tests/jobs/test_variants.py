"""The variants job on runs written to disk: who is compared, what is missing, what it writes, and without torch."""

import csv
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from symlab.jobs.variants import variants
from symlab.plots.variant_accuracy import variant_accuracy
from symlab.plots.variant_training_loss import variant_training_loss
from symlab.rundir import BadInput, RunDir
from tests.jobs.variant_runs import write_sweep, write_trial

scipy_stats = pytest.importorskip("scipy.stats")


class Recorder:
    """A plot that keeps what it was given and draws next to nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[pd.DataFrame, str]] = []

    def __call__(self, table, references, *, title):
        self.calls.append((table, title))
        return Figure(figsize=(1, 1), dpi=20)


def compare(tmp_path: Path, runs=None, *, plots=None, **keys):
    own = RunDir.create(tmp_path / "variants")
    outcome = variants(own, runs=runs or tmp_path / "runs", plots=plots, **{"baseline": "conv", **keys})
    assert (outcome.status, outcome.exit_code) == ("completed", 0)
    return own, outcome.summary


def read_csv(own: RunDir, table: str) -> list[dict[str, str]]:
    with (own.path / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_tables_of_a_sweep_with_divergences(tmp_path, caplog):
    write_sweep(tmp_path / "runs", rates=(0.02, 0.2), epochs=4)
    recorder = Recorder()
    with caplog.at_level(logging.INFO, logger="symlab"):
        own, summary = compare(tmp_path, plots={"training_loss": recorder, "accuracy": recorder})
    assert (summary["trials"], summary["diverged"], summary["missing"], summary["paired_seeds"]) == (40, 6, 0, 10)

    losses = {  # from the files themselves: the last row's batch_loss is the mean over the last epoch
        (lr, shortcut): [
            RunDir(tmp_path / "runs" / f"lr-{lr}-{shortcut}-{seed}").read_rows()[-1]["batch_loss"] for seed in range(10)
        ]
        for lr in (0.02, 0.2)
        for shortcut in ("conv", "avgpool_conv")
    }
    rows = {(row["setting"], row["variant"]): row for row in read_csv(own, "variants")}
    assert list(rows) == [(f"lr={lr}", name) for lr in (0.02, 0.2) for name in ("conv", "avgpool_conv")]
    for (lr, shortcut), values in losses.items():
        row = rows[f"lr={lr}", shortcut]
        done = values[6:] if row["diverged"] == "6" else values
        assert float(row["final_epoch_loss_mean"]) == pytest.approx(np.mean(done))
        assert float(row["final_epoch_loss_std"]) == pytest.approx(np.std(done, ddof=1))
    lost = rows["lr=0.2", "conv"]
    assert (lost["trials"], lost["completed"], lost["diverged"], lost["missing"]) == ("10", "4", "6", "")

    pairs = {row["setting"]: row for row in read_csv(own, "pairs") if row["measure"] == "final_epoch_loss"}
    whole, broken = pairs["lr=0.02"], pairs["lr=0.2"]
    t = scipy_stats.ttest_rel(losses[0.02, "avgpool_conv"], losses[0.02, "conv"])
    assert (float(whole["t"]), float(whole["p_t"])) == (pytest.approx(t.statistic), pytest.approx(t.pvalue))
    assert (float(whole["low"]), float(whole["high"])) == pytest.approx(tuple(t.confidence_interval(0.95)))
    w = scipy_stats.wilcoxon(losses[0.02, "avgpool_conv"], losses[0.02, "conv"], method="exact")
    assert float(whole["p"]) == pytest.approx(w.pvalue)
    assert (broken["pairs"], broken["completed_pairs"], broken["baseline_diverged"]) == ("10", "4", "6")

    best = {(row["measure"], row["variant"]): row["setting"] for row in read_csv(own, "best")}
    assert best["final_epoch_loss", "conv"] == "lr=0.02"  # of lr=0.2 six diverged
    assert best["final_epoch_loss", "avgpool_conv"] == "lr=0.2"

    report = (own.path / "report.md").read_text(encoding="utf-8")
    assert "6 of 10 diverged" in report
    assert "Best test accuracy" in report
    assert "Training loss over the last epoch" in caplog.text
    assert "Best test accuracy" not in caplog.text
    (table, title), _ = recorder.calls
    assert title == "cifar10, preact_resnet18, sgd"
    assert list(dict.fromkeys(table["variant"])) == ["conv", "avgpool_conv"]
    assert table[table["status"] == "diverged"]["run"].nunique() == 6
    assert len(summary["figures"]) == 2


def test_unfinished_runs_are_missing_and_named(tmp_path, caplog):
    for seed in range(3):
        for shortcut in ("conv", "avgpool_conv"):
            status = {("conv", 1): "interrupted", ("conv", 2): None}.get((shortcut, seed), "completed")
            write_trial(tmp_path / "runs" / f"{shortcut}{seed}", shortcut=shortcut, seed=seed, status=status)
    write_trial(tmp_path / "runs" / "more", seed=5)
    recorder = Recorder()
    with caplog.at_level(logging.WARNING, logger="symlab"):
        own, summary = compare(tmp_path, plots={"training_loss": recorder})
    assert "missing, all, conv: seeds 1 (interrupted), 2 (died)" in caplog.text
    assert "missing, all, avgpool_conv: seeds 5" in caplog.text
    assert (summary["trials"], summary["missing"], summary["paired_seeds"]) == (5, 2, 1)
    conv, pool = read_csv(own, "variants")
    assert (conv["missing"], pool["missing"]) == ("1 (interrupted), 2 (died)", "5")
    assert recorder.calls[0][1].endswith("(2 runs not drawn: not ended)")
    assert {row["status"] for row in read_csv(own, "trials")} == {"completed", "interrupted", "died"}
    (row,) = own.read_rows("pairs")
    assert (row["pairs"], row["difference"], row["p"], row["p_t"]) == (1, 0.0, None, None)


def test_a_run_that_was_started_again_elsewhere_counts_once(tmp_path):
    for shortcut in ("conv", "avgpool_conv"):
        write_trial(tmp_path / "runs" / shortcut, shortcut=shortcut)
    write_trial(tmp_path / "runs" / "first try", status="failed")
    assert compare(tmp_path)[1]["missing"] == 0
    write_trial(tmp_path / "runs" / "twice")
    with pytest.raises(BadInput, match=r"two runs are all / conv / 0 .*twice"):
        compare(tmp_path)


def test_data_sets_are_apart(tmp_path):
    for data in ("cifar10", "cifar100"):
        for shortcut in ("conv", "avgpool_conv"):
            for lr in (0.1, 0.2):
                write_trial(
                    tmp_path / "runs" / f"{data}{shortcut}{lr}",
                    shortcut=shortcut,
                    lr=lr,
                    losses=(lr, lr if data == "cifar10" else 1 - lr),
                    data={"_target_": f"symlab.data.{data}.{data}"},
                )
    recorder = Recorder()
    own, summary = compare(tmp_path, plots={"training_loss": recorder, "accuracy": recorder})
    names = {Path(path).name for path in summary["figures"]}
    assert names == {"training_loss_cifar10.png", "training_loss_cifar100.png"}
    assert {title for _, title in recorder.calls} == {
        f"{name}: preact_resnet18, sgd" for name in ("cifar10", "cifar100")
    }
    best = {(row["part"], row["variant"]): row["setting"] for row in read_csv(own, "best")}
    assert best["cifar10", "conv"] == "data=cifar10, lr=0.1"
    assert best["cifar100", "conv"] == "data=cifar100, lr=0.2"
    assert not any("accuracy" in column for column in read_csv(own, "variants")[0])


def test_other_keys_and_groups_tell_variants_apart(tmp_path):
    """A group takes its option's keys with it: adam and gd have different keys and still pair."""
    for seed in range(2):
        write_trial(tmp_path / "runs" / f"sgd{seed}", seed=seed, losses=(1.0, 0.5 + seed))
        adam = {"_target_": "symlab.optim.adam.adam", "lr": 0.001, "betas": [0.9, 0.99]}
        write_trial(tmp_path / "runs" / f"adam{seed}", seed=seed, losses=(1.0, 0.25 + seed), optimizer=adam)
    _, summary = compare(tmp_path, variant="optimizer", baseline="sgd")
    (row,) = summary["pairs"]
    assert (row["variant"], row["pairs"], row["difference"]) == ("adam", 2, -0.25)
    with pytest.raises(BadInput, match=r"within no setting do two variants share a seed.*optimizer=adam, 0.001: 0, 1"):
        compare(tmp_path, variant="optimizer.lr", baseline=None)
    write_trial(tmp_path / "runs" / "slow", lr=0.01)
    assert compare(tmp_path, tmp_path / "runs" / "s*", variant="optimizer.lr", baseline=None)[1]["baseline"] == "0.01"


def test_runs_without_the_key_are_left_out(tmp_path, caplog):
    for shortcut in ("conv", "avgpool_conv", None):
        write_trial(tmp_path / "runs" / str(shortcut), shortcut=shortcut)
    with caplog.at_level(logging.INFO, logger="symlab"):
        own, summary = compare(tmp_path)
    assert summary["trials"] == 2
    assert "left out, without model.shortcut: 1 runs" in caplog.text
    assert "1 runs without the key" in (own.path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"variant": "model.shortcuts"}, ["variant=model.shortcuts: no run has the key", "model.shortcut,"]),
        ({"baseline": "pool"}, ["baseline=pool", "avgpool_conv, conv"]),
        ({"variant": "model"}, ["variant=model: all 3 runs have preact_resnet18"]),
        ({"confidence": 1.0}, ["confidence", "1.0"]),
        ({"variant": "optimizer.lr", "baseline": "0.1"}, ["variant=optimizer.lr: all 3 runs have 0.1"]),
        ({}, ["within no setting", "all, conv: 0, 1;", "all, avgpool_conv: 7"]),
    ],
)
def test_what_cannot_be_compared_is_one_message_and_writes_nothing(keys, words, tmp_path):
    for seed, shortcut in ((0, "conv"), (1, "conv"), (7, "avgpool_conv")):
        write_trial(tmp_path / "runs" / f"{seed}", shortcut=shortcut, seed=seed)
    own = RunDir.create(tmp_path / "variants")
    with pytest.raises(BadInput) as caught:
        variants(own, runs=tmp_path / "runs", plots=None, **{"baseline": "conv", **keys})
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert list(own.path.iterdir()) == []


def test_estimates_are_no_trials(tmp_path, caplog):
    write_trial(tmp_path / "estimates" / "a", losses=())
    with pytest.raises(BadInput, match=r"none of the 1 runs holds metrics, the first is .*estimates/a"):
        compare(tmp_path, tmp_path / "estimates")
    diverged = RunDir(write_trial(tmp_path / "estimates" / "b", losses=(), estimate=True))
    diverged.write_summary({"status": "diverged"})
    for shortcut in ("conv", "avgpool_conv"):
        write_trial(tmp_path / "runs" / shortcut, shortcut=shortcut)
    with caplog.at_level(logging.INFO, logger="symlab"):
        _, summary = compare(tmp_path, [tmp_path / "runs", tmp_path / "estimates"])
    assert (summary["trials"], summary["diverged"]) == (2, 0)
    assert "left out, no metrics: " in caplog.text


def test_a_run_without_batch_losses_is_named(tmp_path):
    path = write_trial(tmp_path / "runs" / "a", status="failed", losses=())
    RunDir(path).write_summary({"status": "completed"})
    write_trial(tmp_path / "runs" / "b", shortcut="avgpool_conv")
    with pytest.raises(BadInput, match=r"runs/a/metrics.csv: no update"):
        compare(tmp_path)


def test_works_where_torch_cannot_be_imported(tmp_path):
    for shortcut in ("conv", "avgpool_conv"):
        write_trial(tmp_path / "runs" / shortcut, shortcut=shortcut, accuracies=(0.1, 0.2, 0.3, 0.4))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "sys.modules['torch'] = None  # any import of torch now raises ModuleNotFoundError\n"
        "from symlab.jobs.variants import variants\n"
        "from symlab.plots.variant_training_loss import variant_training_loss\n"
        "from symlab.plots.variant_accuracy import variant_accuracy\n"
        "from symlab.rundir import RunDir\n"
        "root = Path(sys.argv[1])\n"
        "plots = {'training_loss': variant_training_loss, 'accuracy': variant_accuracy}\n"
        "print(*variants(RunDir.create(root / 'out'), runs=root / 'runs', plots=plots).summary['figures'], sep='\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [Path(line).stat().st_size > 2000 for line in done.stdout.split("\n")[:2]] == [True, True]


# ---- the figures


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("curves")
    write_sweep(folder / "runs", seeds=8, rates=(0.1, 0.2), epochs=4)
    return pd.read_csv(compare(folder)[0].path / "curves.csv")


def drawn(axes) -> dict[str, list[np.ndarray]]:
    """Thick (means) and thin (diverged) lines."""
    found: dict[str, list[np.ndarray]] = {"means": [], "diverged": []}
    for line in axes.get_lines():
        found["means" if line.get_linewidth() > 1 else "diverged"].append(np.asarray(line.get_ydata()))
    return found


def test_figures_show_means_bands_and_the_diverged(table):
    figure = variant_training_loss(table, {}, title="a $title")
    assert [axes.get_title() for axes in figure.axes] == [
        "lr=0.1: conv n=8, avgpool_conv n=8",
        "lr=0.2: conv n=2 + 6 diverged, avgpool_conv n=8",
    ]
    for setting, axes in zip(("lr=0.1", "lr=0.2"), figure.axes, strict=True):
        assert axes.get_yscale() == "log"
        part = table[(table["setting"] == setting) & (table["status"] == "completed")]
        for values, name in zip(drawn(axes)["means"], ("conv", "avgpool_conv"), strict=True):
            means = part[part["variant"] == name].groupby("step")["batch_loss"].mean().dropna()
            np.testing.assert_allclose(values, means)
    assert [len(drawn(axes)["diverged"]) for axes in figure.axes] == [0, 6]
    largest = table[table["status"] == "completed"]["batch_loss"].max()
    assert figure.axes[0].get_ylim()[1] <= 3.001 * largest < 900
    accuracy = variant_accuracy(table, {}, title="t")
    assert accuracy.axes[0].get_ylim()[1] > 50
    assert accuracy.axes[0].get_yscale() == "linear"
    labels = [text.get_text() for text in accuracy.legends[0].get_texts()]
    assert labels == ["conv", "avgpool_conv", "±1 std over runs", "min to max over runs", "diverged"]


def test_a_trial_that_diverged_before_its_first_value_is_counted(table):
    table = table.copy()
    gone = table["run"].str.endswith("lr-0.2-conv-0")
    table.loc[gone, "batch_loss"] = np.nan
    assert "conv n=2 + 6 diverged" in variant_training_loss(table, {}, title="t").axes[1].get_title()


def test_figures_refuse_other_tables(table):
    for figure in (variant_training_loss, variant_accuracy):
        with pytest.raises(ValueError, match="no rows"):
            figure(table[:0], {}, title="t")
    with pytest.raises(ValueError, match="no column test_accuracy: this figure is for runs of variants"):
        variant_accuracy(table.drop(columns="test_accuracy"), {}, title="t")
