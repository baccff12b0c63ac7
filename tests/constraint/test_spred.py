"""spred against scikit-learn's lasso, the optimality conditions, and closed forms."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import Lasso

from symlab.constraint.spred import alpha_max, spred_lasso, spred_path
from symlab.constraint.spred_adam import adam_plain, adam_product
from tests.reference_lasso import objective, one_column, worst_violation


def drawn(rows: int, columns: int, seed: int = 0, density: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    truth = torch.randn(columns, generator=generator, dtype=torch.float64)
    truth *= torch.rand(columns, generator=generator) < density
    return X, X @ truth + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("rows", "columns"), [(20, 200), (60, 15), (30, 30), (2, 40), (1, 12)])
@pytest.mark.parametrize("ratio", [1.5, 10, 1000])
def test_the_solution_satisfies_the_optimality_conditions(rows, columns, ratio):
    X, y = drawn(rows, columns, density=0.5)
    alpha = alpha_max(X, y) / ratio
    fit = spred_lasso(X, y, alpha, tol=1e-10)
    w = fit.weights.numpy()
    assert fit.converged
    assert fit.objective == pytest.approx(objective(X.numpy(), y.numpy(), w, alpha), rel=1e-10)
    assert worst_violation(X.numpy(), y.numpy(), w, alpha) < 1e-3
    # the certificate: no weights are better than objective - gap
    other = Lasso(alpha=alpha, fit_intercept=False, tol=1e-12, max_iter=1_000_000).fit(X.numpy(), y.numpy()).coef_
    assert objective(X.numpy(), y.numpy(), other, alpha) >= fit.objective - fit.duality_gap - 1e-14
    assert fit.objective <= objective(X.numpy(), y.numpy(), other, alpha) * (1 + 1e-9)
    if rows > 1:  # one row: several columns can be nearly as steep
        assert np.array_equal(w != 0, other != 0)


def test_from_alpha_max_on_all_weights_are_zero_and_just_below_one_is_not():
    X, y = drawn(20, 100)
    largest = alpha_max(X, y)
    assert largest == pytest.approx(max(abs(float(X[:, j] @ y)) / 20 for j in range(100)))
    for alpha in (largest, 3 * largest):
        fit = spred_lasso(X, y, alpha)
        assert fit.weights.eq(0).all()
        assert fit.objective == pytest.approx(float(y @ y) / 40)
        assert fit.iterations == 0
    steepest = int((X.T @ y).abs().argmax())
    assert spred_lasso(X, y, 0.999 * largest).weights.nonzero().flatten().tolist() == [steepest]


@pytest.mark.parametrize("sign", [1, -1])
def test_one_column_is_the_soft_threshold(sign):
    X, y = drawn(9, 1, density=1.0)
    for alpha in (0.01, 0.1, 1.0, 10.0):
        expected = one_column(X[:, 0].numpy(), sign * y.numpy(), alpha)
        fit = spred_lasso(X, sign * y, alpha, tol=1e-12)
        assert float(fit.weights) == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_weights_change_their_sign_along_the_path_where_the_lasso_does():
    generator = np.random.default_rng(2)
    flips = 0
    for _ in range(2):
        mixing = generator.standard_normal((8, 8))
        X = generator.standard_normal((40, 8)) @ mixing
        y = X @ generator.standard_normal(8) + generator.standard_normal(40)
        X_, y_ = torch.as_tensor(X), torch.as_tensor(y)
        alphas = [alpha_max(X_, y_) * 10 ** (-i / 4) for i in range(16)]
        fits = spred_path(X_, y_, alphas, tol=1e-9)
        signs = np.array([fit.weights.sign().numpy() for fit in fits])
        flips += sum(1 in signs[:, j] and -1 in signs[:, j] for j in range(8))
        for fit, alpha in zip(fits, alphas, strict=True):
            other = Lasso(alpha=alpha, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(X, y).coef_
            assert np.allclose(fit.weights.numpy(), other, rtol=1e-3, atol=1e-4)
    assert flips >= 1


def test_zero_and_duplicated_columns():
    X, y = drawn(20, 30, density=0.5)
    X[:, 4] = 0
    X[:, 9] = X[:, 8]
    X[:, 11] = -X[:, 8]
    alpha = alpha_max(X, y) / 20
    fit = spred_lasso(X, y, alpha, tol=1e-10)
    assert fit.converged
    assert fit.weights[4] == 0
    assert worst_violation(X.numpy(), y.numpy(), fit.weights.numpy(), alpha) < 1e-3
    single = spred_lasso(torch.cat([X[:, :9], X[:, 10:11], X[:, 12:]], 1), y, alpha, tol=1e-10)
    assert fit.objective == pytest.approx(single.objective, rel=1e-9)
    together = fit.weights[8] + fit.weights[9] - fit.weights[11]
    assert float(together) == pytest.approx(float(single.weights[8]), abs=1e-5)


@pytest.mark.parametrize("load", [load_diabetes, load_breast_cancer])
def test_collinear_real_data_with_an_intercept(load):
    X, y = load(return_X_y=True)
    X, y = X[:300].astype(float), y[:300].astype(float)
    X = X / X.std(0) + 7
    alpha = 0.02 * y.std()
    fit = spred_lasso(torch.as_tensor(X), torch.as_tensor(y), alpha, tol=1e-10, intercept=True)
    other = Lasso(alpha=alpha, tol=1e-12, max_iter=1_000_000).fit(X, y)
    assert fit.converged
    assert np.allclose(fit.weights.numpy(), other.coef_, rtol=1e-3, atol=1e-5 * np.abs(other.coef_).max())
    assert fit.intercept == pytest.approx(other.intercept_, rel=1e-3, abs=1e-3)
    assert np.array_equal(fit.weights.numpy() != 0, other.coef_ != 0)


def test_a_tiny_alpha_interpolates_with_the_least_sum_of_weights():
    X, y = drawn(15, 100)
    alpha = alpha_max(X, y) / 1e7
    fit = spred_lasso(X, y, alpha, tol=1e-6)
    assert fit.converged
    assert float((X @ fit.weights - y).abs().max()) < 1e-4 * float(y.abs().max())
    shortest = torch.linalg.pinv(X) @ y
    assert float(fit.weights.abs().sum()) < float(shortest.abs().sum())
    assert int((fit.weights != 0).sum()) <= 16


def test_the_layout_of_x_does_not_matter_and_a_path_equals_its_points():
    X, y = drawn(20, 150)
    alphas = [alpha_max(X, y) / ratio for ratio in (2, 5, 30, 300)]
    path = spred_path(X, y, alphas, tol=1e-10)
    for alpha, fit in zip(alphas, path, strict=True):
        for stored in (X, X.T.contiguous().T):
            alone = spred_lasso(stored, y, alpha, tol=1e-10)
            assert torch.allclose(alone.weights, fit.weights, atol=1e-6)
    warm = spred_lasso(X, y, alphas[2], tol=1e-6, start=path[2].weights)
    assert (warm.iterations, warm.passes) == (0, 1)


def test_float32_comes_near_and_keeps_its_dtype():
    X, y = drawn(20, 200)
    alpha = alpha_max(X, y) / 10
    single = spred_lasso(X.float(), y.float(), alpha, tol=1e-5)
    exact = spred_lasso(X, y, alpha, tol=1e-10)
    assert single.weights.dtype == torch.float32
    assert torch.allclose(single.weights.double(), exact.weights, atol=1e-3)
    assert objective(X.numpy(), y.numpy(), single.weights.double().numpy(), alpha) <= exact.objective * (1 + 1e-4)


def test_a_fit_that_was_cut_short_warns_and_its_certificate_holds():
    X, y = drawn(20, 400, density=0.5)
    alpha = alpha_max(X, y) / 50
    with pytest.warns(RuntimeWarning, match=r"alpha=.* not tol=1e-06"):
        short = spred_lasso(X, y, alpha, max_passes=2)
    exact = spred_lasso(X, y, alpha, tol=1e-9)
    assert not short.converged
    assert short.objective - short.duality_gap <= exact.objective <= short.objective


def test_adam_reaches_the_lasso_with_decay_2_alpha_and_its_controls_do_not():
    X, y = drawn(20, 40, density=0.3)
    alpha = alpha_max(X, y) / 10
    exact = spred_lasso(X, y, alpha, tol=1e-10)
    w, seconds = adam_product(X, y, 2 * alpha, torch.Generator().manual_seed(0), lr=0.02, steps=1000)
    assert seconds > 0
    assert objective(X.numpy(), y.numpy(), w.numpy(), alpha) < exact.objective * (1 + 1e-3)
    assert torch.equal(w.abs() >= 1e-3, exact.weights != 0)
    assert (exact.weights < 0).any()
    plain, _ = adam_plain(X, y, 2 * alpha, torch.Generator().manual_seed(0), lr=0.02, steps=1000)
    ridge = torch.linalg.solve(X.T @ X / 20 + alpha * torch.eye(40), X.T @ y / 20)
    assert torch.allclose(plain, ridge, atol=2e-3)
    assert plain.abs().min() > 1e-6
    free, _ = adam_product(X, y, 0.0, torch.Generator().manual_seed(0), steps=100)
    assert free.abs().ge(1e-6).all()


def test_adam_stops_when_asked():
    X, y = drawn(5, 6)
    assert adam_product(X, y, 0.1, torch.Generator(), stopped=lambda: True) is None


X, Y = drawn(5, 6)
NAN = X.clone()
NAN[2, 3] = float("nan")
INF = X.clone()
INF[0, 0] = float("inf")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, Y, 0.0), "alpha must be positive and finite, got 0"),
        ((X, Y, float("nan")), "alpha must be positive"),
        ((NAN, Y, 0.1), "X has entries that are not finite"),
        ((INF, Y, 0.1), "X has entries that are not finite"),
        ((X, Y * float("nan"), 0.1), "y has entries that are not finite"),
        ((X, Y[:4], 0.1), r"got \(5, 6\) and \(4,\)"),
        ((X[:, :0], Y, 0.1), "at least 1"),
        ((X.half(), Y, 0.1), "float32 or float64"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        spred_lasso(*arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tol": 0}, "tol"),
        ({"tol": float("nan")}, "tol"),
        ({"max_passes": 0}, "max_passes must be at least 1"),
        ({"start": torch.ones(4)}, "start must be finite of shape"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        spred_lasso(X, Y, 0.1, **settings)


@pytest.mark.parametrize(("of_x", "of_y"), [(1, 1e160), (1e160, 1), (1e-300, 1), (1, 1e-300)])
def test_what_leaves_the_range_of_float64_is_no_solution(of_x, of_y):
    alpha = alpha_max(X * of_x, Y * of_y) / 10
    with pytest.raises(ValueError, match=r"the objective (inf|nan|0\.0) is out of range"):
        spred_lasso(X * of_x, Y * of_y, alpha)


def test_scale_does_not_matter_within_the_range_and_gradients_are_not_followed():
    alpha = alpha_max(X, Y) / 10
    plain = spred_lasso(X, Y, alpha)
    for scale in (1e-20, 1e20):
        other = spred_lasso((X * scale).requires_grad_(), Y * scale, alpha * scale**2)
        assert other.converged
        torch.testing.assert_close(other.weights, plain.weights)
        assert not other.weights.requires_grad


def test_a_path_needs_an_alpha():
    with pytest.raises(ValueError, match="alphas is empty"):
        spred_path(X, Y, [])


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"lr": 0}, "lr"), ({"steps": 0}, "steps"), ({"std": 0}, "std"), ({"std": float("nan")}, "std")],
)
def test_bad_settings_of_adam_are_named(settings, key):
    with pytest.raises(ValueError, match=f"{key} must be"):
        adam_product(X, Y, 0.1, torch.Generator(), **settings)
    with pytest.raises(ValueError, match="decay must be"):
        adam_product(X, Y, float("nan"), torch.Generator())


def test_arrays_are_taken_as_tensors_are():
    X, y = drawn(20, 30)
    start = torch.zeros(30, dtype=torch.float64)
    fit, other = spred_lasso(X, y, 0.05), spred_lasso(X.numpy(), y.numpy(), 0.05, start=start.numpy())
    torch.testing.assert_close(fit.weights, other.weights)
