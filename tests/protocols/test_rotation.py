"""Protocol rotation: the closed form, what its tables and numbers say, and what it refuses."""

import numpy as np
import pandas
import pytest
import torch

from symlab.protocols.rank_rows import difference, drop, falling, least_drop, rank_columns
from symlab.protocols.rotation import rotation
from symlab.protocols.study import Ground
from tests.protocols.watching import Calm
from tests.reference_rotation import factorisation_minimum

SMALL = {
    "size": 4,
    "lrs": (0.05, 0.2),
    "decays": (0.0, 0.25, 0.6),
    "noises": (0.0, 0.5),
    "time": 40.0,
    "records": 3,
    "shown_noise": 0.5,
    "shown_lr": 0.2,
}


def ground(seeds=(0, 1), dtype=torch.float64):
    return Ground(seeds, torch.device("cpu"), dtype)


def all_tables(study):
    tables = {}
    for part in study.parts():
        for name, rows in study.run(part, Calm()).items():
            tables.setdefault(name, []).extend(rows)
    return {name: pandas.DataFrame(rows) for name, rows in tables.items()}


@pytest.fixture(scope="module")
def tables():
    return all_tables(rotation(ground(), **SMALL))


@pytest.mark.parametrize("decay", [0.0, 0.25, 0.6])
def test_decay_on_both_factors_thresholds_the_singular_values(decay):
    target = np.random.default_rng(1).normal(size=(4, 4))
    values = np.linalg.svd(target, compute_uv=False)
    found = np.linalg.svd(factorisation_minimum(target, decay), compute_uv=False)
    np.testing.assert_allclose(found, np.maximum(values - decay, 0), atol=1e-4)


def test_product_without_noise_ends_at_the_closed_form():
    rows = all_tables(
        rotation(ground(), **(SMALL | {"time": 200.0, "lrs": (0.2,), "noises": (0.0,), "shown_noise": 0.0}))
    )
    product = rows["metrics"][rows["metrics"]["arm"] == "U W"]
    assert len(product) == 6
    assert product["soft_threshold_gap"].max() < 1e-6
    expected = {0.0: 4, 0.25: 2, 0.6: 1}  # of the singular values 1, .46, .215, .1
    assert [row["rank"] for _, row in product.iterrows()] == [expected[decay] for decay in product["decay"]]
    closed = rows["shrinkage"][rows["shrinkage"]["arm"] == "closed form"]
    assert sorted(zip(closed["decay"], closed["rank"], strict=True)) == sorted(2 * list(expected.items()))


def test_tables_hold_every_setting_once(tables):
    study = rotation(ground(), **SMALL)
    assert set(study.figures.values()) | {"metrics"} == set(tables)
    metrics = tables["metrics"]
    assert len(metrics) == 6 * 2 * 3 * 2 * 2
    assert not metrics.duplicated(["arm", "lr", "decay", "noise", "seed"]).any()
    assert set(tables["phase"]["noise"]) == {0.5}
    assert set(tables["noise"]["decay"]) == {0.0}
    history = tables["history"]
    assert set(history["lr"]) == {0.2}
    assert sorted(set(history["time"])) == pytest.approx([0, 20, 28.2, 40])
    start = history[(history["time"] == 0) & ~history["arm"].str.contains("random")]
    assert (start["rank"] == 4).all()


def test_shifted_form_has_the_rank_of_the_product_without_decay_and_the_same_noise(tables):
    rows = tables["metrics"][tables["metrics"]["decay"] == 0]
    product, shifted = (rows[rows["arm"] == name] for name in ("U W", "(I + U)(I + W)"))
    np.testing.assert_allclose(product["smallest"], shifted["smallest"], rtol=1e-6)


def test_numbers_are_those_that_are_named_and_controls_are_full(tables):
    study = rotation(ground(), **SMALL)
    numbers = study.numbers(tables)
    assert list(numbers) == list(study.number_names())
    assert numbers["decay_drop"]["value"] == 3
    assert numbers["matrix_rank"]["value"] > 0.95
    assert numbers["residual_rank"]["value"] > 0.95
    assert numbers["diverged"]["value"] == 0
    rows = tables["metrics"]
    product, residual = (
        rows[rows["arm"] == arm].set_index(["seed", "lr", "decay", "noise"]) for arm in ("U W", "I + U W")
    )
    gap = (residual["rank"] - product["rank"]).xs(0.5, level="noise").groupby("seed").mean()
    assert numbers["residual_minus_product"]["value"] == pytest.approx(gap.mean())


def test_the_same_seed_has_the_same_rows_whatever_the_others_are(tables):
    alone = all_tables(rotation(ground((1,)), **SMALL))["metrics"]
    both = tables["metrics"][tables["metrics"]["seed"] == 1].reset_index(drop=True)
    np.testing.assert_allclose(alone["stable_rank"], both["stable_rank"], rtol=1e-5)


def test_a_net_that_diverges_is_counted_and_has_no_rank():
    wild = SMALL | {"lrs": (1.0,), "noises": (0.0, 50.0), "shown_noise": 50.0, "shown_lr": 1.0}
    rows = all_tables(rotation(ground((0,), torch.float32), **wild))["metrics"]
    loud = rows[(rows["arm"] == "U W") & (rows["noise"] == 50)]
    assert loud["diverged"].all()
    assert loud["rank"].isna().all()
    quiet = rows[(rows["noise"] == 0) & rows["arm"].isin(["U W", "one matrix"])]
    assert not quiet["diverged"].any()


def test_a_stopped_part_goes_on_exactly():
    study = rotation(ground(), **(SMALL | {"shown_lr": 0.05}))
    part = study.parts()[0]
    whole = study.run(part, Calm())
    assert len(whole["history"]) > 4
    for question, step in ((1, 0), (2, 256), (4, 768)):
        watch = Calm(stop_at=question)
        assert study.run(part, watch) is None
        assert watch.kept["step"] == step
        assert study.run(part, Calm(kept=watch.kept)) == whole
    assert study.run(part, Calm(due=True)) == whole


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"size": 1}, "size"),
        ({"smallest": 0.0}, "smallest"),
        ({"smallest": float("nan")}, "smallest"),
        ({"lrs": ()}, "lrs"),
        ({"lrs": (0.2, 0.1)}, "lrs"),
        ({"decays": (-0.1, 0.0)}, "decays"),
        ({"decays": (0.0, 6.0)}, "decays"),
        ({"noises": (0.0, float("inf"))}, "noises"),
        ({"time": 0.1}, "time"),
        ({"time": float("inf")}, "time"),
        ({"records": 1}, "records"),
        ({"cut_off": 1.0}, "cut_off"),
        ({"cut_offs": (0.0,)}, "cut_offs"),
        ({"cut_offs": (0.0012, 0.001)}, "cut_offs"),  # both would be the column rank_1e-03
        ({"shown_decay": 0.1}, "shown_decay"),
        ({"shown_noise": 0.1}, "shown_noise"),
        ({"shown_lr": 0.1}, "shown_lr"),
    ],
)
def test_values_out_of_range_are_refused_by_name(changes, key):
    with pytest.raises(ValueError, match=f"^{key}"):
        rotation(ground(), **(SMALL | changes))


def test_ranks_are_relative_to_the_scale_and_a_vanished_matrix_has_none():
    matrices = torch.stack([torch.diag(torch.tensor([2.0, 0.1, 1e-3])), 1e-9 * torch.eye(3), torch.eye(3)])
    found = rank_columns(matrices, torch.tensor([True, True, False]), 2.0, 1e-2, [1e-4])
    assert found["rank"] == [2, 0, None]
    assert found["rank_1e-04"] == [3, 0, None]
    assert found["own_rank"] == [2, 3, None]
    assert found["stable_rank"][:2] == pytest.approx([1 + 0.0025 + 2.5e-7, 3])
    assert found["smallest"][0] == pytest.approx(5e-4)


def test_contrasts_by_hand():
    frame = pandas.DataFrame(
        {
            "arm": "a",
            "seed": 0,
            "lr": [1, 1, 1, 2, 2, 2],
            "decay": [0, 1, 2, 0, 1, 2],
            "rank": [8, 9, 5, 6, 4, None],
            "other": [1, 1, 1, 1, 1, 0.5],
        }
    )
    assert drop("decay")(frame) == (3 + 2) / 2  # where the last one is missing, the one before it
    assert falling("decay")(frame) == 2 / 3  # 8 -> 9 rises; 9 -> 5 and 6 -> 4 fall
    assert drop("lr")(frame) == (2 + 5) / 2
    assert least_drop("decay", ["rank", "other"])(frame) == 0.25
    second = frame.assign(arm="b", rank=frame["rank"] - 2)
    both = pandas.concat([frame, second, second.assign(seed=1)])
    assert difference(both, "a", "b", "rank", ["lr", "decay"]) == [2.0]
