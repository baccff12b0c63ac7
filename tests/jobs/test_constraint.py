"""The job constraint, with a protocol that needs no training: parts, resuming, statements, and what it refuses."""

import signal

import pandas
import pytest
import torch
from matplotlib.figure import Figure

from symlab.data.dataset import Dataset
from symlab.jobs.constraint import constraint, overall, statement_lines
from symlab.protocols.study import over_seeds, single
from symlab.rundir import BadInput, RunDir


def count(table, references, *, title):
    figure = Figure()
    figure.suptitle(f"{title}: {len(table)} rows, level {references['level']}")
    return figure


class Sums:
    """Part k counts to `length` and writes seed + k; the second table holds one row per part."""

    def __init__(self, ground, length=4, stop_in=None, uses=()):
        for key in uses:
            getattr(ground, f"need_{key}")()
        self.title, self.references = "sums", {"level": 2.0}
        self.ground, self.length, self.stop_in, self.ran = ground, length, stop_in, []
        self.figures = {"values": "metrics", "lengths": "lengths"}

    def parts(self):
        return ["first", "second", "third"]

    def run(self, part, watch):
        state = watch.saved() or {"at": 0, "begun": part}
        self.ran.append((part, state["at"]))
        while state["at"] < self.length:
            state["at"] += 1
            if self.stop_in == part and state["at"] == 2:
                signal.raise_signal(signal.SIGTERM)
            if watch.due() or watch.stopped():
                watch.save(state)
            if watch.stopped():
                return None
        k = self.parts().index(part)
        rows = [{"seed": seed, "k": k, "value": float(seed + k)} for seed in self.ground.seeds]
        return {"metrics": rows, "lengths": [{"length": self.length, "begun": state["begun"]}]}

    def number_names(self):
        return ["value", "length", "nothing"]

    def numbers(self, tables):
        rows = tables["metrics"]
        return {
            "value": over_seeds("values grow", [float(x) for x in rows[rows["k"] == 2]["value"]]),
            "length": single("all parts have a length", float(len(tables["lengths"]))),
            "nothing": single("cannot be had", None),
        }


class Made:
    """A protocol that keeps the studies it made."""

    def __init__(self, **keys):
        self.keys, self.studies = keys, []

    def __call__(self, ground):
        self.studies.append(Sums(ground, **self.keys))
        return self.studies[-1]


def run_job(run, protocol, **changes):
    settings = {"protocol": protocol, "seeds": (0, 1), "device": "cpu", "threads": 1, "progress": False}
    return constraint(run, **(settings | changes))


def test_all_parts_numbers_figures_and_the_verdict(tmp_path):
    run = RunDir.create(tmp_path)
    expected = {"value": [2.0, 3.0], "length": [3, 3]}
    outcome = run_job(run, Made(), plots={"values": count, "lengths": count}, expected=expected)
    assert outcome.status == "completed"
    assert [row["part"] for row in run.read_rows("parts")] == ["first", "second", "third"]
    assert [(row["part"], row["seed"], row["value"]) for row in run.read_rows()][-2:] == [
        ("third", 0, 2),
        ("third", 1, 3),
    ]
    summary = run.read_summary()
    assert summary["verdict"] == "holds"
    assert summary["numbers"]["value"]["value"] == 2.5
    assert summary["numbers"]["value"]["spread"] == pytest.approx(0.5**0.5)
    assert summary["numbers"]["value"]["text"] == "values grow"
    assert summary["references"] == {"level": 2.0}  # for symlab plot
    assert (run.path / "figures" / "lengths.png").exists()
    assert (run.path / "figures" / "values.pdf").exists()


@pytest.mark.parametrize(
    ("expected", "verdict"),
    [({"value": [2.6, 3.0]}, "fails"), ({"nothing": [0, 1]}, "unknown"), (None, "none"), ({"length": [0, 5]}, "holds")],
)
def test_the_verdict_can_fail(tmp_path, expected, verdict):
    outcome = run_job(RunDir.create(tmp_path), Made(), expected=expected)
    assert outcome.summary["verdict"] == verdict


def test_one_failure_outweighs_what_is_unknown():
    assert overall({"a": {"verdict": "unknown"}, "b": {"verdict": "outside"}}) == "fails"


def test_lines_say_value_spread_band_and_statement():
    numbers = {
        "x": {"value": 2.0, "spread": 0.5, "text": "x is two"},
        "y": {"value": None, "spread": None, "text": "y"},
    }
    verdicts = {"x": {"low": 1, "high": 3, "verdict": "within"}}
    assert statement_lines(numbers, verdicts) == ["x: 2 +- 0.5 in [1, 3]: HOLDS (x is two)", "y: no number (y)"]


def test_a_stopped_part_goes_on_from_its_checkpoint_and_ends_as_if_never_stopped(tmp_path):
    whole, run = RunDir.create(tmp_path / "a"), RunDir.create(tmp_path / "b")
    run_job(whole, Made())
    stopped = run_job(run, Made(stop_in="second"))
    assert (stopped.status, stopped.exit_code) == ("interrupted", 128 + signal.SIGTERM)
    assert [row["part"] for row in run.read_rows("parts")] == ["first"]
    again = Made()
    assert run_job(run, again).status == "completed"
    assert again.studies[0].ran == [("second", 2), ("third", 0)]
    for table in ("metrics", "lengths"):
        assert run.read_rows(table) == whole.read_rows(table)


class Draws(Sums):
    """Each part draws `length` numbers from the global generator, as dropout does."""

    def run(self, part, watch):
        state = watch.saved() or {"drawn": []}
        while len(state["drawn"]) < self.length:
            if self.stop_in == part and len(state["drawn"]) == 2:
                signal.raise_signal(signal.SIGTERM)
            if watch.stopped():
                watch.save(state)
                return None
            state["drawn"].append(float(torch.rand(())))
        return {"metrics": [{"seed": 0, "k": 2, "value": x} for x in state["drawn"]], "lengths": [{"length": 4}]}


def test_what_is_drawn_from_the_global_generator_does_not_depend_on_a_stop(tmp_path):
    whole, run = RunDir.create(tmp_path / "a"), RunDir.create(tmp_path / "b")
    run_job(whole, lambda ground: Draws(ground))
    for stop_in in ("first", "third", None):
        run_job(run, lambda ground, part=stop_in: Draws(ground, stop_in=part))
        torch.rand(7)
    assert run.read_rows() == whole.read_rows()
    assert len({row["value"] for row in run.read_rows()}) == 4  # all parts the same, the numbers within one not


def test_rows_of_a_part_that_was_killed_while_writing_are_not_kept_twice(tmp_path):
    run = RunDir.create(tmp_path)
    run.append_rows([{"part": "first", "seed": 0, "k": 0, "value": 99.0}])
    run_job(run, Made())
    assert [row["value"] for row in run.read_rows() if row["k"] == 0] == [0.0, 1.0]


def test_the_protocol_stands_on_what_the_config_names(tmp_path):
    rows = torch.zeros(4, 3)
    labels = torch.tensor([0, 1, 0, 1])
    protocol = Made(uses=("data", "schedule"))
    given = {"data": lambda: Dataset("zeros", rows, labels, rows, labels, 2), "schedule": lambda step, total: 1.0}
    run_job(RunDir.create(tmp_path), protocol, **given, dtype="float64")
    ground = protocol.studies[0].ground
    assert ground.need_data().train_inputs.dtype is torch.float64
    assert ground.seeds == (0, 1)
    for need, key in ((ground.need_model, "model=mlp"), (ground.need_optimizer, "optimizer=sgd")):
        with pytest.raises(ValueError, match=key):
            need()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": ()}, r"seeds=\[\]"),
        ({"seeds": (0, 0)}, r"seeds=\[0, 0\]"),
        ({"seeds": (-1,)}, r"seeds=\[-1\]"),
        ({"seeds": (0, 2**63)}, r"seeds=\[0, 9223372036854775808\].*below 2\^63"),
        ({"checkpoint_every_s": -1.0}, "checkpoint_every_s"),
        ({"plots": {"curve": count}}, r"plots\.curve: the figures of this protocol are plots\.values, plots\.lengths"),
        ({"expected": {"valu": [0, 1]}}, r"expected\.valu.*near it: value"),
        ({"expected": {"value": [1, 0]}}, "low <= high"),
        ({"device": "tpu"}, "device"),
        ({"schedule": lambda step, total: 1.0}, "schedule: protocol Made has its own"),
        ({"optimizer": lambda model, inputs: None}, "optimizer: protocol Made has its own.*leave optimizer out"),
        ({"dtype": "int8"}, "dtype"),
        ({"dtype": "bfloat16"}, "dtype=bfloat16.*float32 or float64"),
    ],
)
def test_refuses_before_anything_is_computed(tmp_path, changes, message):
    protocol, run = Made(), RunDir.create(tmp_path)
    with pytest.raises(BadInput, match=message):
        run_job(run, protocol, **changes)
    assert not any(study.ran for study in protocol.studies)
    assert run.read_rows("parts") == []


def test_tables_are_read_as_they_stand_on_disk(tmp_path):
    run = RunDir.create(tmp_path)
    run_job(run, Made())
    table = pandas.DataFrame(run.read_rows("lengths"))
    assert list(table["begun"]) == ["first", "second", "third"]
