"""The profile job on comparisons written to disk: which tasks, whose cost, what is left out, and without torch."""

import logging
import subprocess
import sys

import pandas as pd
import pytest

from symlab.jobs.profile import profile
from symlab.plots.performance_profile import performance_profile
from symlab.rundir import BadInput, RunDir


class Recorder:
    def __call__(self, table, references, *, title):
        self.table, self.title = table, title
        return performance_profile(table, references, title=title)


def write_comparison(path, steps, status="completed", losses=None):
    """optimizer -> target -> steps by seed (None: never)."""
    path.mkdir(parents=True)
    run = RunDir(path)
    run.write_config("seed: 0\n", [])
    run.write_environment({})
    targets, results = [], []
    for optimizer, levels in steps.items():
        for target, column in levels.items():
            for seed, step in enumerate(column):
                row = {"optimizer": optimizer, "seed": seed, "target": target, "level": 0.1, "step": step}
                targets.append(row | {"seconds": None if step is None else 0.5 * step})
        for seed, loss in enumerate((losses or {}).get(optimizer, (0.1, 0.1))):
            state = "completed" if loss is not None else "diverged"
            results.append({"optimizer": optimizer, "seed": seed, "status": state, "test_loss": loss or 9e9})
    run.append_rows(targets, table="targets")
    run.append_rows(results, table="results")
    if status:
        run.write_summary({"status": status})
    return path


def draw(tmp_path, runs, **keys):
    own, recorder = RunDir.create(tmp_path / "profiles"), Recorder()
    outcome = profile(own, runs=runs, plot=recorder, **keys)
    return own, recorder, outcome.summary


def costs(own):
    return {(row["optimizer"], row["task"].rpartition("/")[2]): row["cost"] for row in own.read_rows("profile")}


def test_a_task_is_a_seed_and_a_target_of_a_comparison(tmp_path):
    write_comparison(tmp_path / "c" / "one", {"gd": {"0.1": [10, 20]}, "symo": {"0.1": [5, None]}})
    write_comparison(tmp_path / "c" / "two", {"gd": {"1.3 x fit": [None, 8]}, "symo": {"1.3 x fit": [4, 8]}})
    own, recorder, summary = draw(tmp_path, tmp_path / "c")
    assert costs(own) == {
        ("gd", "one, seed 0, 0.1"): 10,
        ("gd", "one, seed 1, 0.1"): 20,
        ("symo", "one, seed 0, 0.1"): 5,
        ("symo", "one, seed 1, 0.1"): None,
        ("gd", "two, seed 0, 1.3 x fit"): None,
        ("gd", "two, seed 1, 1.3 x fit"): 8,
        ("symo", "two, seed 0, 1.3 x fit"): 4,
        ("symo", "two, seed 1, 1.3 x fit"): 8,
    }
    assert own.read_rows("optimizers") == [
        {"optimizer": "gd", "tasks": 4, "solved": 3, "best": 2, "within_2": 3},
        {"optimizer": "symo", "tasks": 4, "solved": 3, "best": 3, "within_2": 3},
    ]
    assert recorder.title == "steps to the target: 4 tasks of 2 comparisons"
    assert (own.path / "figures" / "profile.png").exists()
    assert len(summary["runs"]) == 2
    own, recorder, _ = draw(tmp_path, tmp_path / "c", target=0.1, measure="seconds", title="mine")
    assert set(costs(own).values()) == {5.0, 10.0, 2.5, None}
    assert recorder.title == "mine"


def test_losses_at_the_end_and_a_diverged_run_has_none(tmp_path):
    losses = {"gd": (0.2, 0.4), "symo": (0.1, None)}
    write_comparison(tmp_path / "one", {"gd": {"0.1": [1, 2]}, "symo": {"0.1": [1, 2]}}, losses=losses)
    own, recorder, _ = draw(tmp_path, tmp_path / "one", measure="test_loss")
    found = {(row["optimizer"], row["seed"]): row["cost"] for row in own.read_rows("profile")}
    assert found == {("gd", 0): 0.2, ("gd", 1): 0.4, ("symo", 0): 0.1, ("symo", 1): None}
    assert recorder.title == "test_loss: 2 tasks of 1 comparisons"
    assert isinstance(recorder.table, pd.DataFrame)


def test_what_is_left_out_is_named(tmp_path, caplog):
    both = {"gd": {"0.1": [10, 0]}, "symo": {"0.1": [5, 0]}}
    write_comparison(tmp_path / "c" / "one", both | {"muon": {"0.1": [1, 0]}})
    write_comparison(tmp_path / "c" / "two", both)
    write_comparison(tmp_path / "c" / "dead", both, status=None)
    RunDir(tmp_path / "c" / "one" / "plain").path.mkdir()
    RunDir(tmp_path / "c" / "one" / "plain").write_config("seed: 0\n", [])
    with caplog.at_level(logging.INFO, logger="symlab"):
        own, _, summary = draw(tmp_path, tmp_path / "c")
    assert len(costs(own)) == 4  # two optimizers, one seed of each comparison: seed 1 was there at step 0
    for words in ("died", "not in every comparison: muon", "solved at the start: 2 tasks", "plain"):
        assert words in caplog.text
    assert [row["optimizer"] for row in summary["optimizers"]] == ["gd", "symo"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"runs": "dead"}, "none of the 1 runs is a finished comparison"),
        ({"target": "0.5"}, "has the target 0.5"),
        ({"measure": "test_loss", "target": "0.1"}, "target=0.1 is for measure=steps or seconds"),
        ({"runs": ["one", "other"]}, "no optimizer is in all comparisons; there are gd, adam"),
        ({"runs": "start"}, "not met at the start"),
    ],
)
def test_nothing_to_compare_is_one_clear_message(keys, words, tmp_path):
    write_comparison(tmp_path / "one", {"gd": {"0.1": [1, 2]}})
    write_comparison(tmp_path / "other", {"adam": {"0.1": [1, 2]}})
    write_comparison(tmp_path / "dead", {"gd": {"0.1": [1, 2]}}, status="diverged")
    write_comparison(tmp_path / "start", {"gd": {"0.1": [0, 0]}})
    runs = keys.get("runs", "one")
    paths = [tmp_path / name for name in ([runs] if isinstance(runs, str) else runs)]
    own = RunDir.create(tmp_path / "profiles")
    with pytest.raises(BadInput, match=words):
        profile(own, **(keys | {"runs": paths}), plot=Recorder())
    assert list(own.path.iterdir()) == []


def test_works_where_torch_cannot_be_imported(tmp_path):
    write_comparison(tmp_path / "one", {"gd": {"0.1": [1, 2]}})
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "sys.modules['torch'] = None\n"
        "from symlab.jobs.profile import profile\n"
        "from symlab.plots.performance_profile import performance_profile\n"
        "from symlab.rundir import RunDir\n"
        "root = Path(sys.argv[1])\n"
        "print(profile(RunDir.create(root / 'out'), runs=root / 'one', plot=performance_profile).summary['figure'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
