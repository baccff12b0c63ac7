"""Counting hidden units on nets made by hand, training against a plain loop, resuming, arms, and the numbers."""

import itertools
import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

from symlab.data.dataset import Dataset
from symlab.models.mlp import mlp
from symlab.protocols.hidden_axes import Counting, activations, hidden_axes, nearest_swap, unit_counts
from symlab.protocols.paired_training import batch_rows
from symlab.protocols.permutation import permutation
from symlab.protocols.permutation_numbers import NAMES, permutation_numbers
from symlab.protocols.study import Ground
from tests.protocols.watching import Calm

COUNTING = Counting(correlation=0.95, strict_correlation=0.999, zero=0.01)
SETTINGS = {"decays": (0.0, 0.01, 0.1), "lrs": (0.05, 0.1), "sigmas": (0.2, 0.5), "steps": 45, "batch": 4, "rows": 12}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def toy_data(classes: bool = True) -> Dataset:
    x, y = draw(30, 4), draw(30, 4).argmax(1) % 3 if classes else draw(30, 3)
    return Dataset("toy", x[:18], y[:18], x[18:], y[18:], num_classes=3 if classes else None)


def small_mlp(input_shape, output_size, generator, *, activation: str = "relu") -> nn.Module:
    return mlp(input_shape, output_size, generator, hidden=[5], activation=activation, bias=True, init="kaiming")


def ground(seeds=(0, 1), **changes) -> Ground:
    own = {"data": toy_data().to("cpu", torch.float64), "model": small_mlp} | changes
    return Ground(tuple(seeds), torch.device("cpu"), torch.float64, **own)


class Residual(nn.Module):
    """A stream that a stem and a block add to; the block's own units are inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 3, 3, padding=1, bias=False)
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.second(torch.relu(self.first(torch.relu(self.norm(x)))))
        return self.head(x.mean((2, 3)))


def test_axes_of_a_residual_net() -> None:
    torch.manual_seed(0)
    net = Residual()
    symmetry, axes = hidden_axes(net, draw(2, 1, 4, 4))
    found = {axis.label: axis for axis in axes}
    stream, inside = found["stem.weight:0"], found["first.weight:0"]
    assert (stream.size, set(stream.writers), stream.readers) == (
        3,
        {"stem.weight", "second.weight", "stem.bias"},
        ("first", "head"),
    )
    assert (inside.size, set(inside.writers), inside.readers) == (4, {"first.weight", "first.bias"}, ("second",))
    parameters = dict(net.named_parameters())
    expected = torch.cat([net.stem.weight.flatten(1), net.second.weight.flatten(1), net.stem.bias[:, None]], 1)
    torch.testing.assert_close(stream.weights_in(parameters).sort(1)[0], expected.sort(1)[0])
    x = draw(5, 1, 4, 4)
    net.eval()
    acts = activations(net, axes, x)
    before = torch.relu(net.norm(net.stem(x)))
    torch.testing.assert_close(acts["stem.weight:0"][:, : 5 * 16], before.transpose(0, 1).flatten(1))
    assert acts["stem.weight:0"].shape == (3, 5 * 16 + 5)  # beside each pixel, the means that the head reads
    assert len(unit_counts(net, symmetry, axes, x, COUNTING)) == len(axes) == 2


def test_units_of_a_net_made_by_hand() -> None:
    """Seven units: 0 and 1 equal, 2 is 1.5 times 0 turned by 12 degrees, 3 zero, 4 dead, 5 and 6 alone (5 = -6)."""
    net = mlp((2,), 2, torch.Generator().manual_seed(0), hidden=[7], activation="relu", bias=True)
    angle = math.radians(12)
    rows = [[1, 0], [1, 0], [1.5 * math.cos(angle), 1.5 * math.sin(angle)], [1e-3, 0], [-0.1, 0.1], [0, 2], [0, -2]]
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor(rows))
        net.layers[0].bias.copy_(torch.tensor([0, 0, 0, 0, -50.0, 0, 0]) / 10)
        net.layers[2].weight.copy_(draw(2, 7))
        net.layers[2].weight[:, 1] = net.layers[2].weight[:, 0]
    x = draw(40, 2)
    symmetry, axes = hidden_axes(net, x)
    (found,) = unit_counts(net, symmetry, axes, x, COUNTING)
    assert (found["layer"], found["width"]) == ("layers.0.weight:0", 7)
    assert (found["distinct"], found["distinct_strict"], found["zero_neurons"], found["merged"]) == (4, 5, 1, 2)
    assert found["dead_units"] == 1
    assert found["distinct_activations"] == 3  # the zero unit and the dead one do nothing
    assert found["swap_distance"] == 0


def test_a_layer_that_died_has_no_units() -> None:
    """All its weights are small together: none is small beside the others."""
    net = mlp((2,), 2, torch.Generator().manual_seed(0), hidden=[5, 4], activation="relu", bias=True)
    x = draw(40, 2)
    symmetry, axes = hidden_axes(net, x)
    with torch.no_grad():
        net.layers[2].weight.mul_(1e-5)
        net.layers[2].bias.mul_(1e-5)
    first, second = unit_counts(net, symmetry, axes, x, COUNTING)
    assert (second["zero_neurons"], second["distinct"], second["merged"]) == (4, 0, 0)
    assert math.isnan(second["swap_distance"])
    assert first["zero_neurons"] == 0


def test_odd_units_merge_with_their_negatives() -> None:
    net = mlp((2,), 2, torch.Generator().manual_seed(0), hidden=[3], activation="tanh", bias=True)
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[1.0, 1], [-2, -2], [1, -1]]))
        net.layers[0].bias.zero_()
    x = draw(40, 2)
    (found,) = unit_counts(net, *hidden_axes(net, x), x, COUNTING)
    assert (found["distinct"], found["merged"]) == (2, 1)


def test_the_nearest_swap_is_the_smallest_of_all_pairs() -> None:
    units = draw(6, 4, seed=3).double()
    pairs = [float((units[i] - units[j]).norm()) for i, j in itertools.combinations(range(6), 2)]
    mean = sum(float(unit.norm()) for unit in units) / 6
    assert nearest_swap(units) == pytest.approx(min(pairs) / 2**0.5 / mean)
    assert math.isnan(nearest_swap(units[:1]))


def run_all(study, parts=None) -> dict[str, pd.DataFrame]:
    tables: dict[str, list] = {"metrics": [], "layers": [], "correlations": []}
    for part in parts or study.parts():
        for name, rows in study.run(part, Calm()).items():
            tables[name] += rows
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


@pytest.fixture(scope="module")
def run():
    """A study and its tables, all parts."""
    study = permutation(ground(), **SETTINGS)
    return study, run_all(study)


def test_tables_of_all_arms(run) -> None:
    study, tables = run
    metrics = tables["metrics"]
    assert len(metrics) == len(tables["layers"]) == 3 * 2 * 3 * 2  # arms, rates, decays, seeds
    assert (metrics["width"] == metrics["distinct"] + metrics["merged"] + metrics["zero_neurons"]).all()
    assert not metrics["diverged"].any()
    assert set(tables["correlations"]["arm"]) == {"symmetric", "shift 0.5"}
    assert len(tables["correlations"]) == 2 * 2 * 5 * 5
    assert set(tables["correlations"]["decay"]) == {0.0, 0.1}
    assert set(study.number_names()) == set(study.numbers(tables)) == set(NAMES)
    assert set(study.figures.values()) <= set(tables)


def test_without_decay_all_arms_are_one_training(run) -> None:
    """The controls start at the same function and see the same batches, so that only decay tells them apart."""
    metrics = run[1]["metrics"]
    columns = ["train_loss", "test_loss", "test_accuracy", "distinct"]
    for (_, _), own in metrics.groupby(["lr", "seed"]):
        still = own[own["decay"] == 0][columns]
        assert len(still) == 3
        assert (still - still.iloc[0]).abs().to_numpy().max() < 1e-9
        moved = own[own["decay"] == 0.1]["train_loss"]
        assert moved.max() - moved.min() > 1e-3


def test_training_is_that_of_a_plain_loop(run) -> None:
    study, tables = run
    metrics = tables["metrics"].query("arm == 'symmetric' and lr == 0.1")
    data, seed, decay = study.data, 1, 0.01
    net = small_mlp((4,), 3, torch.Generator().manual_seed(seed)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=decay)
    for rows in batch_rows(data, seed, 4, 45):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data.train_inputs[rows].double()), data.train_targets[rows]).backward()
        optimizer.step()
    loss = nn.functional.cross_entropy(net(data.train_inputs[:12].double()), data.train_targets[:12])
    own = metrics[(metrics["seed"] == seed) & (metrics["decay"] == decay)]
    assert own["train_loss"].item() == pytest.approx(loss.item(), rel=1e-6)
    assert not torch.equal(batch_rows(data, 0, 4, 45), batch_rows(data, 1, 4, 45))


def test_a_stopped_part_goes_on_exactly() -> None:
    study = permutation(ground(), **SETTINGS)
    part = "shift 0.2, lr 0.05"
    whole = study.run(part, Calm())
    watch = Calm(stop_at=2)  # at the second question
    assert study.run(part, watch) is None
    assert 0 < watch.kept["step"] < 45
    assert study.run(part, Calm(kept=watch.kept)) == whole
    assert study.run(part, Calm(due=True)) == whole
    watch = Calm(stop_at=5)  # after three questions of training, at the second net that is measured
    assert study.run(part, watch) is None
    assert watch.kept["step"] == 45
    assert study.run(part, Calm(kept=watch.kept)) == whole


def table_of(distinct: dict[tuple[str, float], float], seeds=(0, 1)) -> pd.DataFrame:
    rows = []
    for (arm, decay), share in distinct.items():
        for seed in seeds:
            own = {"arm": arm, "decay": decay, "seed": seed, "lr": 0.1, "diverged": False, "test_accuracy": share}
            own |= {f"{name}_share": share for name in ("distinct", "distinct_strict", "distinct_activations")}
            own |= {"merged_share": (1 - share) * 0.75, "zero_neurons_share": (1 - share) * 0.25}
            rows.append(own)
    return pd.DataFrame(rows)


def test_numbers_by_hand() -> None:
    falls = {("symmetric", 0.0): 1.0, ("symmetric", 0.01): 0.9, ("symmetric", 0.1): 0.6, ("symmetric", 1.0): 0.3}
    stays = {("shift 1", decay): 1.0 for decay in (0.0, 0.01, 0.1, 1.0)}
    found = {name: n["value"] for name, n in permutation_numbers(table_of(falls | stays), (0, 1), "shift 1").items()}
    assert found["distinct_slope"] == pytest.approx(-0.3)
    assert found["distinct_slope_control"] == pytest.approx(0)
    assert found["distinct_slope_contrast"] == pytest.approx(-0.3)
    assert (found["distinct_falls"], found["diverged"]) == (1, 0)
    assert found["distinct_drop"] == found["strict_drop"] == found["activations_drop"] == pytest.approx(0.7)
    assert found["distinct_drop_control"] == found["merged_rise_control"] == pytest.approx(0)
    assert found["merged_rise"] == pytest.approx(0.525)
    assert found["zero_rise"] == pytest.approx(0.175)
    assert found["accuracy_gap"] == pytest.approx(-0.7)
    up = permutation_numbers(table_of(falls | {("symmetric", 0.1): 0.95} | stays), (0, 1), "shift 1")
    assert up["distinct_falls"]["value"] == 0


def test_diverged_nets_are_counted_and_left_out() -> None:
    study = permutation(ground(), **SETTINGS | {"lrs": (1e150,), "decays": (0.0, 1e-3, 1e-2)})
    tables = run_all(study, study.parts()[:1])
    assert tables["metrics"]["diverged"].all()
    numbers = study.numbers(tables)
    assert numbers["diverged"]["value"] == 1
    assert numbers["distinct_drop"]["value"] is None


def test_wrong_keys_are_named() -> None:
    for changes, word in [
        ({"decays": (0.0, 0.1)}, "decays must be three or more"),
        ({"decays": (0.1, 0.0, 0.2)}, "decays must ascend"),
        ({"lrs": (0.0,)}, "lrs must be positive"),
        ({"sigmas": ()}, "sigmas"),
        ({"momentum": 1.0}, "momentum"),
        ({"steps": 0}, "steps"),
        ({"rows": 1}, "rows"),
        ({"shown_units": 1}, "shown_units"),
        ({"correlation": 0.0}, "correlation"),
        ({"strict_correlation": 0.5}, "at least correlation=0.9"),
        ({"zero": float("nan")}, "zero"),
        ({"shown_layer": "h"}, r"shown_layer must be one of layers\.0\.weight:0"),
    ]:
        with pytest.raises(ValueError, match=word):
            permutation(ground(), **SETTINGS | changes)
    with pytest.raises(ValueError, match="data=digits"):
        permutation(ground(data=None))
    with pytest.raises(ValueError, match="model=mlp"):
        permutation(ground(model=None))
    with pytest.raises(ValueError, match="no classes"):
        permutation(ground(data=toy_data(classes=False)))
    with pytest.raises(ValueError, match="augment=false"):
        permutation(ground(data=replace(toy_data(), augmentation=lambda rows, _: rows)))
    with pytest.raises(ValueError, match="no hidden units"):
        permutation(ground(model=lambda *a: mlp(*a, hidden=[])))


@pytest.mark.slow
def test_the_claim_on_digits() -> None:
    """A short form of the experiment: units merge with decay, and not once the symmetry is broken."""
    from symlab.data.digits import digits

    def model(*a) -> nn.Module:
        return mlp(*a, hidden=[64], activation="relu", bias=True, init="kaiming")

    own = Ground((0, 1), torch.device("cpu"), torch.float32, data=digits(), model=model)
    study = permutation(own, decays=(0.0, 1e-3, 3e-2), lrs=(0.1,), sigmas=(0.5,), steps=1200)
    found = {name: number["value"] for name, number in study.numbers(run_all(study)).items()}
    assert found["distinct_drop"] > 0.2
    assert found["merged_rise"] > 0.1
    assert found["activations_drop"] > 0.2
    assert abs(found["distinct_drop_control"]) < 0.1
    assert found["activations_drop_control"] < 0.1
