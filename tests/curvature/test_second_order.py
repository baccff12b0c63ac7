"""Gradients and matrices against loops with plain autograd, pen-and-paper models and curvlinops."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.func import functional_call

from symlab.curvature.ensemble import draw
from symlab.curvature.gradients import gradients
from symlab.curvature.problem import Problem
from symlab.curvature.second_order import empirical_fishers, fishers, ggns, hessians
from symlab.training.losses import cross_entropy, half_mean_squared_error
from tests import reference_curvature as reference
from tests.curvature.nets import Convolutional, as_function, chain, convolutional, data, made, of_model

LOSSES = {"mse": half_mean_squared_error, "nll": cross_entropy}
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def problem_of(build, shape, outputs, kind, n=5, **options):
    return Problem.of(made(build), *data(n, shape, outputs, kind), LOSSES[kind], **options)


def close(a, b, tolerance=EXACT):
    torch.testing.assert_close(a, b, **tolerance)


def check_all(problem, parameters, kind, models=(0, 1)):
    function = as_function(problem)
    slopes = problem.flatten(gradients(problem, parameters))
    found = [of(problem, parameters) for of in (hessians, ggns, fishers, empirical_fishers)]
    X, Y = problem.inputs, problem.targets
    for s in models:
        own = of_model(parameters, s)
        close(slopes[s], reference.gradient(function, own, X, Y, kind))
        expected = [
            reference.hessian(function, own, X, Y, kind),
            reference.ggn(function, own, X, kind),
            reference.fisher(function, own, X, kind),
            reference.empirical_fisher(function, own, X, Y, kind),
        ]
        for matrices, right in zip(found, expected, strict=True):
            close(matrices[s], right)


@pytest.mark.parametrize("kind", ["mse", "nll"])
@pytest.mark.parametrize(
    ("sizes", "activation", "bias"),
    [((3, 4, 3), "tanh", True), ((3, 2, 3, 2), "relu", False), ((3, 2), "tanh", True)],
)
def test_nets_of_linear_layers_match_the_loops(sizes, activation, bias, kind):
    build = chain(sizes, activation, bias)
    problem = problem_of(build, (3,), sizes[-1], kind)
    assert problem.layers is not None
    parameters = draw(build, problem, 0, 0, 2)
    check_all(problem, parameters, kind)
    check_all(dataclasses.replace(problem, layers=None), parameters, kind, models=(1,))


@pytest.mark.parametrize("kind", ["mse", "nll"])
def test_convolutional_nets_match_the_loops(kind):
    build = convolutional()
    problem = problem_of(build, (2, 4), 2, kind)
    assert problem.layers is None
    check_all(problem, draw(build, problem, 0, 0, 2), kind)


def test_a_single_model_is_computed_like_many():
    build = convolutional()
    problem = problem_of(build, (2, 4), 2, "nll")
    parameters = draw(build, problem, 0, 0, 2)
    for of in (hessians, ggns, fishers, empirical_fishers):
        many = of(problem, parameters)
        one = of(problem, {name: x[1:] for name, x in parameters.items()})
        close(one[0], many[1])


class Shared(nn.Module):
    """One linear layer applied twice, and one whose weight is used beside it: no net of linear layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 2)

    def forward(self, x):
        x = torch.tanh(self.first(torch.tanh(self.first(x))))
        return self.second(x) * self.second.weight.norm()


def test_weights_used_twice_match_the_loops():
    torch.manual_seed(0)
    net = Shared().double()
    problem = Problem.of(net, *data(4, (3,), 2, "mse"), half_mean_squared_error)
    assert problem.layers is None
    check_all(problem, {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in net.named_parameters()}, "mse")


class Residual(nn.Module):
    """Linear layers with skips, products of activations and a layer whose inputs are another's outputs alone."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 2)

    def forward(self, x):
        y = self.b(self.a(x))
        return self.c(torch.sin(y) * x + y)


def test_any_wiring_of_linear_layers_matches_the_loops():
    torch.manual_seed(0)
    net = Residual().double()
    problem = Problem.of(net, *data(4, (3,), 2, "nll"), cross_entropy)
    assert problem.layers is not None
    check_all(problem, {name: torch.stack([p.detach(), -p.detach()]) for name, p in net.named_parameters()}, "nll")


class Positions(nn.Module):
    """Linear layers that see rows times positions [B T, in], or a constant in place of the rows."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 2)
        self.register_buffer("constant", torch.ones(1, 2))

    def forward(self, x):
        y = torch.tanh(self.a(x.flatten(0, 1))).unflatten(0, x.shape[:2]).mean(1)
        return self.b(y) * self.c(self.constant)


def test_linear_layers_of_more_than_the_rows_match_the_loops():
    torch.manual_seed(0)
    net = Positions().double()
    problem = Problem.of(net, *data(4, (3, 2), 2, "nll"), cross_entropy)
    assert problem.layers is None
    check_all(problem, {name: torch.stack([p.detach(), -p.detach()]) for name, p in net.named_parameters()}, "nll")


# --- scale ---


@pytest.mark.parametrize("C", [1, 4])
def test_linear_least_squares_by_hand(C):
    X, Y = data(7, (3,), C, "mse")
    net = nn.Linear(3, C, bias=False).double()
    W = net.weight.detach()
    half = Problem.of(net, X, Y, half_mean_squared_error)
    parameters = {"weight": W[None]}
    right = reference.linear_least_squares(X, C)
    for of in (hessians, ggns, fishers):
        close(of(half, parameters)[0], right)
    close(empirical_fishers(half, parameters)[0], reference.row_outer_products(X, X @ W.T - Y))
    mean = Problem.of(net, X, Y, nn.functional.mse_loss)  # 1 / (n C), no 1/2
    for of in (hessians, ggns, fishers):
        close(of(mean, parameters)[0], right * 2 / C)
    close(empirical_fishers(mean, parameters)[0], reference.row_outer_products(X, (X @ W.T - Y) * 2 / C))


@pytest.mark.parametrize("C", [2, 4])
def test_softmax_regression_by_hand(C):
    X, y = data(7, (3,), C, "nll")
    net = nn.Linear(3, C, bias=False).double()
    W = net.weight.detach()
    problem = Problem.of(net, X, y, cross_entropy)
    parameters = {"weight": W[None]}
    right = reference.softmax_regression(X, W)
    for of in (hessians, ggns, fishers):
        close(of(problem, parameters)[0], right)
    D = torch.softmax(X @ W.T, 1) - nn.functional.one_hot(y, C)
    close(empirical_fishers(problem, parameters)[0], reference.row_outer_products(X, D))


def test_softmax_regression_with_one_class_is_flat():
    X, _ = data(7, (3,), 1, "mse")
    net = nn.Linear(3, 1, bias=False).double()
    problem = Problem.of(net, X, torch.zeros(7, dtype=torch.int64), cross_entropy)
    for of in (hessians, ggns, fishers, empirical_fishers):
        close(of(problem, {"weight": net.weight.detach()[None]})[0], torch.zeros(3, 3, dtype=torch.float64))


def test_logistic_regression_by_hand():
    """Along the difference of two logits, softmax regression is logistic regression."""
    X, y = data(9, (3,), 2, "nll")
    net = nn.Linear(3, 2, bias=False).double()
    W = net.weight.detach()
    H = hessians(Problem.of(net, X, y, cross_entropy), {"weight": W[None]})[0].reshape(2, 3, 2, 3)
    right = reference.logistic_regression(X, W[0] - W[1])
    close(H[0, :, 0], right)
    close(H[0, :, 1], -right)


def test_class_targets_of_squared_error_are_one_hot_rows():
    X, y = data(6, (3,), 2, "nll")
    net = nn.Linear(3, 2, bias=False).double()
    problem = Problem.of(net, X, y, half_mean_squared_error)
    close(fishers(problem, {"weight": net.weight.detach()[None]})[0], reference.linear_least_squares(X, 2))


@pytest.mark.parametrize("kind", ["mse", "nll"])
def test_curvlinops_agrees(kind):
    curvlinops = pytest.importorskip("curvlinops")
    build = chain((3, 4, 2))
    X, Y = data(6, (3,), 2, kind)
    net = made(build).double()
    problem = Problem.of(net, X, Y, LOSSES[kind])
    parameters = {name: p.detach()[None] for name, p in net.named_parameters()}
    loss = nn.MSELoss() if kind == "mse" else nn.CrossEntropyLoss()  # 2 / C = 1 for 2 outputs
    arguments = (net, loss, list(net.parameters()), [(X, Y)])
    eye = torch.eye(problem.num_parameters, dtype=torch.float64)
    close(curvlinops.HessianLinearOperator(*arguments) @ eye, hessians(problem, parameters)[0])
    close(curvlinops.GGNLinearOperator(*arguments) @ eye, ggns(problem, parameters)[0])
    ours = empirical_fishers(problem, parameters)[0]
    close(curvlinops.EFLinearOperator(*arguments) @ eye, 2 * ours if kind == "mse" else ours)  # 1/(2 n) of (2 e)^2
    sampled = curvlinops.FisherMCLinearOperator(*arguments, mc_samples=3000) @ eye
    exact = fishers(problem, parameters)[0]
    assert float((sampled - exact).norm() / exact.norm()) < 0.05


# --- averages over rows ---


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("kind", ["mse", "nll"])
def test_no_result_depends_on_the_row_batch(kind, general):
    build = chain((3, 4, 2))
    whole = problem_of(build, (3,), 2, kind)
    parameters = draw(build, whole, 0, 0, 3)
    for row_batch in (1, 2, 4):
        problem = problem_of(build, (3,), 2, kind, row_batch=row_batch)
        if general:
            problem = dataclasses.replace(problem, layers=None)
        for of in (hessians, ggns, fishers, empirical_fishers):
            close(of(problem, parameters), of(whole, parameters))
        for name, x in gradients(whole, parameters).items():
            close(gradients(problem, parameters)[name], x)


@pytest.mark.parametrize("general", [False, True])
def test_a_replay_gives_the_same_bits(general):
    build = chain((2, 2, 2))
    problem = problem_of(build, (2,), 2, "nll", n=3)
    if general:
        problem = dataclasses.replace(problem, layers=None)
    parameters = draw(build, problem, 0, 0, 3)
    others = draw(build, problem, 0, 3, 3)
    for of in (hessians, ggns, fishers, empirical_fishers, lambda p, x: p.flatten(gradients(p, x))):
        first = of(problem, parameters)
        of(problem, others)
        assert torch.equal(of(problem, parameters), first)


def test_a_model_that_cannot_be_traced_is_computed_with_a_warning():
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(x * (2 if float(torch.ones(3).sum()) > 2 else 1))

    net = Stubborn().double()
    problem = Problem.of(net, *data(4, (3,), 2, "mse"), half_mean_squared_error)
    parameters = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in net.named_parameters()}
    first = gradients(problem, parameters)
    with pytest.warns(UserWarning, match="cannot be traced"):
        again = gradients(problem, parameters)
    assert all(torch.equal(first[name], again[name]) for name in first)


# --- modes ---


def test_training_mode_uses_the_statistics_of_all_rows():
    build = convolutional()
    problem = problem_of(build, (2, 4), 2, "mse", n=6, training=True)
    parameters = draw(build, problem, 0, 0, 2)
    net = made(build).double().train()

    def value(vector):
        return half_mean_squared_error(
            functional_call(net, problem.unflatten(vector), (problem.inputs,)), problem.targets
        )

    for s in range(2):
        vector = problem.flatten({name: x[s] for name, x in parameters.items()})
        close(hessians(problem, parameters)[s], torch.autograd.functional.hessian(value, vector))
        J = torch.autograd.functional.jacobian(
            lambda v: functional_call(net, problem.unflatten(v), (problem.inputs,)), vector
        ).flatten(0, 1)
        close(ggns(problem, parameters)[s], J.T @ J / 6)
        close(fishers(problem, parameters)[s], J.T @ J / 6)
        residuals = functional_call(net, problem.unflatten(vector), (problem.inputs,)) - problem.targets
        rows = torch.einsum("rcp,rc->rp", J.reshape(6, 2, -1), residuals)
        close(empirical_fishers(problem, parameters)[s], rows.T @ rows / 6)


def test_dropout_masks_are_drawn_from_the_seed_and_differ_between_models():
    build = convolutional(dropout=0.5)
    one, other = (problem_of(build, (2, 4), 2, "mse", n=6, training=True, seed=seed) for seed in (3, 4))
    single = draw(build, one, 0, 0, 1)
    parameters = {name: x.expand(4, *x.shape[1:]) for name, x in single.items()}
    first = one.flatten(gradients(one, parameters))
    assert torch.equal(first, one.flatten(gradients(one, parameters)))
    assert not torch.allclose(first, one.flatten(gradients(other, parameters)))
    assert not torch.allclose(first[0], first[1])


# --- precision, kinks ---


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_float32_agrees_with_float64(activation):
    build = chain((3, 4, 2), activation)
    X, Y = data(6, (3,), 2, "mse")
    fine = Problem.of(made(build), X, Y, half_mean_squared_error)
    coarse = Problem.of(made(build), X.float(), Y.float(), half_mean_squared_error)
    for of in (hessians, ggns, fishers, empirical_fishers):
        single = of(coarse, draw(build, coarse, 0, 0, 3))
        assert single.dtype is torch.float32
        close(single.double(), of(fine, draw(build, fine, 0, 0, 3)), {"rtol": 1e-4, "atol": 1e-5})


def test_the_derivative_of_relu_at_exactly_zero_is_zero():
    build = chain((3, 4, 2), "relu", bias=False)
    X, Y = data(6, (3,), 2, "mse")
    problem = Problem.of(made(build), X, Y, half_mean_squared_error)
    parameters = draw(build, problem, 0, 0, 2)
    parameters["layers.0.weight"][:, 0] = 0  # pre-activations of the first unit: exactly zero
    for general in (False, True):
        H = hessians(dataclasses.replace(problem, layers=None) if general else problem, parameters)
        assert bool(H.isfinite().all())
        assert not bool(H[:, :3].any())  # the rows of that unit's first weights


@pytest.mark.parametrize(("activation", "kind"), [("tanh", "nll"), ("relu", "mse")])
def test_finite_differences_away_from_kinks(activation, kind):
    build = chain((3, 4, 2), activation)
    problem = problem_of(build, (3,), 2, kind)
    parameters = draw(build, problem, 0, 0, 2)
    vector = problem.flatten(parameters)  # [2, P]
    step = 1e-5
    H = hessians(problem, parameters)
    for i in range(problem.num_parameters):
        e = torch.zeros_like(vector)
        e[:, i] = step
        up, down = (problem.flatten(gradients(problem, problem.unflatten(vector + sign * e))) for sign in (1, -1))
        close(H[:, i], (up - down) / (2 * step), {"rtol": 1e-5, "atol": 1e-7})


def test_hessians_as_they_come_show_their_asymmetry():
    build = convolutional()
    problem = problem_of(build, (2, 4), 2, "nll")
    parameters = draw(build, problem, 0, 0, 2)
    raw, symmetric = hessians(problem, parameters, symmetrise=False), hessians(problem, parameters)
    assert torch.equal(symmetric, symmetric.mT)
    close((raw + raw.mT) / 2, symmetric)


# --- order and frozen parameters ---


class Reversed(nn.Module):
    """The chain net with its parameters registered last layer first, bias before weight."""

    def __init__(self, net):
        super().__init__()
        for name, p in reversed(list(net.named_parameters())):
            self.register_parameter(name.replace(".", "_"), nn.Parameter(p.detach().clone()))

    def forward(self, x):
        w = dict(self.named_parameters())
        x = torch.tanh(nn.functional.linear(x, w["layers_0_weight"], w["layers_0_bias"]))
        return nn.functional.linear(x, w["layers_2_weight"], w["layers_2_bias"])


def test_another_order_of_the_parameters_permutes_the_matrix():
    net = made(chain((3, 4, 2))).double()
    X, Y = data(5, (3,), 2, "mse")
    plain, turned = (Problem.of(m, X, Y, half_mean_squared_error) for m in (net, Reversed(net)))
    assert turned.names == tuple(reversed([name.replace(".", "_") for name in plain.names]))
    numbers = plain.unflatten(torch.arange(plain.num_parameters))
    order = torch.cat([numbers[name].flatten() for name in reversed(plain.names)])
    for of in (hessians, ggns, fishers, empirical_fishers):
        a = of(plain, {name: p.detach()[None] for name, p in net.named_parameters()})[0]
        b = of(turned, {name: p.detach()[None] for name, p in Reversed(net).named_parameters()})[0]
        close(b, a[order][:, order])


@pytest.mark.parametrize("frozen", ["layers.0.weight", "layers.2.bias"])
def test_frozen_parameters_are_left_out(frozen):
    net = made(chain((3, 4, 2))).double()
    X, Y = data(5, (3,), 2, "nll")
    whole = Problem.of(net, X, Y, cross_entropy)
    dict(net.named_parameters())[frozen].requires_grad_(False)
    part = Problem.of(net, X, Y, cross_entropy)
    assert part.names == tuple(name for name in whole.names if name != frozen)
    numbers = whole.unflatten(torch.arange(whole.num_parameters))
    kept = torch.cat([numbers[name].flatten() for name in part.names])
    parameters = {name: p.detach()[None] for name, p in net.named_parameters()}
    for of in (hessians, ggns, fishers, empirical_fishers):
        a = of(whole, parameters)[0]
        close(of(part, {name: parameters[name] for name in part.names})[0], a[kept][:, kept])


def test_the_convolutional_net_is_what_the_tests_say():
    assert any(isinstance(module, nn.BatchNorm1d) for module in Convolutional().modules())
