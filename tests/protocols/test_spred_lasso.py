"""The protocols that compare spred with scikit-learn's lasso, at toy size."""

import numpy as np
import pandas
import pytest
import torch

from symlab.protocols import lasso_arms
from symlab.protocols.lasso_arms import certified, compared, loosest, lower_bound, quartiles, sklearn_lasso
from symlab.protocols.lasso_problems import gene_like, published, real
from symlab.protocols.ridge_path import ridge
from symlab.protocols.spred_lasso import spred_lasso
from symlab.protocols.spred_lasso_real import spred_lasso_real
from symlab.protocols.spred_lasso_sizes import spred_lasso_sizes
from symlab.protocols.study import Ground
from tests.protocols.watching import Calm
from tests.reference_lasso import objective

GROUND = Ground((0, 3), torch.device("cpu"), torch.float64)
DEMO = {"rows": 20, "columns": 300, "alpha": 5e-4, "steps": 60, "control_steps": 10, "path_points": 4, "drawn": 3}


def run_all(study):
    """Tables of all parts."""
    rows = {}
    for part in study.parts():
        for table, found in study.run(part, Calm()).items():
            rows.setdefault(table, []).extend({"part": part, **row} for row in found)
    return {name: pandas.DataFrame(found) for name, found in rows.items()}


def test_the_demonstration_measures_all_arms_and_names_its_numbers():
    study = spred_lasso(GROUND, **DEMO)
    tables = run_all(study)
    metrics = tables["metrics"]
    numbers = study.numbers(tables)
    assert set(numbers) == set(study.number_names())
    assert set(study.figures.values()) <= set(tables)
    X, y = (part.numpy() for part in published(3, 20, 300, 0.1, 0.01))
    own = metrics[metrics["seed"] == 3].set_index("arm")
    from sklearn.linear_model import Lasso

    coef = Lasso(alpha=5e-4, fit_intercept=False, tol=1e-6, max_iter=100_000).fit(X, y).coef_
    value = own.loc["scikit-learn, converged", "objective"]
    assert value == pytest.approx(objective(X, y, coef, 5e-4), rel=1e-9)
    assert own.loc["spred, Newton", "support_overlap"] == 1
    assert own.loc["no product, Adam", "zero_fraction"] < 0.02
    assert own.loc["spred, Newton", "zero_fraction"] > 0.9
    assert numbers["newton_objective_gap"]["value"] < 1e-6
    assert numbers["adam_objective_gap"]["value"] > 1e-3  # 60 steps are too few: the number can fail
    assert numbers["path_support_agreement"]["value"] == 1
    assert numbers["path_time_ratio"]["value"] > 0
    assert "scikit-learn's" in numbers["newton_support_agreement"]["text"]
    assert "scikit-learn" not in numbers["adam_support_agreement"]["text"]  # compared with Newton's solution


def test_a_part_gives_the_same_rows_again_but_for_the_times():
    study = spred_lasso(GROUND, **DEMO)
    part = study.parts()[1]
    first, second = (study.run(part, Calm())["metrics"] for _ in range(2))
    assert [row | {"time_s": 0} for row in first] == [row | {"time_s": 0} for row in second]


def test_a_stop_ends_the_part_with_adam():
    study = spred_lasso(GROUND, **DEMO)
    assert study.run(study.parts()[1], Calm(stop_at=1)) is None


def test_sizes_time_both_at_equal_objective():
    study = spred_lasso_sizes(GROUND, rows=20, columns=(50, 400), alpha_ratios=(10.0,), repeats=2)
    tables = run_all(study)
    assert len(tables["metrics"]) == 2 * 2 * 2 * 2
    assert len(tables["ratio"]) == 2 * 2 * 2
    assert tables["metrics"]["objective_gap"].max() <= 1e-3
    first = tables["metrics"].iloc[:2].set_index("solver")["time_s"]
    assert tables["ratio"]["time_ratio"].iloc[0] == pytest.approx(first["scikit-learn"] / first["spred, Newton"])
    numbers = study.numbers(tables)
    assert set(numbers) == set(study.number_names())
    low, middle = (numbers[f"{name}_400_r10"]["value"] for name in ("time_ratio_low", "time_ratio"))
    assert 0 < low <= middle * 1.5


def test_a_solver_that_never_gets_near_enough_is_marked(monkeypatch):
    study = spred_lasso_sizes(GROUND, rows=20, columns=(50,), alpha_ratios=(10.0,), repeats=1, tols=(0.5,))
    monkeypatch.setattr("symlab.protocols.spred_lasso_sizes.EQUAL", 1e-15)
    found = study.run(study.parts()[0], Calm())
    rows = {row["solver"]: row for row in found["metrics"]}
    assert rows["scikit-learn"]["diverged"]
    assert rows["scikit-learn"]["tol"] is None
    assert found["ratio"][0]["diverged"]
    numbers = study.numbers({name: pandas.DataFrame(rows) for name, rows in found.items()})
    for name in ("time_ratio", "time_ratio_low", "time_ratio_high"):  # not at equal objective: no number
        assert numbers[f"{name}_50_r10"]["value"] is None


def test_a_path_that_is_never_near_enough_has_no_time(monkeypatch):
    monkeypatch.setattr("symlab.protocols.lasso_path_arms.EQUAL", 1e-15)
    study = spred_lasso_real(GROUND, data_sets=("diabetes",), points=3, tols=(0.5,))
    numbers = study.numbers(run_all(study))
    assert numbers["diabetes_time_ratio"]["value"] is None
    assert numbers["diabetes_zero_fraction"]["value"] > 0.2


def test_real_data_agree_and_ridge_has_no_zeros():
    study = spred_lasso_real(GROUND, genes=200, samples=20, causal=3, points=4)
    tables = run_all(study)
    numbers = study.numbers(tables)
    assert set(numbers) == set(study.number_names())
    assert tables["metrics"]["relative_alpha"].nunique() == 4  # the same of all data sets and seeds
    assert set(tables["gaps"]["solver"]) == {"scikit-learn", "spred, Newton"}
    assert tables["gaps"]["shown_gap"].notna().all()
    for name in ("diabetes", "breast_cancer", "gene_like"):
        assert numbers[f"{name}_support_agreement"]["value"] == 1
        assert numbers[f"{name}_objective_gap"]["value"] < 1e-5
        assert numbers[f"{name}_ridge_zero_fraction"]["value"] < 0.01
        assert numbers[f"{name}_zero_fraction"]["value"] > 0.2


def test_the_data_are_what_they_say():
    X, y = published(1, 50, 4000, 0.1, 0.01)
    assert X.T.is_contiguous()
    assert float(X.std()) == pytest.approx(4000**-0.5, rel=0.01)
    assert float(y.var()) == pytest.approx(0.1, rel=0.5)  # 400 weights of N(0, 1) on columns of variance 1/4000
    X, y = gene_like(1, 400, 60, 20, 0.9, 2, 0.3)
    correlation = np.corrcoef(X.T.numpy())
    assert correlation[0, 19] == pytest.approx(0.9, abs=0.05)
    assert correlation[0, 20] == pytest.approx(0.0, abs=0.2)
    assert abs(float(y.mean())) < 1e-12
    X, y = real("breast_cancer", 0, 0.5)
    assert X.shape == (284, 30)
    assert torch.allclose(X.mean(0), torch.zeros(30, dtype=X.dtype), atol=1e-12)
    assert len(y.unique()) == 2
    assert not torch.equal(real("diabetes", 0, 0.5)[1], real("diabetes", 1, 0.5)[1])


def test_ridge_is_the_closed_form():
    X, y = published(0, 10, 6, 0.5, 0.1)
    direct = torch.linalg.solve(X.T @ X / 10 + 0.3 * torch.eye(6), X.T @ y / 10)
    assert torch.allclose(ridge(X, y, 0.3), direct)


def test_supports_are_compared_by_columns_and_by_overlap():
    w = torch.tensor([1.0, 0.0, 1e-7, -2.0])
    other = torch.tensor([1.0, 3.0, 0.0, 0.0])
    found = compared(w, other)
    assert found == {
        "zero_fraction": 0.5,
        "exact_zeros": 0.25,
        "support_agreement": 0.5,
        "support_overlap": pytest.approx(1 / 3),
    }
    assert compared(torch.zeros(3), torch.zeros(3))["support_overlap"] == 1


def test_the_loosest_tolerance_that_is_near_enough_is_taken():
    asked = []

    def solve(tol):
        asked.append(tol)
        return torch.tensor([tol]), tol

    calm = Calm()
    chosen = loosest(solve, (0.1, 0.01, 0.001), float, 0.05, calm.stopped)
    assert (chosen.tol, chosen.gap, asked) == (0.01, pytest.approx(0.01), [0.1, 0.01])
    assert loosest(solve, (0.1,), float, 0.05, calm.stopped).tol is None
    assert loosest(solve, (0.1, 0.01), float, 0.05, Calm(stop_at=2).stopped) is None
    assert asked[3:] == [0.1]  # stopped before the second


def test_the_lower_bound_is_below_every_objective_and_near_the_least():
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(20, 50, generator=generator, dtype=torch.float64)
    y = torch.randn(20, generator=generator, dtype=torch.float64)
    fit = certified(X, y, [0.05])[0]
    theirs, _ = sklearn_lasso(X, y, 0.05)(1e-12)
    least = objective(X.numpy(), y.numpy(), theirs.numpy(), 0.05)
    assert least * (1 - 1e-8) <= lower_bound(fit) <= least
    assert objective(X.numpy(), y.numpy(), fit.weights.numpy(), 0.05) >= lower_bound(fit)


def test_quartiles():
    assert quartiles([5.0, 1.0, 2.0, 4.0, 3.0]) == (2.0, 3.0, 4.0)
    assert quartiles([2.0]) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("protocol", "settings", "key"),
    [
        (spred_lasso, {"alpha": 0}, "alpha"),
        (spred_lasso, {"density": 1.5}, "density"),
        (spred_lasso, {"path_ratio": 1}, "path_ratio"),
        (spred_lasso, {"path_tols": [1e-3, 1e-2]}, "path_tols"),
        (spred_lasso, {"columns": 1}, "columns"),
        (spred_lasso, {"reference_tol": float("nan")}, "reference_tol"),
        (spred_lasso_sizes, {"columns": [10, 10]}, "columns"),
        (spred_lasso_sizes, {"alpha_ratios": [0.5]}, "alpha_ratios"),
        (spred_lasso_sizes, {"alpha_ratios": [5.0, 5.0]}, "alpha_ratios"),
        (spred_lasso_sizes, {"tols": []}, "tols"),
        (spred_lasso_sizes, {"repeats": 0}, "repeats"),
        (spred_lasso_real, {"data_sets": ["iris"]}, "data_sets"),
        (spred_lasso_real, {"fraction": 0}, "fraction"),
        (spred_lasso_real, {"fraction": 1e-3}, "fraction"),  # two rows: all targets may be equal
        (spred_lasso_real, {"genes": 40, "block": 20, "causal": 3}, "causal"),
        (spred_lasso_real, {"ratio": 1}, "ratio"),
        (spred_lasso_real, {"tols": [1e-3, 1e-2]}, "tols"),
        (spred_lasso_real, {"correlation": 1.0}, "correlation"),
    ],
)
def test_values_out_of_range_are_named(protocol, settings, key):
    with pytest.raises(ValueError, match=rf"^{key}\b"):  # the command line finds the key by the message
        protocol(GROUND, **settings)


@pytest.mark.parametrize("protocol", [spred_lasso, spred_lasso_sizes, spred_lasso_real])
def test_without_scikit_learn_the_message_says_what_to_install(protocol, monkeypatch):
    monkeypatch.setattr(lasso_arms.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'symlab\[digits\]'"):
        protocol(GROUND)
