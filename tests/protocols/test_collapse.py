"""Protocol collapse: views, loss and measures against loops and scikit-learn; arms, resuming, numbers, refusals."""

import numpy as np
import pandas
import pytest
import torch
from sklearn.linear_model import Ridge

from symlab.data.dataset import Dataset
from symlab.protocols.collapse import Training, collapse
from symlab.protocols.feature_measures import direction_dimension, direction_rank, probe_accuracy
from symlab.protocols.study import Ground
from symlab.protocols.two_views import Views, info_nce
from tests import reference_rotation as reference
from tests.protocols.watching import Calm

SMALL = {
    "sigmas": (0.1,),
    "decays": (0.0, 0.05),
    "judged_decay": 0.05,
    "width": 6,
    "outputs": 4,
    "steps": 12,
    "batch_size": 5,
    "records": 2,
}


def images(rows=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 1, 4, 4, generator=generator, dtype=torch.float64)


def ground(seeds=(0, 1), classes=3):
    labels = torch.arange(30) % 3
    data = Dataset("toy", images(), labels, images(seed=1), labels, classes)
    return Ground(seeds, torch.device("cpu"), torch.float64, data)


@pytest.fixture(scope="module")
def tables():
    study = collapse(ground(), **SMALL)
    found = {}
    for part in study.parts():
        for name, rows in study.run(part, Calm()).items():
            found.setdefault(name, []).extend(rows)
    return {name: pandas.DataFrame(rows) for name, rows in found.items()}


def test_info_nce_is_the_loop_over_rows():
    outputs = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = info_nce(outputs, 0.5)
    np.testing.assert_allclose(found, [reference.info_nce(o.numpy(), 0.5) for o in outputs])
    one_direction = torch.ones(1, 8, 3, dtype=torch.float64) * torch.arange(1.0, 9)[:, None]
    assert float(info_nce(one_direction, 0.5)) == pytest.approx(np.log(7))


def test_views_are_moved_brightened_and_noisy_pixel_by_pixel():
    views = Views(shift=2, contrast=0.4, noise=0.3)
    generator = torch.Generator().manual_seed(0)
    pair = images(3).repeat(2, 1, 1, 1)
    places, brightness, noise = views.draw((3, 1, 4, 4), generator)
    found = views.apply(pair, places, brightness.double(), noise.double())
    for i in range(6):
        down, right = places[i].tolist()
        expected = reference.moved(
            pair[i, 0].numpy(), down, right, 2, float(brightness[i]), noise[i, 0].double().numpy()
        )
        np.testing.assert_allclose(found[i, 0], expected, atol=1e-7)
    assert places.min() >= 0
    assert places.max() <= 4
    assert len(set(map(tuple, places.tolist()))) > 1
    assert brightness.min() >= 0.6
    assert brightness.max() <= 1.4


def test_rank_and_dimension_of_directions():
    angle = torch.linspace(0, 6.2, 50, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], 1)  # two even dimensions
    scaled = circle * torch.linspace(1, 1000, 50, dtype=torch.float64)[:, None]  # lengths do not matter
    constant = 1e-9 * torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    stack = torch.stack([circle, scaled, constant, torch.zeros_like(circle)])
    assert direction_rank(stack, 1e-2).tolist() == [2, 2, 0, 0]
    found = direction_dimension(stack, 1e-2)
    assert found.tolist() == pytest.approx([2, 2, 0, 0], abs=0.02)


def test_probe_is_scikit_learns_ridge():
    generator = torch.Generator().manual_seed(0)
    labels, new_labels = torch.arange(60) % 3, torch.arange(40) % 3
    centres = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    train = centres[labels] + torch.randn(60, 5, generator=generator, dtype=torch.float64)
    test = centres[new_labels] + torch.randn(40, 5, generator=generator, dtype=torch.float64)
    size = float(train.square().mean().sqrt())
    for ridge in (1e-3, 3.0):
        model = Ridge(alpha=60 * ridge).fit(train.numpy() / size, np.eye(3)[labels])
        expected = np.mean(model.predict(test.numpy() / size).argmax(1) == new_labels.numpy())
        found = probe_accuracy(
            torch.stack([train, 1e-4 * train]), labels, torch.stack([test, 1e-4 * test]), new_labels, 3, ridge
        )
        assert found.tolist() == pytest.approx([expected, expected])


def test_arms_of_a_seed_start_at_the_same_function_and_see_the_same_views():
    study = collapse(ground(), **SMALL)
    vanilla, shifted = (Training(study, "arm", sigma, Calm()) for sigma in (None, 0.1))
    x = study.data.test_inputs
    torch.testing.assert_close(vanilla.stack.outputs(x, shared=True), shifted.stack.outputs(x, shared=True))
    own = vanilla.stack.outputs(x, shared=True).detach()
    torch.testing.assert_close(own[0], own[1])  # decays of one seed
    assert not torch.allclose(own[0], own[2])  # seeds
    losses = vanilla._one_step(), shifted._one_step()
    torch.testing.assert_close(*losses)


def test_a_part_that_was_stopped_goes_on_exactly(tables):
    study = collapse(ground(), **SMALL)
    watch = Calm(stop_at=8)
    assert study.run("shift 0.1", watch) is None
    assert watch.kept["step"] == 7
    found = study.run("shift 0.1", Calm(kept=watch.kept))
    expected = tables["metrics"][tables["metrics"]["arm"] == "shift 0.1"]
    assert pandas.DataFrame(found["metrics"]).to_dict("records") == expected.to_dict("records")
    history = tables["history"][tables["history"]["arm"] == "shift 0.1"]
    assert pandas.DataFrame(found["history"])["head_dimension"].tolist() == history["head_dimension"].tolist()


def test_a_net_that_diverged_has_no_number_not_even_a_loss():
    study = collapse(ground(), **SMALL)
    training = Training(study, "vanilla", None, Calm())
    training.sgd.alive[1] = False
    count = len(training.stack)
    rows = study._rows("vanilla", training.labels, training.stack, training.sgd.alive, [1.5] * count)
    assert [row["loss"] for row in rows] == [1.5, None, *[1.5] * (count - 2)]
    assert [row["diverged"] for row in rows] == [False, True, *[False] * (count - 2)]
    assert rows[1]["head_dimension"] is None


def test_tables_and_numbers(tables):
    study = collapse(ground(), **SMALL)
    metrics = tables["metrics"]
    assert len(metrics) == 3 * 2 * 2
    assert set(metrics["arm"]) == {"vanilla", "shift 0.1", "untrained"}
    assert set(tables["trained"]["arm"]) == {"vanilla", "shift 0.1"}
    assert sorted(set(tables["history"]["step"])) == [0, 6, 12]
    numbers = study.numbers(tables)
    assert list(numbers) == list(study.number_names())
    at = metrics[metrics["decay"] == 0.05].set_index(["arm", "seed"])["head_probe"]
    gains = [at["shift 0.1", seed] - at["vanilla", seed] for seed in (0, 1)]
    assert numbers["head_probe_gain_0_1"]["value"] == pytest.approx(np.mean(gains))
    vanilla = metrics[metrics["arm"] == "vanilla"].set_index(["decay", "seed"])["head_dimension"]
    drops = [vanilla[0.0, seed] - vanilla[0.05, seed] for seed in (0, 1)]
    assert numbers["head_dimension_drop"]["value"] == pytest.approx(np.mean(drops))


def test_heavy_decay_collapses_the_outputs_of_vanilla_nets():
    keys = SMALL | {"decays": (0.0, 0.5), "judged_decay": 0.5, "steps": 40, "sigmas": (1.0,), "width": 16}
    study = collapse(ground((0,)), **keys)
    vanilla, shifted = (study.run(arm, Calm())["metrics"] for arm in ("vanilla", "shift 1"))
    assert vanilla[0]["head_rank"] > 1
    assert vanilla[1]["head_rank"] == 0
    assert vanilla[1]["loss"] == pytest.approx(study.references["loss of collapsed outputs"], abs=1e-6)
    assert shifted[1]["head_rank"] > 0


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"sigmas": (0.0,)}, "sigmas"),
        ({"decays": (0.0, -1.0)}, "decays"),
        ({"decays": (0.0, 50.0), "judged_decay": 50.0}, "decays"),
        ({"judged_decay": 0.3}, "judged_decay"),
        ({"width": 0}, "width"),
        ({"steps": 0}, "steps"),
        ({"batch_size": 1}, "batch_size"),
        ({"batch_size": 31}, "batch_size"),
        ({"lr": float("nan")}, "lr"),
        ({"momentum": 1.0}, "momentum"),
        ({"temperature": 0.0}, "temperature"),
        ({"contrast": 1.5}, "contrast"),
        ({"noise": -1.0}, "noise"),
        ({"cut_off": 1.0}, "cut_off"),
        ({"ridge": 0.0}, "ridge"),
    ],
)
def test_values_out_of_range_are_refused_by_name(changes, key):
    with pytest.raises(ValueError, match=f"^{key}"):
        collapse(ground(), **(SMALL | changes))


def test_data_without_labelled_images_are_refused():
    rows = torch.zeros(30, 4, dtype=torch.float64)
    flat = Dataset("flat", rows, torch.zeros(30, 2, dtype=torch.float64), rows, torch.zeros(30, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="flat"):
        collapse(Ground((0,), torch.device("cpu"), torch.float64, flat), **SMALL)
    with pytest.raises(ValueError, match="data=digits"):
        collapse(Ground((0,), torch.device("cpu"), torch.float64), **SMALL)
