"""Tasks of permuted pixels: every net against one that learns by itself, exact continuation, and the statements."""

import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tests.reference_plasticity as reference
from symlab.data.dataset import Dataset
from symlab.protocols.plasticity import PlasticityStudy, plasticity
from symlab.protocols.plasticity_numbers import NAMES, Windows, plasticity_numbers
from symlab.protocols.plasticity_training import Arm, Learners, Net, Plan
from symlab.protocols.study import Ground

SMALL = {"hidden": 5, "tasks": 3, "epochs": 2, "batch_size": 6, "early": 1, "late": 1}


def pixels(rows=20):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(rows + 9) % 3
    inputs = torch.randn(3, 1, 2, 3, generator=generator)[labels] + torch.randn(rows + 9, 1, 2, 3, generator=generator)
    inputs = inputs.double()
    return Dataset("pixels", inputs[:rows], labels[:rows], inputs[rows:], labels[rows:], num_classes=3, references={})


def study(seeds=(0, 1), **keys: Any) -> PlasticityStudy:
    ground = Ground(seeds, torch.device("cpu"), torch.float64, data=pixels())
    return plasticity(ground, **{**SMALL, **keys})


class FakeWatch:
    """Stops at the `stop`-th question; keeps what is saved."""

    def __init__(self, stop=None, kept=None, always=False):
        self.left, self.kept, self.always = stop, kept, always

    def stopped(self):
        if self.left is not None:
            self.left -= 1
        return self.left == 0

    def saved(self):
        return self.kept

    def due(self):
        return self.always

    def save(self, state):
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        buffer.seek(0)
        self.kept = torch.load(buffer, weights_only=True)

    def say(self, text):
        pass


def layers(net):
    return [tuple(t.detach().numpy().copy() for t in net.weights()[k : k + 2]) for k in (0, 2, 4)]


def zeros(net):
    return [(np.zeros_like(W), np.zeros_like(b)) for W, b in layers(net)]


def shift_of(net):
    buffers = {name.split(".")[0] + "." + name.split(".")[2]: b.numpy() for name, b in net.named_buffers()}
    return [(buffers[f"{name}.weight"], buffers[f"{name}.bias"]) for name in ("first", "second", "last")]


@pytest.mark.parametrize("settings", [((0.0, 0.0),), ((0.01, 0.0), (0.3, 0.0)), ((0.1, 0.5), (0.3, 1.0))])
def test_each_net_learns_as_it_would_alone(settings):
    """Against Adam written out, row by row: weights, accuracy on the way and at the end, rank, dead units."""
    data, seeds = pixels(), (0, 3)
    plan = Plan(data, seeds, hidden=5, tasks=1, epochs=2, batch_size=6, lr=0.02)
    learners = Learners(plan, Arm("any", settings), torch.float64, torch.device("cpu"))
    starts = [learners.stack.net(s) for s in range(len(learners.labels))]
    online = learners.learn(0, lambda: False)
    rows = learners.measured(0, online)
    assert len(rows) == len(settings) * len(seeds)
    images, test_images = plan.images(0, test=False).numpy(), plan.images(0, test=True).numpy()
    targets, batches = data.train_targets.numpy(), [batch.numpy() for batch in plan.batches(0)]
    assert len(batches) == 2 * 3
    for s, row in enumerate(rows):
        seed = seeds.index(row["seed"])
        point = shift_of(starts[s]) if row["sigma"] else zeros(starts[s])
        own = [(images[seed][batch[seed]], targets[batch[seed]]) for batch in batches]
        expected, accuracy = reference.adam(layers(starts[s]), point, own, 0.02, row["decay"])
        for found, wanted in zip(layers(learners.stack.net(s)), expected, strict=True):
            np.testing.assert_allclose(found[0], wanted[0], rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(found[1], wanted[1], rtol=1e-9, atol=1e-11)
        assert row["online_accuracy"] == pytest.approx(accuracy, abs=1e-6)
        hidden = [reference.outputs(expected, x) for x in test_images[seed]]
        right = [one[-1].argmax() == c for one, c in zip(hidden, data.test_targets.numpy(), strict=True)]
        assert row["test_accuracy"] == pytest.approx(np.mean(right))
        rank, _ = reference.shape_of(np.stack([one[1] for one in hidden]), 0.01)
        _, still = reference.shape_of(np.stack([np.concatenate(one[:2]) for one in hidden]), 0.01)
        assert (row["rank"], row["dead_fraction"]) == (rank, pytest.approx(still / 10))
        size = sum(float((t**2).sum()) for pair in expected for t in pair) ** 0.5
        assert row["weight_norm"] == pytest.approx(size)


def test_arms_share_start_batches_and_permutations_and_seeds_do_not():
    found = study()
    learners = {arm.name: Learners(found.plan, arm, torch.float64, torch.device("cpu")) for arm in found.arms}
    plain = learners["vanilla"]
    for other in learners.values():
        for s, label in enumerate(other.labels):
            twin = plain.stack.net((0, 1).index(label["seed"]))
            for a, b in zip(other.stack.net(s).weights(), twin.weights(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert [label["decay"] for label in learners["shift"].labels] == [0.001] * 4 + [0.01] * 4 + [0.1] * 4
    orders = [found.plan.permutation(seed, task).tolist() for seed in (0, 1) for task in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == list(range(6)) for order in orders)
    first = next(iter(found.plan.batches(0)))
    assert torch.equal(first, next(iter(found.plan.batches(0))))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, next(iter(found.plan.batches(1))))
    rows = found.plan.data.train_inputs.flatten(1)
    assert torch.equal(found.plan.images(1, test=False)[1], rows[:, orders[3]])


def test_shrinking_and_noise():
    plan = Plan(pixels(), (0, 1), hidden=400, tasks=2, epochs=1, batch_size=20, lr=1e-12)
    still = Learners(
        plan, Arm("any", ((0.0, 0.0), (0.1, 0.0)), shrink=0.5, perturb=0.3), torch.float64, torch.device("cpu")
    )
    before = {name: p.detach().clone() for name, p in still.stack.parameters.items()}
    still.learn(0, lambda: False)
    for name, p in still.stack.parameters.items():
        torch.testing.assert_close(p, before[name], rtol=0, atol=1e-9)  # the first task disturbs nothing
    still.learn(1, lambda: False)
    noise = {name: p.detach() - 0.5 * before[name] for name, p in still.stack.parameters.items()}
    torch.testing.assert_close(noise["second.weight"][:2], noise["second.weight"][2:], rtol=0, atol=1e-9)
    assert float(noise["second.weight"][0].std()) * 400**0.5 == pytest.approx(0.3, rel=0.02)
    assert float(noise["first.bias"][0].std()) == pytest.approx(0.3, rel=0.15)
    assert not torch.allclose(noise["second.weight"][0], noise["second.weight"][1])
    noisy = Learners(plan, Arm("any", noise=0.2), torch.float64, torch.device("cpu"))
    before = noisy.stack.parameters["second.weight"].detach().clone()
    noisy.learn(0, lambda: False)
    moved = noisy.stack.parameters["second.weight"].detach() - before
    assert float(moved.std()) * 400**0.5 == pytest.approx(0.2, rel=0.02)  # one step
    noisy.learn(1, lambda: False)
    assert float((noisy.stack.parameters["second.weight"].detach() - before).std()) * 400**0.5 == pytest.approx(
        0.2 * 2**0.5, rel=0.02
    )


@pytest.mark.parametrize("part", ["shift", "noise", "shrink and perturb"])
def test_a_stopped_part_goes_on_bit_for_bit(part):
    straight = study().run(part, FakeWatch(always=True))
    stopped = FakeWatch(stop=2)
    assert study().run(part, stopped) is None
    assert stopped.kept["task"] == 1
    assert study().run(part, FakeWatch(kept=stopped.kept)) == straight
    late = FakeWatch(always=True)
    study().run(part, late)
    assert late.kept["task"] == 2
    assert study().run(part, FakeWatch(kept=late.kept)) == straight


def test_tables_figures_and_numbers():
    found = study()
    tables: dict[str, list[Any]] = {}
    for part in found.parts():
        for name, rows in found.run(part, FakeWatch()).items():
            tables.setdefault(name, []).extend(rows)
    assert set(found.figures.values()) | {"metrics"} == set(tables)
    assert len(tables["metrics"]) == 3 * 2 * (3 + 3 + 6)
    assert {row["curve"] for row in tables["lines"]} == {
        *("vanilla", "noise", "shrink and perturb", "decay 0.001", "decay 0.001, shift 0.01/√d"),
        "decay 0.001, shift 1/√d",
    }
    assert {row["decay"] for row in tables["strong"]} == {0.0, 0.1}
    assert {row["curve"] for row in tables["late"]} == {"decay", "decay, shift 0.01/√d", "decay, shift 1/√d"}
    assert all(row["task"] == 3 for row in tables["late"])
    assert len(tables["late"]) == 2 * 9
    numbers = found.numbers({name: pd.DataFrame(rows) for name, rows in tables.items()})
    assert list(numbers) == list(found.number_names()) == list(NAMES)
    assert numbers["diverged"]["value"] == 0


def test_numbers_of_a_known_table():
    """Early 0.9; vanilla falls to 0.4 and 0.5 at task 3; the shift stays, decay loses 0.1; one net with noise gone."""
    late = {
        "vanilla": (0.4, 0.5),
        "decay": (0.8, 0.8),
        "shift": (0.9, 0.91),
        "noise": (0.3, 0.3),
        "shrink and perturb": (0.9, 0.9),
    }
    rows = []
    for arm, values in late.items():
        for decay in (0.1, 0.2) if arm in ("decay", "shift") else (0.0,):
            for seed in (0, 1):
                for task in (1, 2, 3, 4):
                    accuracy = 0.9 if task < 3 else values[seed]
                    gone = arm == "noise" and seed == 1
                    rank = (12 if arm == "shift" else 8) * decay * 10
                    label = {"arm": arm, "decay": decay, "sigma": 0.5 if arm == "shift" else 0.0, "seed": seed}
                    rows.append({**label, "task": task, "test_accuracy": accuracy, "rank": rank, "diverged": gone})
    found = plasticity_numbers(pd.DataFrame(rows), (0, 1), Windows(2, 2, 4), (0.1, 0.5), (0.2, 0.5))
    value = {name: number["value"] for name, number in found.items()}
    assert value["vanilla_change"] == pytest.approx(-0.45)
    assert found["vanilla_change"]["spread"] == pytest.approx(0.1 / 2**0.5)
    assert value["noise_change"] is None  # one of its seeds has none
    assert (value["decay_change"], value["shift_change"]) == (pytest.approx(-0.1), pytest.approx(0.005))
    assert value["vanilla_collapse_task"] == 3
    assert (value["shift_minus_vanilla"], value["shift_minus_decay"]) == (pytest.approx(0.455), pytest.approx(0.105))
    assert (value["shift_rank_ratio"], value["strong_shift_rank_ratio"]) == (pytest.approx(1.5), pytest.approx(1.5))
    assert value["diverged"] == pytest.approx(1 / 14)
    unhurt = [row | {"test_accuracy": 0.9} for row in rows]
    found = plasticity_numbers(pd.DataFrame(unhurt), (0, 1), Windows(2, 2, 4), (0.1, 0.5), (0.2, 0.5))
    assert found["vanilla_collapse_task"]["value"] is None


def test_a_net_that_diverges_stays_in_the_table():
    plan = Plan(pixels(), (0, 1), hidden=5, tasks=1, epochs=1, batch_size=6, lr=0.01)
    learners = Learners(plan, Arm("any"), torch.float64, torch.device("cpu"))
    with torch.no_grad():
        learners.stack.parameters["last.bias"][1] = torch.nan
    rows = learners.measured(0, learners.learn(0, lambda: False))
    assert [row["diverged"] for row in rows] == [False, True]
    assert rows[0]["rank"] > 0
    assert rows[1]["weight_norm"] is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden": 0}, "hidden must be a whole number from 1 on, got 0"),
        ({"batch_size": 21}, "batch_size must be at most the 20 training rows of pixels, got 21"),
        ({"early": 2, "late": 2}, "early \\+ late must be at most tasks=3"),
        ({"lr": float("nan")}, "lr must be positive and finite, got nan"),
        ({"noise": 0.0}, "noise must be positive"),
        ({"shrink": 1.0}, "shrink must lie between 0 and 1"),
        ({"decays": []}, "decays"),
        ({"sigmas": [0.0, 1.0]}, "sigmas must be positive"),
        ({"shown_decay": 0.5}, "shown_decay must be one of decays"),
    ],
)
def test_what_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        study(**keys)


def test_it_needs_classes():
    with pytest.raises(ValueError, match="data=digits"):
        plasticity(Ground((0,), torch.device("cpu"), torch.float64))
    rows = torch.zeros(4, 2)
    data = Dataset("numbers", rows, rows, rows, rows, num_classes=None, references={})
    with pytest.raises(ValueError, match="numbers has no classes"):
        plasticity(Ground((0,), torch.device("cpu"), torch.float64, data=data))


def test_the_net_starts_at_its_law():
    net = Net(300, 200, 10, torch.Generator().manual_seed(0))
    assert float(net.second.weight.detach().std()) == pytest.approx((2 / 200) ** 0.5, rel=0.02)
    assert not net.first.bias.any()
    outputs = net(torch.randn(4, 300, generator=torch.Generator().manual_seed(1)))
    assert outputs.shape == (4, 410)
    torch.testing.assert_close(outputs[:, 400:], net.last(outputs[:, 200:400]))
