"""benchmark-training at toy size: its rows and ratios, that every way does the work it is named after, bad values."""

import functools
import statistics
import warnings

import pytest
import torch
from torch import nn

from symlab.data.digits import digits
from symlab.jobs.benchmark_training import benchmark_training
from symlab.plots.speed_bars import speed_bars
from symlab.rundir import BadInput, RunDir
from symlab.training.losses import auto

SEEN = []


class Watched(nn.Module):
    """A small convolutional net that notes how its batches come."""

    def __init__(self, channels, classes):
        super().__init__()
        self.convolution = nn.Conv2d(channels, 4, 3)
        self.linear = nn.Linear(4, classes)

    def forward(self, x):
        y = self.convolution(x)
        last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        if self.training:
            SEEN.append((tuple(x.shape), y.dtype, last))
        return self.linear(torch.relu(y).mean((2, 3)))


def watched(input_shape, output_size, generator):
    torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
    return Watched(input_shape[0], output_size)


def sgd(model, inputs):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def run_job(run, **changes):
    settings = {
        "model": watched,
        "data": functools.partial(digits, num_train=40, num_test=10, channels=3, augment=True),
        "optimizer": sgd,
        "loss": auto,
        "plot": speed_bars,
        **{"batch_size": 8, "workers": 0, "steps": 2, "untimed": 1, "data_steps": 3, "repeats": 3},
        **{"device": "cpu", "threads": 1, "progress": False},
    }
    return benchmark_training(run, **{**settings, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    SEEN.clear()
    run = RunDir.create(tmp_path_factory.mktemp("speed"))
    return run, run_job(run, targets={"symlab_bf16": 1e-6, "symlab_data": 1e9}), list(SEEN)


def test_rows_of_every_way_in_every_repeat(done):
    run, outcome, _ = done
    ways = ["plain_script", "symlab_float32", "symlab_bf16", "plain_data", "symlab_data"]
    rows = run.read_rows()
    assert [sorted(row["way"] for row in rows if row["repeat"] == r) for r in range(3)] == [sorted(ways)] * 3
    for row in rows:
        batches = 2 if row["part"] == "training" else 3
        assert row["images_per_s"] == pytest.approx(8 * batches / row["seconds"])
    assert [row["way"] for row in outcome.summary["table"]] == ways
    assert (run.path / "figures" / "speed.png").is_file()


def test_ratios_are_medians_within_repeats_to_the_plain_way_of_the_part(done):
    run, outcome, _ = done
    rates = {(row["repeat"], row["way"]): row["images_per_s"] for row in run.read_rows()}
    for row in outcome.summary["table"]:
        plain = "plain_script" if row["part"] == "training" else "plain_data"
        pairs = [rates[r, row["way"]] / rates[r, plain] for r in range(3)]
        assert row["ratio"] == pytest.approx(statistics.median(pairs))
        assert row["images_per_s"] == pytest.approx(statistics.median(rates[r, row["way"]] for r in range(3)))
    aims = {row["way"]: (row["target"], row["reached"]) for row in outcome.summary["table"]}
    assert aims["symlab_bf16"] == (1e-6, True)
    assert aims["symlab_data"] == (1e9, False)
    assert aims["symlab_float32"] == (None, None)


def test_every_way_trains_as_it_is_named(done):
    *_, seen = done
    assert {shape for shape, *_ in seen} == {(8, 3, 8, 8)}
    kinds = [(dtype, last) for _, dtype, last in seen]
    turns = 1 + 3 * (1 + 2)  # one before all, then one that is not counted and two that are, three times
    expected = [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == dict.fromkeys(expected, turns)


def test_worker_processes_and_precisions_of_ones_choice(tmp_path):
    SEEN.clear()
    outcome = run_job(RunDir.create(tmp_path), workers=2, amp=["bf16"], repeats=2, channels_last=False)
    assert [row["way"] for row in outcome.summary["table"]] == [
        "plain_script", "symlab_bf16", "plain_data", "symlab_data",
    ]  # fmt: skip
    assert {(dtype, last) for _, dtype, last in SEEN} == {(torch.float32, False), (torch.bfloat16, False)}


def test_an_interrupted_run_takes_the_repeats_that_it_lacks(tmp_path, done):
    run = RunDir.create(tmp_path)
    first, _, _ = done
    run.append_rows([row for row in first.read_rows() if row["repeat"] < 2])
    before = run.read_rows()
    table = run_job(run).summary["table"]
    rows = run.read_rows()
    assert rows[:10] == before
    assert sorted(row["way"] for row in rows[10:]) == sorted(row["way"] for row in table)
    assert {row["repeat"] for row in rows[10:]} == {2}


@pytest.mark.slow
def test_compiled(tmp_path):
    from symlab.models.preact_resnet18 import preact_resnet18

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        net = functools.partial(preact_resnet18, width=2)
        outcome = run_job(RunDir.create(tmp_path), model=net, compile=True, amp=[None], repeats=2)
    assert outcome.summary["compile"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"amp": []}, "amp must list some of null, bf16 and fp16"),
        ({"amp": ["tf32"]}, r"each once, got \['tf32'\]"),
        ({"amp": [None, None]}, "each once"),
        ({"amp": ["fp16"]}, "amp=fp16 needs a CUDA device"),
        (
            {"targets": {"symlab_fp16": 2.0}},
            "targets.symlab_fp16 is not one of symlab_float32, symlab_bf16, symlab_data",
        ),
        ({"targets": {"symlab_bf16": 0.0}}, "targets.symlab_bf16 must be positive, got 0.0"),
        ({"repeats": 1}, "repeats must be .*at least 2, got 1"),
        ({"steps": 0}, "steps must be .*at least 1, got 0"),
        ({"workers": -1}, "workers must be .*at least 0, got -1"),
        ({"batch_size": 41}, "batch_size=41 does not fit the 40 training rows"),
        ({"data": functools.partial(digits, num_train=40, num_test=10)}, "set data.augment=true"),
        ({"data": functools.partial(digits, channels=2, augment=True)}, "channels"),
        ({"device": "tpu"}, "device must be"),
    ],
)
def test_bad_input(tmp_path, changes, message):
    run = RunDir.create(tmp_path)
    with pytest.raises((BadInput, ValueError), match=message):
        run_job(run, **changes)
    assert run.read_rows() == []
